"""The rule by which collapsed heads take the place of one head, on outputs alone.

The selection rows decide. Every expert collapsed by every method is a candidate, and the best of
many leads by being one of many: so the lead must be more than chance gives the best of as many
(max-T, p at most .10). The held-out rows choose nothing; they may only object. Under the protocol
`paper` there are no other rows than those that chose, so the better one is kept, as the paper does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.significance import PERMUTATIONS, Metric, max_t_test

LEVEL = 0.10
"""Equal heads are kept this often at most."""


@dataclass(frozen=True)
class Contest:
    """A candidate against one head on the selection rows."""

    score: float
    one_head: float
    p_value: float | None
    """How often some candidate leads as clearly where all are as good as one head; None: the rows
    chose both, and no test of them says anything."""

    @property
    def is_won(self) -> bool:
        """Whether the selection rows speak for the candidate."""
        if self.p_value is None:
            return self.score > self.one_head
        return self.p_value <= LEVEL

    @property
    def order(self) -> tuple[bool, float]:
        """Sorts the best candidate last: one that wins, then the higher score."""
        return self.is_won, self.score


@dataclass(frozen=True)
class Judgement:
    """The best candidate's contest, and what the held-out rows say."""

    contest: Contest
    candidates: int
    """How many the contest's was chosen from."""
    heldout: tuple[float, float] | None
    """Scores of the candidate and of one head on the held-out rows; None: there are none."""

    @property
    def objects(self) -> bool:
        """Whether the held-out rows speak against the candidate."""
        return self.heldout is not None and self.heldout[0] < self.heldout[1]

    @property
    def keeps(self) -> bool:
        """Whether the candidate takes the place of one head."""
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
) -> list[Contest]:
    """Compare candidates with one head on the selection rows.

    Each is the best of its own evaluations, and so lucky on these rows. One head is as lucky if it
    is the best of as many. A candidate with k times as many is the best of k that are each as lucky
    as one head: its p is multiplied by k (Bonferroni).

    Args:
        metric: the task's primary metric.
        candidates: outputs [N, C] of each.
        one_head: outputs [N, C].
        labels: [N].
        looks: evaluations that each candidate was the best of, as a multiple of one head's.
        tested: whether to test at all: not where these rows are all there are.
        groups: [N] the same number for rows that belong together.
        permutations: of the test.
    """
    old = metric(one_head, labels)
    scores = [metric(outputs, labels) for outputs in candidates]
    if not tested:
        return [Contest(score, old, None) for score in scores]
    p_values = max_t_test(
        metric, candidates, one_head, labels, groups=groups, permutations=permutations
    )
    return [
        Contest(score, old, min(1.0, float(p) * max(1, math.ceil(k))))
        for score, p, k in zip(scores, p_values, looks, strict=True)
    ]
