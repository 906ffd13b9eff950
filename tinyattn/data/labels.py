"""Labels of rows: how many rows each has, and what makes scores say less than they seem to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinyattn.data.tokens import Rows, TaskData
from tinyattn.errors import TaskError
from tinyattn.tasks import undefined
from tinyattn.tasks.base import Task

TEMPERATURE = 2.0
"""Temperature of soft labels and of what learns them (Schick & Schütze, EACL 2021, section 3.3)."""


def label_rows(task: Task, rows: Rows) -> dict[str, int]:
    """Return how many of the rows, or of their words, each label of the task has; empty if it has
    none.

    A row with soft labels has the most probable one.
    """
    if task.labels is None:
        return {}
    labels = rows.flat().labels
    if task.tagging:
        labels = np.concatenate([np.array(own, np.int64) for own in labels])
    hard = labels.argmax(axis=1) if labels.ndim == 2 else labels
    counts = np.bincount(hard, minlength=len(task.labels))
    return dict(zip(task.labels, counts.tolist(), strict=True))


def label_remarks(data: TaskData) -> tuple[str, ...]:
    """Return remarks on labels that make scores say less than they seem to.

    Raises:
        TaskError: the metric that selects is undefined for the rows to select on.
    """
    task, remarks = data.task, []
    if reason := undefined(task, data.select.flat().labels).get(task.metrics[0]):
        raise TaskError(
            f"task '{task.name}': {task.metrics[0]} cannot choose between trials, since of the "
            f"rows to select on {reason}; select on others (splits.select), or choose another "
            "first metric"
        )
    judging = dict(data.extra) | ({} if data.heldout is None else {"held-out": data.heldout})
    trained = label_rows(task, data.train)
    for name, rows in judging.items():
        for metric, reason in undefined(task, rows.flat().labels).items():
            remarks.append(f"{metric} of the {name} rows is undefined and reads 0: {reason}")
        unseen = [
            f"{label!r} ({count:,})"
            for label, count in label_rows(task, rows).items()
            if count and not trained[label]
        ]
        if unseen:
            remarks.append(f"{name} rows have labels that no training row has: {', '.join(unseen)}")
    return tuple(remarks)


def check_labels(task: str, label_rows: Mapping[str, int]) -> None:
    """Check that there is something to tell apart.

    New trainings that fail the check are refused; what began before this rule may be resumed.

    Raises:
        TaskError: all training rows have the same label.
    """
    found = {label: rows for label, rows in label_rows.items() if rows}
    if len(found) == 1:
        ((label, rows),) = found.items()
        raise TaskError(
            f"task '{task}': {rows:,} training rows came, all with the label {label!r}; "
            f"needed are two labels or more of {', '.join([*label_rows][:20])}: add rows of "
            "another label, or see the label column, and max_train_rows where it is set"
        )
