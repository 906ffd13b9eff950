"""Statistics of tuned methods: which is better, when each was tuned several times by one budget.

A *unit* of a method is a search whose winner on the selection rows is trained once more with a new
seed: its score on the held-out rows. A method has J of them, which differ by the luck of searches
and of seeds. All units of all methods are scored on the same held-out rows, which are a sample too.
So the mean lead of one method over another has a variance of two parts:

- searches, G. s² / J is the variance of a method's mean, and G the sum of two methods'. With four
  methods or more, a s² of few units that happens to be small is raised to the mean of all.
- rows, R. How the two methods' mean outputs differ from row to row says how the lead would differ
  on other rows. What units of one method differ by in a row is in G already and is subtracted.

t = lead / √(G + R), two-sided, with the degrees of freedom of Satterthwaite ("An Approximate
Distribution of Estimates of Variance Components", 1946); over pairs Holm's correction ("A Simple
Sequentially Rejective Multiple Test Procedure", 1979). With two or three methods a quarter of the
degrees of freedom beyond those of one method is given up: if one of two methods scatters more, so
few units seldom show it, and the formula then gives too many. benchmarks/luck simulates how often
equal methods are told apart by it, and with which power others are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

import numpy as np
from scipy import optimize, special

from orchestrator.selection.significance import Metric

LEVEL = 0.05
"""Level of the tests, of all pairs together."""
POWER = 0.8
"""Power with which a difference counts as shown."""
LOOKS = {3: 0.01, 4: 0.01, 5: 0.01, 6: 0.02}
"""Searches of each method after which a comparison in steps looks, and the level spent there."""
HOPELESS = 0.1
"""Least chance of a decision by the last look for which more searches are made."""
_POOLED = 4
"""Methods from which on variances of searches are pooled."""
_BELIEVED = 0.75
"""Share of two methods' degrees of freedom beyond those of one that the test keeps. With all of
them equal methods, one of which scatters four times as much, were told apart in .062."""
_DRAWS = 4000
"""Variances over which a power is averaged; they give it to two digits."""
_Freedom = TypeVar("_Freedom", float, np.ndarray)
_ENDLESS = 1e5
"""Degrees of freedom above which Student's distribution is taken for the normal one."""


@dataclass(frozen=True)
class Unit:
    """A method tuned once: its score on the held-out rows, and what each of them adds to it."""

    score: float
    values: np.ndarray
    """[G] of each group of rows; see `values`."""
    rows: int
    """Rows N of which they are made."""
    search: int
    """Number of its search, from 0."""


@dataclass(frozen=True)
class TunedPair:
    """Two tuned methods, the better one first.

    A pair of which one method has fewer than two units, or a score that is no number, is not
    judged: its p is 1 and its interval endless. Among the pairs that share the level it counts.
    """

    better: str
    worse: str
    lead: float
    """Difference of their mean scores; NaN: not judged."""
    by_searches: float
    """Variance of the lead that searches and seeds make, G."""
    by_rows: float
    """Variance of the lead that rows make, R."""
    freedom: float
    """Degrees of freedom of the test."""
    p_value: float
    """Two-sided, of this pair by itself."""
    corrected: float
    """The same, corrected for the number of pairs."""
    low: float
    """Lower end of the lead's interval. Intervals are simultaneous: with probability 1 - level all
    hold at once (Bonferroni). If Holm's method decides a pair, its interval begins at 0 or above,
    and only then."""
    high: float
    """Upper end."""

    @property
    def error(self) -> float:
        """Standard error of the lead."""
        return math.sqrt(self.by_searches + self.by_rows)


@dataclass(frozen=True)
class Spread:
    """How scores vary, as assumed or as in a pilot; from it follows what a plan would show."""

    units: float
    """Variance of the scores of a method's units."""
    rows: float
    """Variance by rows of a lead of two methods, times the number of rows."""


class Standing(Enum):
    """How a pair stands in a comparison in steps."""

    DECIDED = "decided"
    """One is better."""
    CLOSE = "close"
    """They differ by less than what is wanted: the whole interval is within it."""
    HOPELESS = "hopeless"
    """A decision by the last look is so unlikely that searches for it would be wasted."""
    OPEN = "open"
    """More searches are needed."""


@dataclass(frozen=True)
class Looked:
    """What the looks so far say of a pair."""

    pair: TunedPair
    """As the look found it that settled it; if open, as the last one did. `corrected` and the
    interval are of that look, whose level is in `LOOKS`."""
    standing: Standing
    searches: int
    """Searches of a method at that look; 0: there was none."""


