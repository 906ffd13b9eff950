"""Metrics of sets of labels, of many choices of rows at once.

The values are scikit-learn's with its default for what is undefined, 0: so a row that has no label
and is given none counts 0 in `f1_samples`, and a label that no row has or is given 0 in `f1_macro`.
`map` is the mean over labels that some row has.

Shape suffixes: N rows, L labels, B choices of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LabelMetric:
    """A metric of sets of labels that follows from sums of statistics over rows."""

    of_rows: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """(which labels rows are given [N, L], and have [N, L], both bool) → statistics [N, S]."""
    of_sums: Callable[[np.ndarray], np.ndarray]
    """Sums of these over rows, [B, S] → the metric of each choice of rows, [B]."""

    def statistics(self, margins_NL: np.ndarray, labels_NL: np.ndarray) -> np.ndarray:
        """Return the statistics of rows, [N, S] float64."""
        return self.of_rows(margins_NL >= 0, labels_NL > 0).astype(np.float64)


def _counts(given: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Labels that are right, given, and there, of each row, [N, 3]."""
    return np.stack([(given & there).sum(axis=1), given.sum(axis=1), there.sum(axis=1)], axis=1)


def _counts_of_each(given: np.ndarray, there: np.ndarray) -> np.ndarray:
    """The same of each label apart, [N, 3 · L]."""
    return np.concatenate([given & there, given, there], axis=1)


def _f1_of_each(given: np.ndarray, there: np.ndarray) -> np.ndarray:
    """F1 of each row's labels, and 1, [N, 2]."""
    return np.stack([_f1(_counts(given, there).astype(float)), np.ones(len(given))], axis=1)


def _matches(given: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Whether a row's labels are all right, and 1, [N, 2]."""
    return np.stack([(given == there).all(axis=1), np.ones(len(given), bool)], axis=1)


def _f1(sums: np.ndarray) -> np.ndarray:
    """F1 from the labels that are right, given, and there, [..., 3]."""
    right, given, there = np.moveaxis(sums, -1, 0)
    return np.divide(2 * right, given + there, out=np.zeros_like(right), where=given + there > 0)


def _f1_macro(sums: np.ndarray) -> np.ndarray:
    each = sums.reshape(len(sums), 3, -1).swapaxes(1, 2)
    mean: np.ndarray = _f1(each).mean(axis=1)
    return mean


def _share(sums: np.ndarray) -> np.ndarray:
    share: np.ndarray = sums[:, 0] / sums[:, 1]
    return share


LABEL_METRICS: dict[str, LabelMetric] = {
    "f1_micro": LabelMetric(_counts, _f1),
    "f1_macro": LabelMetric(_counts_of_each, _f1_macro),
    "f1_samples": LabelMetric(_f1_of_each, _share),
    "exact_match": LabelMetric(_matches, _share),
}
MAP = "map"
"""Mean average precision, which depends on how rows are ranked and is no function of sums."""
MULTILABEL_METRICS = (*LABEL_METRICS, MAP)


def mean_average_precision(
    margins_NL: np.ndarray, labels_NL: np.ndarray, weights_BN: np.ndarray
) -> np.ndarray:
    """Return the mean average precision of several choices of rows, [B]; 0 where none has a label.

    It is the mean over labels that some row has, of Σ (R_k - R_(k-1)) P_k over the different
    outputs, the highest first: precision P and recall R of the rows from there up.

    Args:
        margins_NL: what rows are ranked by.
        labels_NL: 1 where a row has the label, else 0.
        weights_BN: how often each choice has each row.
    """
    total, there = np.zeros(len(weights_BN)), np.zeros(len(weights_BN), np.int64)
    weights = weights_BN.astype(np.float32)  # whole numbers, exact up to 2**24
    for scores, labels in zip(margins_NL.T, labels_NL.T, strict=True):
        if labels.any():
            found = _average_precision(scores, labels > 0, weights)
            has_rows = ~np.isnan(found)
            total += np.where(has_rows, found, 0)
            there += has_rows
    return np.divide(total, there, out=np.zeros(len(total)), where=there > 0)


def _average_precision(
    scores_N: np.ndarray, has_N: np.ndarray, weights_BN: np.ndarray
) -> np.ndarray:
    """Return the average precision of one label, [B]; NaN where no row that counts has it."""
    order = np.argsort(-scores_N, kind="stable")
    ranked, at = scores_N[order], np.flatnonzero(has_N[order])
    # Rows of the same output count as one: up to the last of them.
    last = np.searchsorted(-ranked, -ranked[at], side="right") - 1
    weights = weights_BN[:, order]
    hits = np.cumsum(weights[:, at], axis=1, dtype=np.float64)
    hits_there = hits[:, np.searchsorted(at, last, side="right") - 1]
    rows_there = np.cumsum(weights, axis=1)[:, last]
    shares = np.divide(hits_there, rows_there, out=np.zeros(hits.shape), where=rows_there > 0)
    with np.errstate(invalid="ignore"):  # 0 / 0
        found: np.ndarray = (weights[:, at] * shares).sum(axis=1) / hits[:, -1]
    return found
