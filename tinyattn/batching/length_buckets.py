"""Length buckets: a batch cut into micro-batches of rows of similar lengths."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np


def split_by_length(lengths: np.ndarray, most: int, overhead: float) -> list[np.ndarray]:
    """Cut a batch into micro-batches of rows of similar lengths, at the least cost.

    A gradient is a sum over rows, so every cut gives the same step. A micro-batch costs its padded
    tokens plus `overhead`; the cheapest cut is found by dynamic programming over rows sorted by
    length. Only cuts where the length changes, and those that `most` forces, have to be tried:
    within a run of equal lengths the first place to cut is never worse.

    Args:
        lengths: [N] tokens of each row.
        most: largest number of rows of a micro-batch.
        overhead: cost of one more forward and backward pass, in tokens.

    Returns:
        Positions in `lengths`, one array for each micro-batch, longest rows first.
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
    """Return the places, and all positive ones that are multiples of `most` before them, sorted."""
    return sorted({place for last in places for place in range(last, 0, -most)})
