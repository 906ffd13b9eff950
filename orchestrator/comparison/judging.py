"""Judging: what the winners of a comparison score on held-out rows, and which of them differ.

Each method's best configuration has run on fresh seeds. Two methods are compared by the mean of
their scores over the seeds, which could have been another for two reasons: other rows, and other
seeds.

Rows: if two methods were equally good, their outputs on a row could be swapped, for all seeds at
once. So groups of rows are swapped at random, many times; the leads after that have the spread of a
lead that is due to rows alone, and p is how often one is as large as the observed one.

Seeds: the variance of a mean over K seeds is s² / K. With that of the rows it is the variance of
the lead, and t = lead / its root has as many degrees of freedom as Welch's test gives the seeds.

The larger p of the two counts: equal methods of 3 seeds that differ by chance would by rows alone
be told apart in up to 7 of 10 cases (simulated, 10,000 rows). Several pairs are tested, so p is
corrected by Holm's method ("A Simple Sequentially Rejective Multiple Test Procedure", 1979).
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from orchestrator.comparison.cost import step_bytes
from orchestrator.comparison.units import holm
from orchestrator.selection.collapsing import Loaded
from orchestrator.selection.significance import PERMUTATIONS, Metric, primary_metric, swaps_of
from orchestrator.spec.config import Sweep
from orchestrator.spec.trial import Trial
from orchestrator.spec.values import Point
from orchestrator.state.checkpoint_store import best_adapter
from orchestrator.state.event_log import read_event_log
from orchestrator.state.workspace import Workspace
from tinyattn.batching.batches import groups_of, labels_of
from tinyattn.errors import TinyAttnError
from tinyattn.training.model_cache import ModelCache

LEVEL = 0.05
"""Level of the tests, of all pairs together."""
_SAME = 1e-9


@dataclass(frozen=True)
class Judged:
    """A method's best configuration on fresh seeds."""

    name: str
    parameters: int
    """Parameters without the classifier."""
    seeds: list[int]
    """Fresh seeds that completed."""
    select: list[float]
    """Score of each seed on the selection rows."""
    heldout: list[float]
    """Score of each seed on the rows that chose nothing; on the selection rows where there are
    none, as by protocol `paper`."""
    outputs: list[np.ndarray]
    """Outputs of each seed on these rows, [N, C]."""
    seconds: float
    """Mean seconds of a seed's training."""
    step_bytes: int | None
    """Memory of a training step beside the PLM; None: not measured on this machine."""
    row_seconds: float
    """Seconds of a prediction, in passes of many rows."""
    trials: int
    """Trials of its search that ended."""
    evaluations: int
    """Evaluations of its search."""
    sweep: str
    """Its sweep."""
    is_reference: bool
    """Whether its size is its own, so that it stands beside the match."""
    settings: Point
    """What its search found, by dotted key."""

    @property
    def mean(self) -> float:
        """Mean score over the seeds."""
        return statistics.mean(self.heldout)

    @property
    def std(self) -> float:
        """Standard deviation of the score over the seeds; NaN with a single one."""
        return statistics.stdev(self.heldout) if len(self.heldout) > 1 else math.nan

    def of_seeds(self, seeds: Sequence[int]) -> Judged:
        """Return what these seeds gave."""
        kept = [self.seeds.index(seed) for seed in seeds]
        return replace(
            self,
            seeds=[*seeds],
            select=[self.select[place] for place in kept],
            heldout=[self.heldout[place] for place in kept],
            outputs=[self.outputs[place] for place in kept],
        )


