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
    """Rows whose answers have probabilities above `low`, and of `high` at most.

    Where rows have any number of labels, it counts a row once for each label of the task.
    """

    low: float
    high: float
    rows: int
    probability: float | None
    """Mean probability of their answers, or of the label; None: no rows."""
    accuracy: float | None
    """Share of them that is right, or has the label; None: no rows."""


@dataclass(frozen=True)
class Calibration:
    """How far probabilities are from the shares of right answers."""

    ece: float
    """Mean over rows, or over rows and labels, of the distance between a bin's probability and its
    accuracy."""
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
    return _binned(surest, right, probabilities[np.arange(len(labels)), labels])


def calibration_of_sets(pairs: np.ndarray, labels: np.ndarray) -> Calibration:
    """Return the calibration of the probabilities of labels of which rows have any number.

    Args:
        pairs: [M, 2] probabilities that a row lacks a label and that it has it, of each row and
            label; their sum is 1.
        labels: [M] 1 where it has it, else 0.
    """
    return _binned(pairs[:, 1], labels > 0, pairs[np.arange(len(labels)), labels])


def _binned(told: np.ndarray, comes_true: np.ndarray, likely: np.ndarray) -> Calibration:
    """Return the calibration of probabilities of events, given which came true, all [M].

    `likely` has the probabilities of what came.
    """
    edges = np.linspace(0, 1, BINS + 1)
    own = np.clip(np.searchsorted(edges, told, side="left") - 1, 0, BINS - 1)
    bins, ece = [], 0.0
    for number in range(BINS):
        rows, ends = own == number, (float(edges[number]), float(edges[number + 1]))
        if not (count := int(rows.sum())):
            bins.append(Bin(*ends, 0, None, None))
            continue
        mean, share = float(told[rows].mean()), float(comes_true[rows].mean())
        bins.append(Bin(*ends, count, mean, share))
        ece += count / len(told) * abs(mean - share)
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
        return "every answer is right, so the smaller the temperature the better"
    if slope(high) >= 0:
        return "the answers tell no more than chance, so the larger the temperature the better"
    return math.exp(brentq(slope, low, high, xtol=1e-12))
