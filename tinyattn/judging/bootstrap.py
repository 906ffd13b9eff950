"""Intervals of scores by the bootstrap over units: rows, or groups of rows that belong together.

The percentile interval of Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter
13. A sample draws as many units as there are, with replacement; a row weighs as often as its unit
was drawn. Draws are the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

DRAWS = 1000
"""Samples; an end of the interval then moves by about a fifteenth of its width by chance."""
LEVEL = 0.95
_MOST_UNDEFINED = 0.05
"""Share of samples that may leave a score undefined."""
_CELLS = 2**22
"""Weights of one batch of samples, which bound the memory."""

Scorer = Callable[[np.ndarray], Mapping[str, np.ndarray]]
"""Weights of rows in each of B samples, [B, N], to scores by name, [B]; NaN: undefined."""


@dataclass(frozen=True)
class Measure:
    """A score of rows with its interval."""

    name: str
    """As in `accuracy`."""
    value: float | None
    """None: undefined."""
    low: float | None = None
    """Lower end of the 95 % interval; None: it has none."""
    high: float | None = None
    """Upper end."""
    is_share: bool = True
    """Whether it is a share of 1, and not in units of its own."""
    reason: str = ""
    """Why there is no value, or no interval."""


def samples(units: np.ndarray, draws: int = DRAWS) -> Iterator[np.ndarray]:
    """Yield the weights of rows in samples of units, [B, N] each, `draws` samples in all.

    Args:
        units: [N] number of each row's unit, any integers.
        draws: number of samples.
    """
    _, own = np.unique(units, return_inverse=True)
    count, luck = int(own.max()) + 1, np.random.default_rng(0)
    at_once = max(1, min(draws, _CELLS // len(own)))
    for begin in range(0, draws, at_once):
        number = min(at_once, draws - begin)
        drawn = (
            np.bincount(luck.integers(0, count, count), minlength=count) for _ in range(number)
        )
        yield np.stack(list(drawn))[:, own]


def measures(
    scorer: Scorer,
    units: np.ndarray,
    reasons: Mapping[str, str],
    *,
    shares: Callable[[str], bool] = lambda _: True,
    draws: int = DRAWS,
) -> tuple[Measure, ...]:
    """Return the scores of rows with their intervals.

    Args:
        scorer: computes them.
        units: [N] number of each row's unit.
        reasons: name → why a score is undefined, where it is.
        shares: whether a score, by name, is a share of 1.
        draws: samples of the bootstrap.
    """
    whole = scorer(np.ones((1, len(units)), np.int64))
    several = len(np.unique(units)) > 1
    drawn = [scorer(weights) for weights in samples(units, draws)] if several else []
    found = []
    for name, value in whole.items():
        score = float(value[0])
        if math.isnan(score):
            found.append(
                Measure(name, None, is_share=shares(name), reason=reasons.get(name, "0 / 0"))
            )
            continue
        if not several:
            low, high, why = None, None, "one row, or one group of rows, tells of no other"
        else:
            low, high, why = _ends(np.concatenate([part[name] for part in drawn]))
        found.append(Measure(name, score, low, high, shares(name), why))
    return tuple(found)


def _ends(drawn: np.ndarray) -> tuple[float | None, float | None, str]:
    """Return the ends of an interval, and why it has none."""
    known = drawn[~np.isnan(drawn)]
    if len(known) < (1 - _MOST_UNDEFINED) * len(drawn):
        share = 1 - len(known) / len(drawn)
        return None, None, f"undefined in {share:.0%} of the samples: too few rows of a kind"
    outside = 50 * (1 - LEVEL)
    low, high = np.percentile(known, [outside, 100 - outside])
    if known.min() == known.max():  # as of 20 rows that are all right: that is not certainty
        return None, None, "the same in every sample, which says nothing of other rows"
    return float(low), float(high), ""
