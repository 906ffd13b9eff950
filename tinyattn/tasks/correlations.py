"""Metrics of regression by name, functions of labels and scores; those of here are scipy's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# scipy is imported where it is used: it takes a second, which every command that only looks up a
# task would wait for.


def _pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    from scipy.stats import pearsonr

    if _is_constant(labels, predictions):
        return 0.0
    return pearsonr(_standardised(labels), _standardised(predictions)).statistic


def _spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return 0.0 if _is_constant(labels, predictions) else spearmanr(labels, predictions).statistic


def _is_constant(*columns: np.ndarray) -> bool:
    return any(np.ptp(column) == 0 for column in columns)


def _standardised(column: np.ndarray) -> np.ndarray:
    """Standardise a column; its correlations stay, scipy's warning on tiny differences goes."""
    column = np.asarray(column, np.float64)
    centered = column - column.mean()
    return centered / np.abs(centered).max()


CORRELATIONS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "pearson": _pearson,
    "spearman": _spearman,
}
"""Metrics of regression by name: labels [N] and scores [N] to a number."""
