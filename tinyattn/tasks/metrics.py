"""Metrics of a model's outputs, by scikit-learn and scipy. Higher is better, 1.0 is perfect.

Those of generated texts and of tags are functions of sums over rows: see `corpus_metrics`.

Undefined cases score 0.0 instead of NaN: Matthews, Pearson and Spearman where predictions or
labels are constant, F1 where class 1 is neither present nor predicted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinyattn.errors import DivergedError
from tinyattn.tasks.base import Task
from tinyattn.tasks.corpus_metrics import columns_of, score, scores


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
    predictions = _predictions(task, outputs)
    return {name: float(METRICS[name](labels, predictions)) for name in task.metrics}


def number_of(name: str, value: float) -> float:
    """Return a metric as it is shown: in percent, but for NIST and perplexity."""
    return value if name.startswith(("nist", "perplexity")) else 100 * value


def noise_of(task: Task, outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the standard error of the primary metric: its spread over other rows of this kind.

    It is estimated by the bootstrap (Efron 1979): the metric's spread over samples of these rows,
    drawn with replacement. Arguments are those of `compute_metrics`; the result is deterministic.
    """
    primary, outputs = task.metrics[0], np.asarray(outputs)
    draws = np.random.default_rng(0).integers(0, len(labels), (RESAMPLES, len(labels)))
    if task.by_sums:
        own = outputs[:, columns_of(task.metrics)[primary]]
        return float(np.std([score(primary, own[rows]) for rows in draws]))
    metric, predictions = METRICS[primary], _predictions(task, outputs)
    return float(np.std([metric(labels[rows], predictions[rows]) for rows in draws]))


def _predictions(task: Task, outputs: np.ndarray) -> np.ndarray:
    return outputs[:, 0] if task.is_regression else outputs.argmax(axis=1)


RESAMPLES = 50
"""Bootstrap samples; enough for a standard error to one tenth of its value."""

# scikit-learn and scipy are imported where they are used: together they take a second, which
# every command that only looks up a task would wait for.


def _accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.mean(labels == predictions))


def _f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, labels=[1], average=None, zero_division=0.0)[0]


def _f1_macro(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return macro F1 over classes that are present or predicted, as SuperGLUE scores CB."""
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, average="macro", zero_division=0.0)


def _matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return 0.0 if _is_constant(labels, predictions) else matthews_corrcoef(labels, predictions)


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


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "f1_macro": _f1_macro,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
