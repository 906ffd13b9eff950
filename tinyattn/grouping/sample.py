"""Sample of the rows that an adapter was trained on: enough to recognise them, in 4 KB.

Of each row a digest of 64 bits is made from the tokens that the adapter reads. Kept are the MOST
smallest of them (a bottom-k sketch: Cohen and Kaplan 2007), so that small sets of rows are kept
whole and of large ones an even sample. Who has a row, or guesses it, can tell that it was trained
on, of at most MOST rows: short ones can be found by trying.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

MOST = 256
"""Digests that are kept."""
DIGITS = 16
"""Hex digits of one."""


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
        starts: [N] where each row begins.
        ends: [N] where it ends.
    """
    content = ids.astype("<u4")
    rows = zip(starts.tolist(), ends.tolist(), strict=True)
    digests = (blake2b(content[own:end].tobytes(), digest_size=8).digest() for own, end in rows)
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def sample_of(digests: np.ndarray) -> str:
    """Return the sample of rows with these digests, as hex digits; empty: there are none."""
    return "".join(f"{int(own):0{DIGITS}x}" for own in np.unique(digests)[:MOST])


def merged(one: str, other: str) -> str:
    """Return the sample of the rows of both samples."""
    return sample_of(np.concatenate([_digests(one), _digests(other)]))


def _digests(sample: str) -> np.ndarray:
    parts = (sample[at : at + DIGITS] for at in range(0, len(sample), DIGITS))
    return np.array([int(part, 16) for part in parts], np.uint64)


def recognised(sample: str, digests: np.ndarray) -> Recognised:
    """Return how many rows, by their digests, are among the rows of a sample."""
    kept = _digests(sample)
    is_whole = len(kept) < MOST
    looked_up = digests if is_whole else digests[digests <= kept.max()]
    return Recognised(int(np.isin(looked_up, kept).sum()), len(looked_up), is_whole)
