"""The rule that decides whether collapsed heads replace the one head, from outputs alone.

The selection rows decide. Every expert collapsed by every method is a candidate, and the best of
many leads by chance alone; so its lead must be larger than the best of as many equal candidates has
by chance (max-T, p at most .10). The held-out rows choose nothing; they may only object. The
protocol `paper` has only the rows that chose, so the better adapter is kept, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.selection.significance import PERMUTATIONS, Metric, max_t_test
from tinyattn.tasks import best_first

LEVEL = 0.10
"""Largest probability that heads are kept although they are no better."""


@dataclass(frozen=True)
class Contest:
    """The comparison of a candidate with the one head on the selection rows."""

    score: float
    one_head: float
    p_value: float | None
    """Probability that any candidate leads as clearly if all are only as good as one head; None:
    the rows chose both adapters, so no test on them means anything."""
    loss: float | None = None
    """Mean loss of the candidate on the selection rows; None: it is not known."""

    @property
    def is_won(self) -> bool:
        """Whether the candidate wins on the selection rows."""
        if self.p_value is None:
            return self.score > self.one_head
        return self.p_value <= LEVEL

    @property
    def order(self) -> tuple[bool, tuple[float, float]]:
        """Sort key, the best candidate first: one that wins, then the higher score, of equals the
        lower loss."""
        return not self.is_won, best_first(self.score, self.loss)


@dataclass(frozen=True)
class Judgement:
    """The best candidate's contest, and its scores on the held-out rows."""

    contest: Contest
    candidates: int
    """Number of candidates of which it is the best."""
    heldout: tuple[float, float] | None
    """Scores of the candidate and of one head on the held-out rows; None: there are none."""

    @property
    def objects(self) -> bool:
        """Whether the candidate falls behind on the held-out rows."""
        return self.heldout is not None and self.heldout[0] < self.heldout[1]

    @property
    def keeps(self) -> bool:
        """Whether the candidate replaces the one head."""
        return self.contest.is_won and not self.objects


def contests(
    metric: Metric,
    candidates: Sequence[np.ndarray],
    one_head: np.ndarray,
    labels: np.ndarray,
    *,
    looks: Sequence[float],
    tested: bool = True,
    groups: np.ndarray | None = None,
    permutations: int = PERMUTATIONS,
    say: Callable[[str], None] = lambda line: None,
) -> list[Contest]:
    """Compare candidates with one head on the selection rows.

    Each adapter is the best of its own evaluations, which makes it lucky on these rows. A candidate
    that is the best of k times as many evaluations as the one head is like the best of k adapters
    that are each as lucky as the one head: its p is multiplied by k (Bonferroni).

    Args:
        metric: the task's primary metric.
        candidates: outputs [N, C] of each.
        one_head: outputs [N, C].
        labels: [N].
        looks: evaluations of each candidate, as a multiple of the one head's.
        tested: whether to test; False where no other rows exist.
        groups: [N] the same number for rows that belong together.
        permutations: number of permutations.
        say: called with messages if the test takes more than a few seconds.
    """
    old = metric(one_head, labels)
    scores = [metric(outputs, labels) for outputs in candidates]
    if not tested:
        return [Contest(score, old, None) for score in scores]
    p_values = max_t_test(
        metric,
        candidates,
        one_head,
        labels,
        groups=groups,
        permutations=permutations,
        say=say,
    )
    return [
        Contest(score, old, min(1.0, float(p) * max(1, math.ceil(k))))
        for score, p, k in zip(scores, p_values, looks, strict=True)
    ]
