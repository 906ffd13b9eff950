"""What a trial tells at each evaluation, and when it evaluates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tinyattn.batches import labels_of
from tinyattn.config import TrainConfig
from tinyattn.tasks import compute_metrics
from tinyattn.tasks.tokens import Rows, TaskData


@dataclass(frozen=True)
class Evaluation:
    """One unit of progress; what ASHA counts."""

    index: int
    """1 for the first."""
    total: int
    """Evaluations of the whole trial."""
    epoch: float
    """Passes over the training rows so far."""
    step: int
    """Optimizer steps so far."""
    score: float
    """The task's primary metric on the selection rows now, higher is better."""
    best_score: float
    """The best of this and all evaluations before."""
    best_index: int
    """Index of the evaluation that had it first."""
    noise: float
    """Standard error of the score: what other selection rows of the kind would change."""
    train_loss: float
    """Mean loss per row since the evaluation before."""
    lr: float
    """Learning rate of the last step."""
    seconds: float
    """Wall-clock time spent on this trial so far, interruptions left out."""
    rows_per_second: float
    """Training rows per second since the evaluation before, evaluation left out."""
    metrics: dict[str, float] = field(default_factory=dict)
    """All of the task's metrics on the selection rows now."""
    heldout: dict[str, float] = field(default_factory=dict)
    """Only on the last: what `final_metrics` found of the best adapter."""

    @property
    def is_last(self) -> bool:
        """Whether the trial is complete."""
        return self.index == self.total


OVERALL = "overall"
"""Ending of metrics over dev and a task's further rows together: MNLI's in the paper's table 8."""


def final_metrics(data: TaskData, outputs_of: Callable[[Rows], np.ndarray]) -> dict[str, float]:
    """Return what is measured once, at the end: on the held-out rows and on a task's further rows.

    Args:
        data: of the task.
        outputs_of: a split → outputs [N, num_outputs] of the best adapter.

    Returns:
        Metrics of the held-out rows by their names, of a further split as in
        `accuracy_mismatched`, of dev and these together as in `accuracy_overall`.
    """
    further = {name: (outputs_of(split), labels_of(split)) for name, split in data.extra.items()}
    found: dict[str, float] = {}
    if data.heldout is not None:
        dev = outputs_of(data.heldout), labels_of(data.heldout)
        found = compute_metrics(data.task, *dev)
    if further and OVERALL not in further:
        if data.heldout is None:  # under the protocol `paper`, dev is what selects
            dev = outputs_of(data.select), labels_of(data.select)
        outputs, labels = zip(dev, *further.values(), strict=True)
        further[OVERALL] = np.concatenate(outputs), np.concatenate(labels)
    for name, pair in further.items():
        scores = compute_metrics(data.task, *pair)
        found |= {f"{metric}_{name}": value for metric, value in scores.items()}
    return found


def evaluation_steps(config: TrainConfig, steps_per_epoch: int) -> list[int]:
    """Optimizer steps after which to evaluate: twice an epoch, or every n and at the end."""
    total = steps_per_epoch * config.epochs
    if config.evaluate_every is not None:
        return sorted({*range(config.evaluate_every, total + 1, config.evaluate_every), total})
    halves = {steps_per_epoch // 2, steps_per_epoch} - {0}
    return sorted(e * steps_per_epoch + half for e in range(config.epochs) for half in halves)
