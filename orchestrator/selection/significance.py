"""Permutation tests: is one model better than another on the same rows, or only luckier?

If two models are equally good, their outputs on a row can be swapped without changing the
distribution of the lead. So the tests swap rows at random, many times, and count how often the lead
is as large as the observed one. Rows that belong together (the twins of a minimal pair, questions
about one text) are not independent: they are swapped together, as one group.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tinyattn.tasks import Task, compute_metrics
from tinyattn.tasks.corpus_metrics import columns_of, score

PERMUTATIONS = 10_000
_A_LEVEL = 20
"""Least product of permutations and level: the number of permuted leads at least as large as the
observed one that p = level stands for."""
_MOST = 20_000_000
"""Most permutations; they take minutes."""
LONG_SECONDS = 5.0
"""Expected seconds of a test above which a message says how long it will take."""
_SEED = 0
"""Seed of the permutations: a test that is made again has the same p."""
_SAME = 1e-9
"""Leads that differ by less count as equal: sums in another order differ in the last digits."""
_AT_ONCE = 2**22
"""Rows times permutations in one array of swaps, which takes 32 MiB."""

Score = Callable[[np.ndarray, np.ndarray], float]
"""(outputs [N, C], labels [N]) → a number, higher is better."""


@dataclass(frozen=True)
class PairedTest:
    """The result of a paired test: both scores, and the p-value of the lead."""

    new_score: float
    old_score: float
    p_value: float
    """One-sided: small when the new model is better."""


class Metric:
    """A metric, and the leads that one model has over another when rows are swapped."""

    def __init__(self, score: Score) -> None:
        self.score = score

    def __call__(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        """Return the score of outputs [N, C]."""
        return self.score(outputs, labels)

    def leads(
        self, new: np.ndarray, old: np.ndarray, labels: np.ndarray, swaps: np.ndarray
    ) -> np.ndarray:
        """Return the lead [B] of `new` over `old` after each of B permutations.

        Args:
            new: outputs [N, C].
            old: outputs [N, C].
            labels: [N].
            swaps: [B, N] of 0 and 1; at a 1 the outputs of the two models are swapped.
        """
        new, old = self._comparable([new, old], labels)
        masks = swaps.reshape(*swaps.shape, *[1] * (new.ndim - 1)).astype(bool)
        sides = ((np.where(mask, old, new), np.where(mask, new, old)) for mask in masks)
        return np.array([self(one, labels) - self(other, labels) for one, other in sides])

    def _comparable(self, models: list[np.ndarray], labels: np.ndarray) -> list[np.ndarray]:
        """Return the models' outputs on a common scale, if the metric does not depend on the scale.

        A correlation does not. But once rows are swapped, one model's outputs stand among the
        other's, and if they are four times as large they dominate the correlation.
        """
        for scale in (_ranked, _standardised):
            scaled = [scale(outputs) for outputs in models]
            changes = [
                abs(self(a, labels) - self(b, labels)) for a, b in zip(scaled, models, strict=True)
            ]
            if max(changes) < _SAME:
                return scaled
        return models

    def exact(
        self, new: np.ndarray, old: np.ndarray, labels: np.ndarray, groups: np.ndarray
    ) -> float | None:
        """Return the exact p over all swaps of the groups, [N]; None: it must be sampled."""
        return None

    def without_each(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the score without each of the rows in turn, [N]; N is at least 2."""
        rows = np.arange(len(labels))
        return np.array([self(outputs[rows != row], labels[rows != row]) for row in rows])


