"""What a trial tells at each evaluation, and when it evaluates."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyattn.config import TrainConfig


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
    """Only on the last: metrics of the best adapter on the held-out rows. Keys of a
    further split end in its name, as in `accuracy_mismatched`."""

    @property
    def is_last(self) -> bool:
        """Whether the trial is complete."""
        return self.index == self.total


def evaluation_steps(config: TrainConfig, steps_per_epoch: int) -> list[int]:
    """Optimizer steps after which to evaluate: twice an epoch, or every n and at the end."""
    total = steps_per_epoch * config.epochs
    if config.evaluate_every is not None:
        return sorted({*range(config.evaluate_every, total + 1, config.evaluate_every), total})
    halves = {steps_per_epoch // 2, steps_per_epoch} - {0}
    return sorted(e * steps_per_epoch + half for e in range(config.epochs) for half in halves)
