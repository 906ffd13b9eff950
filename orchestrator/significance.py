"""Is one model better than another on the same rows, or is it chance?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

PERMUTATIONS = 10_000

Metric = Callable[[np.ndarray, np.ndarray], float]
"""(outputs [N, C], labels [N]) → the task's primary metric, higher is better."""


@dataclass(frozen=True)
class PairedTest:
    """Two models on the same rows, and how likely chance alone makes such a lead."""

    new_score: float
    old_score: float
    p_value: float
    """One-sided: small when the new model is better."""


def paired_test(
    metric: Metric, new: np.ndarray, old: np.ndarray, labels: np.ndarray, seed: int = 0
) -> PairedTest:
    """Test by permutation whether `new` is better than `old` on the same rows.

    If the models were equally good, swapping their outputs on any row would change nothing but
    chance. Each of 10,000 permutations swaps every row with probability ½; p is the share of them,
    the observed one included, whose lead is at least the observed one (Phipson & Smyth 2010).

    Args:
        metric: maps outputs [N, C] and labels [N] to a number, higher is better.
        new: outputs [N, C] of the newcomer.
        old: outputs [N, C] of the champion.
        labels: [N].
        seed: of the permutations.
    """
    new_score, old_score = metric(new, labels), metric(old, labels)
    lead = new_score - old_score
    rows = np.flatnonzero((new != old).reshape(len(labels), -1).any(axis=1))
    if not len(rows) or not np.isfinite(lead):
        return PairedTest(new_score, old_score, 1.0)
    generator = np.random.default_rng(seed)
    as_large = 1
    first, second = new.copy(), old.copy()
    for _ in range(PERMUTATIONS):
        swap = generator.random(len(rows)) < 0.5
        mask = swap.reshape(-1, *[1] * (new.ndim - 1))
        first[rows] = np.where(mask, old[rows], new[rows])
        second[rows] = np.where(mask, new[rows], old[rows])
        # A permutation whose metric is undefined counts against the newcomer.
        smaller = metric(first, labels) - metric(second, labels) < lead - 1e-12
        as_large += not smaller
    return PairedTest(new_score, old_score, as_large / (PERMUTATIONS + 1))


def by_confusion(metric: Metric) -> Metric:
    """Return a faster form of a classification metric, for thousands of permutations.

    It must depend on labels and predicted classes through their confusion matrix alone. Few
    different matrices occur among the permutations, so that each is scored once.
    """
    known: dict[bytes, float] = {}

    def remembered(outputs: np.ndarray, labels: np.ndarray) -> float:
        cells = labels * outputs.shape[1] + outputs.argmax(axis=1)
        key = np.bincount(cells, minlength=outputs.shape[1] ** 2).tobytes()
        if key not in known:
            known[key] = metric(outputs, labels)
        return known[key]

    return remembered
