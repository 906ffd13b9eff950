"""Thresholds of labels, and margins: how far outputs are above them.

Shape suffixes: N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SEPARATORS = (";", ",", "|")
"""Signs between labels that are looked for in texts."""
HALF = 0.5
"""Threshold of a label for which no other was chosen."""
_BELOW = 1e-6
"""How far below the lowest log odds a threshold lies that all rows reach."""


@dataclass(frozen=True)
class Multilabel:
    """How the rows of a task have any number of labels."""

    separators: tuple[str, ...]
    """Signs of which one stands between the labels of a row in a text; the first is written."""
    columns: tuple[str, ...] = ()
    """Columns of 0 and 1, one a label; none: one column has a row's labels."""
    thresholds: tuple[float, ...] | None = None
    """Least probability of each label at which a row has it; None: ½ of all."""


def margins(logits_NL: np.ndarray, thresholds: Sequence[float] | None) -> np.ndarray:
    """Return how far the log odds of each label are above those of its threshold, [N, L] float64.

    Args:
        logits_NL: log odds.
        thresholds: as in `Multilabel`.
    """
    if thresholds is None:
        return np.asarray(logits_NL, np.float64)
    return np.asarray(logits_NL, np.float64) - log_odds(np.array(thresholds))


def log_odds(shares: np.ndarray) -> np.ndarray:
    """Return the log odds of probabilities between 0 and 1."""
    found: np.ndarray = np.log(shares) - np.log1p(-shares)
    return found


def best_thresholds(logits_NL: np.ndarray, labels_NL: np.ndarray) -> tuple[float, ...]:
    """Return the threshold of each label that has the highest F1 on these rows.

    Tried are ½, the middle between each two neighbouring outputs, and one below the lowest output;
    of equals the one nearest to ½ is taken. A label that no row has keeps ½.

    Args:
        logits_NL: log odds, finite.
        labels_NL: 1 where a row has the label, else 0.
    """
    logits = np.asarray(logits_NL, np.float64)
    return tuple(_best(own, there > 0) for own, there in zip(logits.T, labels_NL.T, strict=True))


def _best(logits_N: np.ndarray, has_N: np.ndarray) -> float:
    if not has_N.any():
        return HALF
    order = np.argsort(logits_N, kind="stable")
    ranked, hits_below = logits_N[order], np.concatenate([[0], np.cumsum(has_N[order])])
    values = np.unique(ranked)
    middles = np.concatenate([values[:1] - _BELOW, (values[1:] + values[:-1]) / 2])
    tried = np.append(1 / (1 + np.exp(-np.clip(middles, -700, 700))), HALF)
    tried = tried[(tried > 0) & (tried < 1)]
    # As `margins` decides, which may be otherwise where a probability is rounded to nearly 1.
    first = np.searchsorted(ranked, log_odds(tried), side="left")
    found = hits_below[-1] - hits_below[first]
    f1 = 2 * found / (len(ranked) - first + has_N.sum())
    best = tried[f1 == f1.max()]
    return float(best[np.abs(best - HALF).argmin()])
