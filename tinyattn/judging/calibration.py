"""Calibration: whether answers are right as often as their probabilities say.

Expected calibration error with bins of equal width, and the temperature that divides the logits:
Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax

BINS = 15
_SMALLEST = float(np.finfo(np.float64).tiny)
_RANGE = (1e-3, 1e3)
"""Temperatures beyond which there is no best one: answers are sure, or all labels alike."""


@dataclass(frozen=True)
class Bin:
    """Rows whose answers have probabilities above `low`, and of `high` at most."""

    low: float
    high: float
    rows: int
    probability: float | None
    """Mean probability of their answers; None: no rows."""
    accuracy: float | None
    """Share of them that is right; None: no rows."""


@dataclass(frozen=True)
class Calibration:
    """How far probabilities are from the shares of right answers."""

    ece: float
    """Mean over rows of the distance between a bin's probability and its accuracy."""
    nll: float
    """Mean negative log-likelihood of the labels, in nats."""
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class Temperature:
    """The number that logits are divided by so that other rows' labels are likeliest."""

    value: float | None
    """None: no number is the best."""
    rows: int
    """Rows that it was fitted on."""
    left_out: int
    """Rows of the same file that are among the judged ones, and were not fitted on."""
    after: Calibration | None
    """Of the judged rows, with their logits divided by it."""
    reason: str = ""
    """Why there is no value."""


def calibration(probabilities: np.ndarray, labels: np.ndarray) -> Calibration:
    """Return the calibration of answers; the answer is the most probable class.

    Args:
        probabilities: [N, K], each row's sum is 1.
        labels: [N] class ids.
    """
    surest, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    edges = np.linspace(0, 1, BINS + 1)
    own = np.clip(np.searchsorted(edges, surest, side="left") - 1, 0, BINS - 1)
    bins, ece = [], 0.0
    for number in range(BINS):
        rows = own == number
        count = int(rows.sum())
        told = (float(surest[rows].mean()), float(right[rows].mean())) if count else (None, None)
        bins.append(Bin(float(edges[number]), float(edges[number + 1]), count, *told))
        if count:
            ece += count / len(labels) * abs(surest[rows].mean() - right[rows].mean())
    likely = probabilities[np.arange(len(labels)), labels]
    nll = -np.log(np.maximum(likely, _SMALLEST)).mean()
    return Calibration(float(ece), float(nll), tuple(bins))


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Return probabilities [N, K] whose logits are divided by a temperature."""
    # Their logarithms are the logits but for a number a row, which softmax takes away.
    return softmax(np.log(np.maximum(probabilities, _SMALLEST)) / temperature, axis=1)


def best_temperature(probabilities: np.ndarray, labels: np.ndarray) -> float | str:
    """Return the temperature of the least negative log-likelihood, or why there is none.

    Args:
        probabilities: [N, K] of rows that are not to be judged.
        labels: [N] their class ids.
    """
    logits = np.log(np.maximum(probabilities, _SMALLEST))
    own = logits[np.arange(len(labels)), labels]

    def slope(log_temperature: float) -> float:
        """Derivative of the loss by 1 / temperature, in which it is convex: it rises to the right,
        and so falls with the temperature."""
        scaled = logits / math.exp(log_temperature)
        shares = np.exp(scaled - logsumexp(scaled, axis=1, keepdims=True))
        return float(((shares * logits).sum(axis=1) - own).mean())

    low, high = (math.log(end) for end in _RANGE)
    if (own >= logits.max(axis=1)).all() or slope(low) <= 0:
        return "every row is answered right, so the smaller the temperature the better"
    if slope(high) >= 0:
        return "the answers tell no more than chance, so the larger the temperature the better"
    return math.exp(brentq(slope, low, high, xtol=1e-12))