class Confusion(Metric):
    """A classification metric, computed from the confusion matrix alone.

    One matrix product gives the matrices after thousands of permutations. Few of them differ, and
    each distinct one is scored once.
    """

    def __init__(self, score: Score) -> None:
        super().__init__(score)
        self._known: dict[bytes, float] = {}

    def leads(
        self, new: np.ndarray, old: np.ndarray, labels: np.ndarray, swaps: np.ndarray
    ) -> np.ndarray:
        """As in Metric."""
        classes = new.shape[1]
        first, second = _cells(new, labels), _cells(old, labels)
        moved = second - first
        rows = np.flatnonzero(moved.any(axis=1))
        counts = first.sum(axis=0) + swaps[:, rows] @ moved[rows]
        others = (first + second).sum(axis=0) - counts
        return self._scores(counts, classes) - self._scores(others, classes)

    def _scores(self, counts: np.ndarray, classes: int) -> np.ndarray:
        different, which = np.unique(counts.astype(np.int64), axis=0, return_inverse=True)
        return np.array([self._score_of(cells, classes) for cells in different])[which.ravel()]

    def _score_of(self, cells: np.ndarray, classes: int) -> float:
        """Return the score of a confusion matrix of K classes, [K · K] by label and prediction."""
        key = cells.tobytes()
        if key not in self._known:
            rows = np.repeat(np.arange(len(cells)), cells)
            self._known[key] = self(np.eye(classes)[rows % classes], rows // classes)
        return self._known[key]

    def without_each(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """As in Metric; rows of one cell of the confusion matrix leave the same matrix."""
        classes = outputs.shape[1]
        cell = labels.astype(np.int64) * classes + outputs.argmax(axis=1)
        counts = np.bincount(cell, minlength=classes**2)
        found, scores = np.flatnonzero(counts), np.empty(classes**2)
        scores[found] = self._scores(counts - np.eye(classes**2, dtype=np.int64)[found], classes)
        return scores[cell]


class Accuracy(Confusion):
    """Accuracy, whose p-value is computed exactly.

    If rows are independent this is a sign test. If they are grouped, p comes from the distribution
    of the sum of the groups' differences under random signs.
    """

    def exact(
        self, new: np.ndarray, old: np.ndarray, labels: np.ndarray, groups: np.ndarray
    ) -> float | None:
        """As in Metric; the distribution of the sum is convolved group by group."""
        gain = (new.argmax(axis=1) == labels).astype(int) - (old.argmax(axis=1) == labels)
        _, group = np.unique(groups, return_inverse=True)
        gains = np.bincount(group, weights=gain).round().astype(int)
        share = np.ones(1)  # of each sum from -reach to reach
        for step in np.abs(gains[gains != 0]):
            wide = np.zeros(len(share) + 2 * step)
            wide[: len(share)] += share / 2
            wide[2 * step :] += share / 2
            share = wide
        return float(share[len(share) // 2 + gains.sum() :].sum())

    def without_each(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """As in Metric."""
        hits = outputs.argmax(axis=1) == labels
        return (hits.sum() - hits) / (len(hits) - 1)


class Correlation(Metric):
    """Pearson's or Spearman's correlation, which does not depend on the scale of the outputs.

    Outputs are standardised or ranked before they are swapped, so that the test does not depend on
    their scale either. Spearman's lead after a swap uses each model's own ranks.
    """

    def __init__(self, score: Score, ranks: bool) -> None:
        super().__init__(score)
        self._scale = _ranked if ranks else _standardised

    def leads(
        self, new: np.ndarray, old: np.ndarray, labels: np.ndarray, swaps: np.ndarray
    ) -> np.ndarray:
        """As in Metric."""
        label = _standardised(self._scale(labels))
        first, second = (_moments(self._scale(outputs)[:, 0], label) for outputs in (new, old))
        sums = first.sum(axis=0) + swaps @ (second - first)
        others = (first + second).sum(axis=0) - sums
        return _correlation(sums, len(labels)) - _correlation(others, len(labels))

    def without_each(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """As in Metric; without a row, those ranked above it move down by one."""
        own, label = outputs[:, 0].astype(np.float64), np.asarray(labels, np.float64)
        if self._scale is not _ranked:
            return _without_each(_standardised(own), _standardised(label))
        step = max(1, _AT_ONCE // len(label))
        parts = [
            np.arange(len(label))[begin : begin + step] for begin in range(0, len(label), step)
        ]
        return np.concatenate(
            [_without_each(_ranks_without(own, rows), _ranks_without(label, rows), rows)
             for rows in parts]
        )  # fmt: skip


class OfSums(Metric):
    """A metric of generated texts or of tags, computed from sums of statistics of rows, [N, S].

    Args:
        name: one of `metrics`.
        metrics: those whose statistics the outputs are.
    """

    def __init__(self, name: str, metrics: Sequence[str]) -> None:
        own = self._own = columns_of(metrics)[name]
        super().__init__(lambda outputs, labels: score(name, outputs[:, own]))
        self._of_sums = functools.partial(score, name)

    def leads(
        self, new: np.ndarray, old: np.ndarray, labels: np.ndarray, swaps: np.ndarray
    ) -> np.ndarray:
        """As in Metric; each distinct sum is scored once."""
        first, second = new[:, self._own], old[:, self._own]
        moved = second - first
        rows = np.flatnonzero(moved.any(axis=1))
        sums = first.sum(axis=0) + swaps[:, rows] @ moved[rows]
        others = (first + second).sum(axis=0) - sums
        return self._scores(sums) - self._scores(others)

    def without_each(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """As in Metric."""
        own = outputs[:, self._own]
        return self._scores(own.sum(axis=0) - own)

    def _scores(self, sums: np.ndarray) -> np.ndarray:
        different, which = np.unique(sums, axis=0, return_inverse=True)
        return np.array([self._of_sums(own[None]) for own in different])[which.ravel()]


def primary_metric(task: Task) -> Metric:
    """Return a task's primary metric, without the others: tests compute it thousands of times."""
    name = task.metrics[0]
    if task.by_sums:
        return OfSums(name, task.metrics)
    alone = replace(task, metrics=(name,))

    def score(outputs: np.ndarray, labels: np.ndarray) -> float:
        return compute_metrics(alone, outputs, labels)[name]

    if task.is_regression:
        return Correlation(score, name == "spearman")
    return Accuracy(score) if name == "accuracy" else Confusion(score)


def permutations_for(level: float) -> int:
    """Return the number of permutations for a level: 20 / level, from 10,000 to 20,000,000."""
    return min(_MOST, max(PERMUTATIONS, math.ceil(_A_LEVEL / level)))


def paired_test(
    metric: Metric | Score,
    new: np.ndarray,
    old: np.ndarray,
    labels: np.ndarray,
    *,
    groups: np.ndarray | None = None,
    permutations: int = PERMUTATIONS,
    level: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> PairedTest:
    """Test by permutation whether `new` is better than `old` on the same rows.

    Each permutation swaps every group with probability ½; p is the share of permutations, the
    observed one included, whose lead is at least the observed one (Phipson & Smyth 2010). p is
    exact for accuracy, and for other metrics if so few groups differ that all swaps can be tried.
    Else `permutations` are drawn, or fewer if `level` can no longer be reached.

    Args:
        metric: maps outputs [N, C] and labels [N] to a number, higher is better.
        new: outputs [N, C] of the newcomer.
        old: outputs [N, C] of the champion.
        labels: [N].
        groups: [N] a number for each row, the same for rows that belong together; None: all rows
            are independent.
        permutations: number of permutations; a sampled p is at least 1 / (permutations + 1).
        level: level that p is compared with; None: all permutations are drawn.
        say: called with a message if the test takes more than a few seconds.
    """
    metric = metric if isinstance(metric, Metric) else Metric(metric)
    new_score, old_score = metric(new, labels), metric(old, labels)
    lead = new_score - old_score
    if not np.isfinite(lead) or np.array_equal(new, old):
        return PairedTest(new_score, old_score, 1.0)
    own = np.arange(len(labels)) if groups is None else groups
    if (exact := metric.exact(new, old, labels, own)) is not None:
        return PairedTest(new_score, old_score, exact)
    every = 2 ** _moving([new], old, groups)[2] <= permutations
    # A permutation whose metric is undefined counts against the newcomer.
    as_large = (
        ~(metric.leads(new, old, labels, swaps) < lead - _SAME)
        for swaps in swaps_of([new], old, groups, permutations, every=every)
    )
    p_value = _counted(as_large, every, permutations, None if every else level, say)
    return PairedTest(new_score, old_score, p_value)


def _counted(
    as_large: Iterable[np.ndarray],
    every: bool,
    permutations: int,
    level: float | None,
    say: Callable[[str], None],
) -> float:
    """Return the share of permutations whose lead is as large as the observed one.

    Drawing stops early, after at least 10,000, once enough leads are as large as the observed one
    that p would end above `level` whatever the rest; p is then the share among those drawn
    (sequential Monte Carlo p-values, Besag & Clifford 1991). The decision at `level` is the same as
    with all permutations.

    Args:
        as_large: for a few permutations at a time, [B] whether the lead is as large.
        every: whether each combination of swaps comes once; the observed order is one of them,
            which is added to random ones.
        permutations: most permutations that will come.
        level: level that p is compared with; None: all permutations are drawn.
        say: called with a message if the test takes more than a few seconds.
    """
    large = drawn = 0 if every else 1
    enough = math.inf if level is None else level * (permutations + 1)
    began = time.monotonic()
    for found in as_large:
        large += int(found.sum())
        before, drawn = drawn, drawn + len(found)
        if drawn >= PERMUTATIONS:
            if large > enough:
                break
            if before < PERMUTATIONS:
                _announce(time.monotonic() - began, drawn, permutations, say)
    return large / drawn


def _announce(seconds: float, drawn: int, permutations: int, say: Callable[[str], None]) -> None:
    """Say how long the remaining permutations take at most, if that is long."""
    left = seconds / drawn * (permutations - drawn)
    if left > LONG_SECONDS:
        say(f"comparing: {permutations:,} permutations, about {left:,.0f} s or less")


def max_t_test(
    metric: Metric,
    candidates: Sequence[np.ndarray],
    old: np.ndarray,
    labels: np.ndarray,
    *,
    groups: np.ndarray | None = None,
    permutations: int = PERMUTATIONS,
) -> np.ndarray:
    """Test several candidates against one model, correcting for the luck of the best of many.

    A candidate's p is the share of permutations in which *any* candidate leads as clearly as this
    one did in the data (single-step max-T, Westfall & Young 1993, section 2.6). So if none is
    better than `old`, the probability that any has p ≤ α is at most α, however many there are.
    Leads are divided by their spread over the permutations. Without that, the large leads that a
    candidate differing in half of the rows has by chance would hide a candidate that differs in ten
    rows and is right in all of them. A permutation swaps the same rows for all candidates, which
    keeps their correlation.

    Args:
        metric: as `primary_metric` returns it.
        candidates: outputs [N, C] of each candidate.
        old: outputs [N, C] of the model that they would replace.
        labels: [N].
        groups: as in `paired_test`.
        permutations: number of permutations.

    Returns:
        One-sided p of each candidate.
    """
    lead = np.array([metric(new, labels) - metric(old, labels) for new in candidates])
    permuted = [
        np.stack([metric.leads(new, old, labels, swaps) for new in candidates], axis=1)
        for swaps in swaps_of(candidates, old, groups, permutations)
    ]
    leads = np.concatenate([lead[None], *permuted])  # the observed one is a permutation too
    spread = np.sqrt((leads**2).mean(axis=0))
    leads /= np.where(spread > 0, spread, 1)
    most = leads.max(axis=1)
    return np.array([(most >= seen - _SAME).mean() for seen in leads[0]])


def swaps_of(
    candidates: Sequence[np.ndarray],
    old: np.ndarray,
    groups: np.ndarray | None,
    permutations: int,
    every: bool = False,
) -> Iterator[np.ndarray]:
    """Yield swaps of rows, [B, N] of 0 and 1, a few permutations at a time.

    Swaps are random for groups in which some candidate differs from `old`, and 0 for others. With
    `every`, each combination of swaps comes once instead.
    """
    rows, group, count = _moving(candidates, old, groups)
    permutations = 2**count if every else permutations
    generator = np.random.default_rng(_SEED)
    at_once = max(1, _AT_ONCE // len(old))
    for begin in range(0, permutations, at_once):
        size = min(at_once, permutations - begin)
        if every:
            coins = np.arange(begin, begin + size)[:, None] >> np.arange(count) & 1
        else:
            coins = generator.integers(0, 2, (size, count), dtype=np.int8)
        swaps = np.zeros((size, len(old)))
        swaps[:, rows] = coins[:, group]
        yield swaps


def _moving(
    candidates: Sequence[np.ndarray], old: np.ndarray, groups: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the rows where a candidate differs from `old`, their groups, and how many groups."""
    differs = np.any([(new != old).reshape(len(old), -1).any(axis=1) for new in candidates], axis=0)
    rows = np.flatnonzero(differs)
    own = rows if groups is None else groups[rows]
    different, group = np.unique(own, return_inverse=True)
    return rows, group, len(different)


def _cells(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each row's cell of the confusion matrix, one-hot, [N, K · K]."""
    classes = outputs.shape[1]
    return np.eye(classes**2)[labels.astype(np.int64) * classes + outputs.argmax(axis=1)]


def _moments(outputs: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return each row's terms of the three sums that make a correlation, [N, 3]."""
    return np.stack([outputs, outputs**2, outputs * label], axis=1)


def _correlation(sums: np.ndarray, rows: int) -> np.ndarray:
    """Correlations [B] with standardised labels from sums [B, 3]; 0 where outputs are constant."""
    total, squares, products = sums.T
    variance = squares / rows - (total / rows) ** 2
    constant = variance < _SAME
    return np.where(constant, 0.0, products / rows / np.sqrt(np.where(constant, 1.0, variance)))


def _without_each(
    outputs: np.ndarray, labels: np.ndarray, rows: np.ndarray | None = None
) -> np.ndarray:
    """Correlations without each of the rows; 0 where one side is constant.

    Args:
        outputs: [N], or [B, N] for each of the rows that are left out.
        labels: the same.
        rows: [B] which are left out; None: all.
    """
    count = outputs.shape[-1]
    rows = np.arange(count) if rows is None else rows
    at = (np.arange(len(rows)), rows) if outputs.ndim == 2 else rows
    x, y, xx, yy, xy = (
        part.sum(axis=-1) - part[at]
        for part in (outputs, labels, outputs**2, labels**2, outputs * labels)
    )
    left = count - 1
    spreads = (xx - x**2 / left) / left, (yy - y**2 / left) / left
    constant = np.minimum(*spreads) < _SAME
    product = np.where(constant, 1.0, spreads[0] * spreads[1])
    return np.where(constant, 0.0, (xy - x * y / left) / left / np.sqrt(product))


def _ranks_without(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the ranks of N values without each of B rows, [B, N]; centred, within 1 of 0."""
    from scipy.stats import rankdata  # importing it takes a second, and few commands need it

    gone = values[rows][:, None]
    ranks = rankdata(values) - (values > gone) - 0.5 * (values == gone)
    return (ranks - len(values) / 2) / len(values)


def _standardised(values: np.ndarray) -> np.ndarray:
    """Return the values with mean 0 and variance 1; zeros if all are equal."""
    values = np.asarray(values, np.float64)
    if np.ptp(values) == 0:  # their mean may be off by a last digit
        return np.zeros_like(values)
    centered = values - values.mean()
    return centered / centered.std()


def _ranked(values: np.ndarray) -> np.ndarray:
    """Return the values' ranks, standardised; equal values share a rank."""
    from scipy.stats import rankdata  # importing it takes a second, and few commands need it

    return _standardised(rankdata(values).reshape(np.shape(values)))
