"""Metrics of a model's outputs. Higher is better, 1.0 is perfect.

Those of classes are functions of the confusion matrix, and are computed of thousands of them at
once: of a stack of counts [B, K, K], by label and then by prediction, [B] numbers. So a bootstrap
sample, and a permutation of two models' rows, is scored without its rows. The values are
scikit-learn's: of F1 with `average` "macro" or "weighted", for instance. A class that neither is
there nor is predicted does not count.

Metrics of generated texts and of tags are functions of sums over rows: see `corpus_metrics`.
Correlations are scipy's.

Undefined cases score 0.0 instead of NaN: Matthews, Pearson and Spearman where predictions or
labels are constant, F1 where class 1 is neither present nor predicted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinyattn.errors import DivergedError
from tinyattn.tasks.base import Task
from tinyattn.tasks.corpus_metrics import columns_of, ratio, scores, scores_of


def compute_metrics(task: Task, outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the task's metrics by name, in the task's order.

    Args:
        task: the task: its metrics, and whether it is a regression.
        outputs: [N, scored_width] logits, scores of a regression, or statistics of rows.
        labels: [N] class ids, scores, or lists of texts or tags.

    Raises:
        DivergedError: an output is NaN or infinite.
    """
    outputs, labels = np.asarray(outputs, np.float64), np.asarray(labels)
    if outputs.shape != (len(labels), task.scored_width) or not len(labels):
        raise ValueError(
            f"outputs {outputs.shape} and labels {labels.shape} came, task '{task.name}' needs "
            f"[N, {task.scored_width}] and [N] with N of at least 1"
        )
    if not np.isfinite(outputs).all():
        raise DivergedError(f"task '{task.name}': the model's outputs are NaN or infinite")
    if task.by_sums:
        return scores(task.metrics, outputs)
    if task.is_regression:
        return {name: float(CORRELATIONS[name](labels, outputs[:, 0])) for name in task.metrics}
    counts = confusion(labels, outputs.argmax(axis=1), task.num_outputs)[None]
    return {name: float(CONFUSION_METRICS[name](counts)[0]) for name in task.metrics}


def number_of(name: str, value: float) -> float:
    """Return a metric as it is shown: in percent, but for NIST and perplexity."""
    return value if name.startswith(("nist", "perplexity")) else 100 * value


def noise_of(task: Task, outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the standard error of the primary metric: its spread over other rows of this kind.

    It is estimated by the bootstrap (Efron 1979): the metric's spread over samples of these rows,
    drawn with replacement. Arguments are those of `compute_metrics`; the result is deterministic.
    """
    primary, outputs = task.metrics[0], np.asarray(outputs)
    draws = np.random.default_rng(0).integers(0, len(labels), (_RESAMPLES, len(labels)))
    if task.by_sums:
        own = outputs[:, columns_of(task.metrics)[primary]]
        sums = np.stack([own[rows].sum(axis=0) for rows in draws])
        return float(np.std(scores_of(primary, sums)))
    if task.is_regression:
        metric = CORRELATIONS[primary]
        return float(np.std([metric(labels[rows], outputs[rows, 0]) for rows in draws]))
    predictions = outputs.argmax(axis=1)
    counts = [confusion(labels[rows], predictions[rows], task.num_outputs) for rows in draws]
    return float(np.std(CONFUSION_METRICS[primary](np.stack(counts))))


_RESAMPLES = 50
"""Bootstrap samples; enough for a standard error to one tenth of its value."""

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


# ---- of classes ----


def confusion(labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Return the confusion matrix of rows, [K, K].

    Args:
        labels: [N] class ids.
        predictions: [N] class ids.
        classes: K.
    """
    cells = cells_of(labels, predictions, classes)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def cells_of(labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Return the cell of the confusion matrix that each row is counted in, [N] from 0 to K² - 1."""
    return labels.astype(np.int64) * classes + predictions


def _accuracy(counts: np.ndarray) -> np.ndarray:
    hits, there, _ = _margins(counts)
    return hits.sum(axis=1) / there.sum(axis=1)


def _f1(counts: np.ndarray) -> np.ndarray:
    """F1 of class 1."""
    return _f1_of_classes(*_margins(counts))[:, 1]


def _f1_macro(counts: np.ndarray) -> np.ndarray:
    """Mean F1 of the classes that are there or predicted, as SuperGLUE scores CB."""
    hits, there, predicted = _margins(counts)
    number = np.count_nonzero(there + predicted, axis=1)
    return _f1_of_classes(hits, there, predicted).sum(axis=1) / number


def _f1_weighted(counts: np.ndarray) -> np.ndarray:
    """Mean F1 over rows, each with that of its label."""
    hits, there, predicted = _margins(counts)
    own = _f1_of_classes(hits, there, predicted)
    return (own * there).sum(axis=1) / there.sum(axis=1)


def _balanced_accuracy(counts: np.ndarray) -> np.ndarray:
    """Mean recall of the classes that are there."""
    hits, there, _ = _margins(counts)
    return ratio(hits, there).sum(axis=1) / np.count_nonzero(there, axis=1)


def _matthews(counts: np.ndarray) -> np.ndarray:
    """Gorodkin's correlation of K categories (2004), of two classes Matthews' of 1975."""
    hits, there, predicted = _margins(counts)
    rows = there.sum(axis=1)
    covariance = hits.sum(axis=1) * rows - (there * predicted).sum(axis=1)
    variances = [rows**2 - (one**2).sum(axis=1) for one in (there, predicted)]
    return ratio(covariance, np.sqrt(variances[0] * variances[1]))


def _margins(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of each class the rows that are right, that have this label, and that are predicted
    so: [B, K] each."""
    there, predicted = counts.sum(axis=2, dtype=float), counts.sum(axis=1, dtype=float)
    return np.diagonal(counts, axis1=1, axis2=2).astype(float), there, predicted


def _f1_of_classes(hits: np.ndarray, there: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    return ratio(2 * hits, there + predicted)


CONFUSION_METRICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "f1_macro": _f1_macro,
    "matthews": _matthews,
    "balanced_accuracy": _balanced_accuracy,
    "f1_weighted": _f1_weighted,
}
"""Metrics of classification by name. F1 over all rows at once ("micro") would be accuracy."""
