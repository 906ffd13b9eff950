"""Sample of the rows that an adapter was trained on: enough to recognise them, in 4 KB.

Of each row a digest of 64 bits is made from the tokens that the adapter reads. Kept are the MOST
smallest of them (a bottom-k sketch: Cohen and Kaplan 2007), so that small sets of rows are kept
whole and of large ones an even sample. A digest tells nothing to who does not have the row; who has
it can tell that it was trained on, of at most MOST rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST = 256
"""Digests that are kept."""
DIGITS = 16
"""Hex digits of one."""
BLOCK = 2**20
"""Tokens that are digested at once."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Recognised:
    """How many rows are among those of a sample."""

    rows: int
    """Rows that are."""
    looked_up: int
    """Rows whose digests the sample has if they are among its rows."""
    is_whole: bool
    """Whether the sample has all rows that there were, so that every row was looked up."""


def row_digests(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a digest of each row's tokens, [N] uint64.

    Args:
        ids: [T] token ids of many rows one after the other.
        starts: [N] where each row begins, ascending.
        ends: [N] where it ends.
    """
    found = np.empty(len(starts), np.uint64)
    first = 0
    while first < len(starts):
        last = int(np.searchsorted(starts, starts[first] + BLOCK, side="left"))
        last = max(first + 1, last)
        begin, end = int(starts[first]), int(ends[first:last].max())
        place = np.arange(begin, end) - np.repeat(
            starts[first:last], np.diff(np.append(starts[first:last], end))
        )
        own = _mixed(ids[begin:end].astype(np.uint64) + place.astype(np.uint64) * _ODD)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(own, dtype=np.uint64)])
        lengths = (ends[first:last] - starts[first:last]).astype(np.uint64)
        whole = sums[ends[first:last] - begin] - sums[starts[first:last] - begin]
        found[first:last] = _mixed(whole + lengths * _ODD)
        first = last
    return found


def _mixed(values: np.ndarray) -> np.ndarray:
    """Return numbers of 64 bits that look random (Steele et al. 2014, splitmix64)."""
    values = values + _ODD
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def sample_of(digests: np.ndarray) -> str:
    """Return the sample of rows with these digests, as hex digits; empty: there are none."""
    return "".join(f"{int(own):0{DIGITS}x}" for own in np.unique(digests)[:MOST])


def recognised(sample: str, digests: np.ndarray) -> Recognised:
    """Return how many rows, by their digests, are among the rows of a sample."""
    kept = np.array(
        [int(sample[at : at + DIGITS], 16) for at in range(0, len(sample), DIGITS)], np.uint64
    )
    is_whole = len(kept) < MOST
    looked_up = digests if is_whole else digests[digests <= kept.max()]
    return Recognised(int(np.isin(looked_up, kept).sum()), len(looked_up), is_whole)
