"""Carve a selection split from training rows: the same rows for every trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

_LARGEST = 2_000


def carve_size(num_rows: int) -> int:
    """Rows to carve: a tenth, at most 2,000; of few rows up to a quarter, to come near 100."""
    return min(max(num_rows // 10, min(100, num_rows // 4)), _LARGEST)


def carve(classes: Sequence[int], groups: Sequence[Hashable], seed: int) -> np.ndarray:
    """Return the sorted numbers of the carved rows, with the classes in their own proportion.

    Rows of one group (the same text, the twins of a minimal pair) are taken together or not at
    all, so that no carved row has its like in what remains.

    Args:
        classes: [N] class id of each row; all 0 where there are none.
        groups: [N] what must not be parted.
        seed: which rows; never the seed of a trial.
    """
    wanted = _quota(np.asarray(classes))
    members: dict[Hashable, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        members[group].append(row)
    candidates = list(members.values())
    taken: list[int] = []
    # RandomState, because its streams never change with the version of numpy.
    for index in np.random.RandomState(seed).permutation(len(candidates)):
        rows = candidates[index]
        theirs = np.bincount([classes[row] for row in rows], minlength=len(wanted))
        if (theirs <= wanted).all():
            wanted -= theirs
            taken += rows
        if not wanted.any():
            break
    return np.sort(np.array(taken, dtype=np.int64))


def _quota(classes: np.ndarray) -> np.ndarray:
    """Rows to take of each class: its share, rounded by largest remainder, one where it has two."""
    counts = np.bincount(classes)
    shares = carve_size(len(classes)) * counts / len(classes)
    quota = np.floor(shares).astype(np.int64)
    left = carve_size(len(classes)) - quota.sum()
    quota[np.argsort(quota - shares, kind="stable")[:left]] += 1
    return np.maximum(quota, counts >= 2) if carve_size(len(classes)) else quota
