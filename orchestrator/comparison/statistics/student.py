"""Student's t distribution with any degrees of freedom, and Holm's correction for many tests."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import special

ENDLESS = 1e5
"""Degrees of freedom above which Student's distribution is taken for the normal one."""


def critical(level: float, freedom: float) -> float:
    """Return the t that is exceeded, on one side or the other, with probability `level`."""
    if freedom > ENDLESS:
        return float(-special.ndtri(level / 2))
    return float(-special.stdtrit(freedom, level / 2))


def probability(t: float, freedom: float) -> float:
    """Return the probability of at most t."""
    return float(special.ndtr(t) if freedom > ENDLESS else special.stdtr(freedom, t))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's method, in their order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    found, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        found[index] = highest
    return found
