"""Task: columns, labels, metrics and split names of a task. Rows are read in `data/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tinyattn.errors import TaskError, did_you_mean

CLASSIFICATION_METRICS: tuple[str, ...] = ("accuracy", "f1", "f1_macro", "matthews")
REGRESSION_METRICS: tuple[str, ...] = ("pearson", "spearman")
ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet")
"""Endings of data files, each with its format."""


@dataclass(frozen=True)
class Splits:
    """Names of a task's splits: files `<name>.jsonl` and so on, or splits on the hub."""

    train: str = "train"
    """Rows to train on."""
    validation: str | None = "validation"
    """Official dev rows; None: rows carved from train are used instead."""
    test: str = "test"
    """Rows to predict, usually unlabelled."""
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    """More labelled rows to report on, e.g. `{"mismatched": "validation_mismatched"}`."""


@dataclass(frozen=True)
class Task:
    """One classification or regression task over single texts or pairs of texts."""

    name: str
    """Short name, also the name of its data folder."""
    text_columns: tuple[str, ...]
    """One column of texts, or two for pairs."""
    labels: tuple[str, ...] | None
    """Class names in the order of their ids; None: regression."""
    score_range: tuple[float, float] | None
    """Lowest and highest score of a regression task; None: classification."""
    metrics: tuple[str, ...]
    """Names of metrics as in `compute_metrics`; the first is the primary one. Higher is better."""
    label_column: str = "label"
    """Column with the class id, class name or score."""
    splits: Splits = Splits()
    """Names of its splits."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    """PLM -> heads -> the paper's dev score, e.g. `{"roberta-large": {"1H": 96.6}}`, in percent
    of the primary metric."""
    folder: Path | None = None
    """Folder of the files of a user's own task; None: the data folder, cache or hub has them."""
    group_column: str | None = None
    """Column of group names; a carve keeps rows with equal names together (minimal pairs)."""

    @property
    def num_outputs(self) -> int:
        """Width of the classifier: one output a class, or one for a score."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def is_regression(self) -> bool:
        """Whether the task predicts a score instead of a class."""
        return self.labels is None


def check_metrics(name: str, metrics: tuple[str, ...], num_labels: int | None) -> None:
    """Raise TaskError unless all metrics suit the task; `num_labels` is None for regression."""
    allowed = REGRESSION_METRICS if num_labels is None else CLASSIFICATION_METRICS
    if num_labels is not None and num_labels > 2:
        allowed = tuple(metric for metric in allowed if metric != "f1")
    for metric in metrics:
        if metric not in allowed:
            kind = "regression" if num_labels is None else f"{num_labels} labels"
            raise TaskError(
                f"task '{name}': metric '{metric}' came{did_you_mean(metric, allowed)}; "
                f"allowed with {kind} are {', '.join(allowed)}"
            )


def find_split(folder: Path, split: str) -> Path | None:
    """Return the file of a split in a folder, or None; TaskError if there are two."""
    found = [path for ending in ENDINGS if (path := folder / f"{split}{ending}").is_file()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise TaskError(f"{folder}: {names} are both there, needed is one file a split: keep one")
    return found[0] if found else None