def unit_of(
    metric: Metric,
    outputs: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray | None,
    search: int,
) -> Unit:
    """Return the unit of a search that has these outputs [N, C] on the held-out rows.

    Args:
        metric: as of `values`, as the next three are.
        outputs: [N, C].
        labels: [N].
        groups: [N] or None.
        search: its number, from 0.
    """
    own = values(metric, outputs, labels, groups)
    return Unit(float(metric(outputs, labels)), own, len(labels), search)


def first_searches(units: Mapping[str, Sequence[Unit]], searches: int) -> dict[str, list[Unit]]:
    """Return the units of the first so many searches of each method; a lost one has none."""
    return {name: [unit for unit in own if unit.search < searches] for name, own in units.items()}


def values(
    metric: Metric, outputs: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return what each group of rows adds to a score: the sum of its rows' jackknife pseudo-values.

    A row's pseudo-value is N · score - (N - 1) · score without the row (Tukey, "Bias and
    Confidence in Not-Quite Large Samples", 1958). Their mean is about the score and exactly so for
    accuracy, whose pseudo-values are 1 for a right answer and 0 for a wrong one.

    Args:
        metric: as `primary_metric` returns it.
        outputs: [N, C].
        labels: [N].
        groups: [N] a number for each row, the same for rows that belong together; None: all rows
            are independent.
    """
    rows = len(labels)
    score = float(metric(outputs, labels))
    if rows == 1:
        return np.array([score])
    own = rows * score - (rows - 1) * metric.without_each(outputs, labels)
    if groups is None:
        return own
    _, group = np.unique(groups, return_inverse=True)
    return np.bincount(group.ravel(), weights=own)


def judge_pairs(units: Mapping[str, Sequence[Unit]], level: float = LEVEL) -> list[TunedPair]:
    """Return every pair of methods, tested on their units.

    Args:
        units: of each method, by its name; all on the same rows.
        level: of all pairs together; the intervals are made for it.

    Raises:
        ValueError: units differ in their rows.
    """
    sizes = {(one.rows, len(one.values)) for own in units.values() for one in own}
    if len(sizes) > 1:
        raise ValueError(f"units of one set of rows are needed; rows and groups are {sizes}")
    judged = _judged(units)
    tests = {pair: _Test.of(judged, *pair) for pair in itertools.combinations(judged, 2)}
    pairs = list(itertools.combinations(units, 2))
    corrected = holm([tests[pair].p_value if pair in tests else 1.0 for pair in pairs])
    return [
        tests[pair].found(*pair, fixed, level, len(pairs)) if pair in tests else _unjudged(*pair)
        for pair, fixed in zip(pairs, corrected, strict=True)
    ]


def _unjudged(one: str, other: str) -> TunedPair:
    nan, inf = math.nan, math.inf
    return TunedPair(one, other, nan, nan, nan, nan, 1.0, 1.0, -inf, inf)


def _judged(units: Mapping[str, Sequence[Unit]]) -> dict[str, _Scatter]:
    """Return how the units of each method scatter that can be judged."""
    return {name: _Scatter.of(own) for name, own in units.items() if _can_be_judged(own)}


def _can_be_judged(units: Sequence[Unit]) -> bool:
    return len(units) > 1 and all(
        math.isfinite(one.score) and bool(np.isfinite(one.values).all()) for one in units
    )


@dataclass(frozen=True)
class _Test:
    """The test of a pair."""

    lead: float
    by_searches: float
    by_rows: float
    freedom: float

    @classmethod
    def of(cls, methods: Mapping[str, _Scatter], one: str, other: str) -> _Test:
        """Return the test of two of the methods; the others help to know what searches vary."""
        a, b = methods[one], methods[other]
        rows = float(((a.values - b.values) ** 2).sum()) / a.rows**2
        by_rows = max(0.0, rows - a.own_rows - b.own_rows)
        searches = a.of_mean + b.of_mean
        if len(methods) >= _POOLED:
            mean = float(np.mean([each.of_mean * each.units for each in methods.values()]))
            searches = max(searches, mean * (1 / a.units + 1 / b.units))
            known = sum(each.units - 1 for each in methods.values())
            freedom = known * _ratio(searches + by_rows, searches) ** 2
        else:
            doubt = sum(each.of_mean**2 / (each.units - 1) for each in (a, b))
            least = min(a.units, b.units) - 1
            freedom = _believed(_ratio((searches + by_rows) ** 2, doubt), least)
        return cls(a.score - b.score, searches, by_rows, freedom)

    @property
    def error(self) -> float:
        return math.sqrt(self.by_searches + self.by_rows)

    @property
    def p_value(self) -> float:
        if not self.error:  # all outputs are the same
            return 1.0
        return min(1.0, 2 * float(_student(-abs(self.lead) / self.error, self.freedom)))

    def found(self, one: str, other: str, corrected: float, level: float, pairs: int) -> TunedPair:
        """Return the pair with its interval."""
        lead, reach = abs(self.lead), _critical(level / pairs, self.freedom) * self.error
        low = max(0.0, lead - reach) if corrected <= level else min(0.0, lead - reach)
        names = (one, other) if self.lead >= 0 else (other, one)
        return TunedPair(
            *names, lead, self.by_searches, self.by_rows, self.freedom,
            self.p_value, corrected, low, lead + reach,
        )  # fmt: skip


@dataclass(frozen=True)
class _Scatter:
    """How a method's units scatter."""

    units: int
    rows: int
    score: float
    """Mean of the units' scores."""
    values: np.ndarray
    """[G] mean of the units' values."""
    own_rows: float
    """Variance of the mean score that follows from rows in which the units differ."""
    seen: float
    """Variance of the mean score, as the units' scores have it."""

    @property
    def of_mean(self) -> float:
        """Variance of the mean score over other searches and seeds.

        Units that answer rows differently can score the same by chance, never by necessity: what
        their answers make likely is the least that is believed.
        """
        return max(self.seen, self.own_rows)

    @classmethod
    def of(cls, units: Sequence[Unit]) -> _Scatter:
        each = np.stack([one.values for one in units])
        count, rows = len(units), units[0].rows
        mean = each.mean(axis=0)
        own = float(((each - mean) ** 2).sum()) / ((count - 1) * count * rows**2)
        scores = [one.score for one in units]
        seen = float(np.var(scores, ddof=1)) / count
        return cls(count, rows, float(np.mean(scores)), mean, own, seen)


def shows(units: Mapping[str, Sequence[Unit]], level: float = LEVEL, power: float = POWER) -> float:
    """Return the difference that a usual pair of methods shows with a power of 80 %.

    It is that of the first step of Holm's method, for the mean variances of methods and pairs.
    NaN: no pair can be judged.
    """
    promise = _promise_of(units, level)
    return promise.shown(power) if promise else math.nan


def power_at(units: Mapping[str, Sequence[Unit]], difference: float, level: float = LEVEL) -> float:
    """Return the power with which a usual pair of methods shows a difference; as `shows`."""
    promise = _promise_of(units, level)
    return promise.power(difference) if promise else math.nan


def spread_of(units: Mapping[str, Sequence[Unit]]) -> Spread:
    """Return the spread that a pilot's units have, the mean over methods and over pairs.

    Raises:
        ValueError: fewer than two methods can be judged.
    """
    judged = _judged(units)
    if len(judged) < 2:
        raise ValueError("a pilot of two methods with two units each is needed")
    seen, own = (
        float(np.mean([getattr(each, part) * each.units for each in judged.values()]))
        for part in ("seen", "own_rows")
    )
    tests = [_Test.of(judged, *pair) for pair in itertools.combinations(judged, 2)]
    rows = next(iter(judged.values())).rows
    return Spread(max(seen, own), float(np.mean([one.by_rows for one in tests])) * rows)


def plan_shows(
    spread: Spread,
    methods: int,
    searches: int,
    rows: int,
    level: float = LEVEL,
    power: float = POWER,
) -> float:
    """Return the difference that a plan would show with a power of 80 %, before its start.

    For a comparison in steps `searches` and `level` are those of the last look; looks before it
    add a little power.

    Raises:
        ValueError: fewer than two methods or two searches.
    """
    if methods < 2 or searches < 2:
        raise ValueError(f"{methods} methods and {searches} searches came, at least 2 are needed")
    level /= math.comb(methods, 2)
    return Promise(spread, methods, searches, rows, level).shown(power)


def _promise_of(units: Mapping[str, Sequence[Unit]], level: float) -> Promise | None:
    """Return the power of a usual pair of these units; None: no pair can be judged.

    A variance that is estimated with few degrees of freedom is below the true one more often than
    above. It is divided by the median of such estimates.
    """
    judged = _judged(units)
    if len(judged) < 2:
        return None
    searches = round(float(np.mean([each.units for each in judged.values()])))
    freedom = sum(each.units - 1 for each in judged.values())
    seen = spread_of(units)
    spread = replace(seen, units=seen.units * freedom / float(special.chdtri(freedom, 0.5)))
    rows = next(iter(judged.values())).rows
    return Promise(spread, len(judged), searches, rows, level / math.comb(len(units), 2))


def looked(
    units: Mapping[str, Sequence[Unit]], wanted: float, looks: Mapping[int, float] = LOOKS
) -> list[Looked]:
    """Return how each pair stands after the units so far, in the order of `judge_pairs`.

    Every look whose searches are there is made again, in order, on the units that it had, and a
    pair that it settles stays settled. Within a look Holm's method corrects for all pairs, settled
    ones too, since data chose which these are. So the probability that any two equal methods are
    ever told apart is at most the sum of the looks' levels, and so is the probability that any two
    are called close that are not.

    Args:
        units: of each method in the order of its searches; a method of which all pairs are settled
            needs no more.
        wanted: the difference that one wants to see.
        looks: searches of a method at each look, and the look's level.
    """
    names = list(itertools.combinations(units, 2))
    found: dict[tuple[str, str], Looked] = {}
    for searches, level in sorted(looks.items()):
        now = judge_pairs(first_searches(units, searches), level)
        for names_of, pair in zip(names, now, strict=True):
            before = found.setdefault(names_of, Looked(pair, Standing.OPEN, 0))
            had = all(any(one.search >= searches - 1 for one in units[name]) for name in names_of)
            if had and before.standing is Standing.OPEN:
                standing = _standing(pair, searches, wanted, looks, len(names))
                found[names_of] = Looked(pair, standing, searches)
    return list(found.values())


def _standing(
    pair: TunedPair, searches: int, wanted: float, looks: Mapping[int, float], pairs: int
) -> Standing:
    """Return how a pair stands at a look."""
    last = max(looks)
    if pair.corrected <= looks[searches]:
        return Standing.DECIDED
    if pair.high < wanted:
        return Standing.CLOSE
    if searches == last or not math.isfinite(pair.error):
        return Standing.HOPELESS
    likely = chance(pair, searches, last, looks[last] / pairs) if pair.error else 0.0
    return Standing.HOPELESS if likely < HOPELESS else Standing.OPEN


def chance(pair: TunedPair, searches: int, last: int, level: float) -> float:
    """Return the predictive probability that the last look decides a pair.

    Rows stay the same, so that only searches to come can move the lead: by t, times the root of
    G now less G then. Looks between are left out.
    """
    then = pair.by_searches * searches / last
    moved = math.sqrt(pair.by_searches - then)
    growth = (then + pair.by_rows) / pair.error**2 * last / searches
    freedom = pair.freedom * growth**2 * (last - 1) / (searches - 1)
    needed = _critical(level, freedom) * math.sqrt(then + pair.by_rows)
    if not moved:
        return float(pair.lead > needed)
    ends = (pair.lead - needed) / moved, (-pair.lead - needed) / moved
    return float(sum(_student(end, pair.freedom) for end in ends))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method, in their order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    found, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        found[index] = highest
    return found


class Promise:
    """The power that the test of a usual pair has at a difference.

    It is averaged over variances of searches that the test may estimate, with the degrees of
    freedom that each gives. The noncentral t distribution alone promised .80 where .71 was found.

    Args:
        spread: the true one.
        methods: that are judged.
        searches: of each.
        rows: held out.
        level: of the test.
    """

    def __init__(
        self, spread: Spread, methods: int, searches: int, rows: int, level: float
    ) -> None:
        own, by_rows, known = spread.units / searches, spread.rows / rows, searches - 1
        self._error = math.sqrt(2 * own + by_rows)
        drawn = np.random.default_rng(0).chisquare(known, (methods, _DRAWS)) / known * own
        found, squares = drawn[0] + drawn[1], (drawn[0] ** 2 + drawn[1] ** 2) / known
        if methods >= _POOLED:
            found = np.maximum(found, 2 * drawn.mean(axis=0))
            squares = found**2 / (known * methods)
        total = found + by_rows
        # Without luck of searches they would be endless.
        freedom = (
            total**2 / np.maximum(squares, total**2 / (2 * _ENDLESS)) if self._error else total
        )
        if methods < _POOLED:
            freedom = _believed(freedom, known)
        self._needed = -special.stdtrit(freedom, level / 2) * np.sqrt(total)

    def power(self, difference: float) -> float:
        """Return the power at a difference."""
        if not self._error:
            return float(difference != 0)
        beyond = [
            special.ndtr((at - self._needed) / self._error) for at in (difference, -difference)
        ]
        return float(np.mean(beyond[0] + beyond[1]))

    def shown(self, power: float) -> float:
        """Return the difference at which the power is this."""
        if not self._error:
            return 0.0
        high = self._error
        while self.power(high) < power:
            high *= 2
        return float(optimize.brentq(lambda at: self.power(at) - power, 0.0, high))


def _believed(freedom: _Freedom, least: int) -> _Freedom:
    """Return degrees of freedom of two methods less a share of what is beyond those of one."""
    return least + _BELIEVED * (freedom - least)


def _critical(level: float, freedom: float) -> float:
    """Return the t that is exceeded, on one side or the other, with probability `level`."""
    if freedom > _ENDLESS:
        return float(-special.ndtri(level / 2))
    return float(-special.stdtrit(freedom, level / 2))


def _student(t: float, freedom: float) -> float:
    """Return the probability of at most t."""
    return float(special.ndtr(t) if freedom > _ENDLESS else special.stdtr(freedom, t))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.inf
