"""Rows cut into lots of similar lengths."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np


def split_by_length(lengths: np.ndarray, most: int, overhead: float) -> list[np.ndarray]:
    """Cut a batch into micro-batches of similar lengths, so that little of them is padding.

    A gradient is a sum over rows, so any cut gives the same step. The cut chosen costs least, where
    a micro-batch costs its padded tokens and `overhead`.

    Of the cuts within a run of equal lengths the first is never worse than the others: every row
    that moves on to the next micro-batch costs no more there. So only cuts where the length changes
    need be tried, and those that `most` forces; a batch of thousands of rows has few of them.

    Args:
        lengths: [N] tokens of each row.
        most: rows of a micro-batch at most.
        overhead: cost of one more forward and backward pass, in tokens.

    Returns:
        Positions in `lengths`, by micro-batch, longest rows first.
    """
    order = np.argsort(-lengths, kind="stable")
    ranked, rows = lengths[order].tolist(), len(lengths)
    changes = [0, *(np.flatnonzero(np.diff(ranked)) + 1).tolist()]
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}  # rows -> least cost, start of the last cut
    for end in _ends([*changes[1:], rows], most):
        forced = max(0, end - most)
        tried = changes[bisect.bisect_left(changes, forced) : bisect.bisect_left(changes, end)]
        best[end] = min(
            (best[start][0] + (end - start) * ranked[start] + overhead, start)
            for start in {forced, *tried}
        )
    cuts, end = [], rows
    while end > 0:
        start = best[end][1]
        cuts.append(order[start:end])
        end = start
    return cuts[::-1]


def _ends(places: Iterable[int], most: int) -> list[int]:
    """The places, and all that lie a multiple of `most` before one, in ascending order."""
    return sorted({place for last in places for place in range(last, 0, -most)})