@dataclass(frozen=True)
class Pair:
    """Two methods of the match, the better one first."""

    better: str
    worse: str
    lead: float
    """Difference of their mean scores."""
    p_value: float
    """Two-sided, of this pair by itself."""
    corrected: float
    """The same, corrected for the number of pairs."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    metric: str
    rows: int
    """Rows that judge."""
    judges: str
    """Which rows these are: `held-out` or `selection`."""
    methods: list[Judged]
    pairs: list[Pair]
    shows: float
    """Least difference of a usual pair (by the median of standard errors) that so many rows and
    seeds show in four of five cases, at the level."""
    left_out: list[int]
    """Seeds that some method did not complete, so that none is judged by them."""


def judge(
    sweeps: Mapping[str, Sweep],
    best: Mapping[str, list[Trial]],
    references: Collection[str],
    workspace: Workspace,
    say: Callable[[str], None],
) -> Comparison:
    """Judge the winners of a comparison, whose searches and fresh seeds have ended.

    Args:
        sweeps: by the names of their methods.
        best: the trials of each method's best configuration, one for each fresh seed.
        references: names of methods that stand beside the match.
        workspace: where they are kept.
        say: takes progress messages.

    Raises:
        TinyAttnError: no seed completed for all methods, or an adapter is gone.
    """
    model_cache = ModelCache(workspace.data_dir)
    first = next(iter(sweeps.values()))
    data = model_cache.data(first.train)
    rows = data.heldout or data.select
    metric, labels, groups = primary_metric(data.task), labels_of(rows), groups_of(rows)
    found: list[Judged] = []
    for number, (name, sweep) in enumerate(sweeps.items(), 1):
        say(f"judging {name}, method {number} of {len(sweeps)}")
        is_reference = name in references
        found.append(_judged(name, sweep, best[name], workspace, model_cache, metric, is_reference))
    every = sorted({seed for one in found for seed in one.seeds})
    shared = [seed for seed in every if all(seed in one.seeds for one in found)]
    if not shared:
        raise TinyAttnError("no fresh seed completed for all methods; the runs in MLflow say why")
    found = [one.of_seeds(shared) for one in found]
    match = [one for one in found if not one.is_reference]
    tests = [
        (one, other, *tested(one, other, metric, labels, groups))
        for one, other in itertools.combinations(match, 2)
    ]
    corrected = holm([p for _, _, p, _ in tests])
    pairs = [
        Pair(*_in_order(one, other), abs(one.mean - other.mean), p, fixed)
        for (one, other, p, _), fixed in zip(tests, corrected, strict=True)
    ]
    errors = [error for _, _, _, error in tests]
    # A power of 80 % at the first step of Holm's method.
    needed = norm.ppf(1 - LEVEL / 2 / max(1, len(tests))) + norm.ppf(0.8)
    return Comparison(
        data.task.metrics[0],
        len(labels),
        "held-out" if data.heldout is not None else "selection",
        found,
        pairs,
        float(needed) * statistics.median(errors) if errors else 0.0,
        [seed for seed in every if seed not in shared],
    )


def _judged(
    name: str,
    sweep: Sweep,
    trials: list[Trial],
    workspace: Workspace,
    model_cache: ModelCache,
    metric: Metric,
    is_reference: bool,
) -> Judged:
    folder = workspace.path_of(sweep.name)
    group = sorted(trials, key=lambda trial: int(str(trial.params["seed"])))
    store = workspace.checkpoints(sweep.name)
    outputs, scores, seconds = [], [], 0.0
    for trial in group:
        adapter = best_adapter(store, trial)
        if adapter is None:
            raise TinyAttnError(f"{name}: the adapter of {trial.name} is not there")
        config = sweep.trial_config(trial.params)
        data = model_cache.data(config)
        rows = data.heldout or data.select
        with Loaded(adapter, config, model_cache) as loaded:
            parameters = loaded.counts().adapter
            begin = time.perf_counter()
            outputs.append(loaded.outputs(rows))
            seconds += time.perf_counter() - begin
        scores.append(metric(outputs[-1], labels_of(rows)))
    searched = [t for t in read_event_log(folder / "search.jsonl").values() if t.outcome]
    return Judged(
        name,
        parameters,
        [int(str(trial.params["seed"])) for trial in group],
        [trial.last.best_score for trial in group],
        scores,
        outputs,
        statistics.mean(trial.seconds for trial in group),
        step_bytes(sweep.trial_config(group[0].params), model_cache),
        seconds / sum(map(len, outputs)),
        len(searched),
        sum(trial.evaluations for trial in searched),
        sweep.name,
        is_reference,
        {key: value for key, value in group[0].params.items() if key != "seed"},
    )


def _in_order(one: Judged, other: Judged) -> tuple[str, str]:
    return (one.name, other.name) if one.mean >= other.mean else (other.name, one.name)


def tested(
    one: Judged, other: Judged, metric: Metric, labels: np.ndarray, groups: np.ndarray | None
) -> tuple[float, float]:
    """Return the two-sided p of a pair, and the standard error of its lead.

    Both have the same seeds; a permutation swaps a group of rows for all of them.
    """
    seeds = list(zip(one.outputs, other.outputs, strict=True))
    lead = statistics.mean(metric(a, labels) - metric(b, labels) for a, b in seeds)
    leads = np.concatenate(list(_leads(seeds, metric, labels, groups)))
    as_large = np.abs(leads) >= abs(lead) - _SAME
    as_large |= ~np.isfinite(leads)  # counts against a difference
    by_rows = (1 + int(as_large.sum())) / (1 + len(leads))
    rows = float(np.nanmean(leads**2)) if len(leads) else 0.0
    if len(seeds) < 2:  # nothing is known of other seeds
        return by_rows, math.sqrt(rows)
    own = [statistics.variance(each.heldout) / len(seeds) for each in (one, other)]
    error = math.sqrt(rows + sum(own))
    if not error or not sum(own):
        return by_rows, error
    freedom = (rows + sum(own)) ** 2 / (sum(part**2 for part in own) / (len(seeds) - 1))
    by_both = float(2 * student.sf(abs(lead) / error, freedom))
    return max(by_rows, by_both), error


def _leads(
    seeds: Sequence[tuple[np.ndarray, np.ndarray]],
    metric: Metric,
    labels: np.ndarray,
    groups: np.ndarray | None,
) -> Iterator[np.ndarray]:
    """Yield the mean lead over seeds after permutations, a few at a time."""
    stacked = [np.stack([pair[side] for pair in seeds], axis=1) for side in (0, 1)]
    for swaps in swaps_of([stacked[0]], stacked[1], groups, PERMUTATIONS):
        yield np.mean([metric.leads(a, b, labels, swaps) for a, b in seeds], axis=0)
