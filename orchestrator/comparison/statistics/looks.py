"""Looks of a comparison in steps: which pairs are settled after so many searches.

The error of all looks together is that of one test (`LOOKS`): looking again misleads no more often.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from orchestrator.comparison.statistics.student import critical, probability
from orchestrator.comparison.statistics.units import TunedPair, Unit, first_searches, judge_pairs

LOOKS = {3: 0.01, 4: 0.01, 5: 0.01, 6: 0.02}
"""Searches of each method after which a comparison in steps looks, and the level spent there."""
HOPELESS = 0.1
"""Least chance of a decision by the last look for which more searches are made."""


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
    needed = critical(level, freedom) * math.sqrt(then + pair.by_rows)
    if not moved:
        return float(pair.lead > needed)
    ends = (pair.lead - needed) / moved, (-pair.lead - needed) / moved
    return float(sum(probability(end, pair.freedom) for end in ends))
