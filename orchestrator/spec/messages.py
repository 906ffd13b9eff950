"""Messages between workers, the driver and what runs trials for it: typed, frozen, without Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.spec.outcome import Outcome
from orchestrator.spec.values import Point


class Decision(StrEnum):
    """The driver's answer to a report of a worker."""

    CONTINUE = "CONTINUE"
    """The worker trains the trial to its next evaluation."""
    PAUSE = "PAUSE"
    """The worker is free: the trial waits at a rung for a promotion."""
    STOP = "STOP"
    """The worker is free: the trial has ended."""


@dataclass(frozen=True)
class Assignment:
    """A trial that a worker is to run: a new one, or one that goes on from its last state."""

    trial: str
    """Its name, the same for its whole life."""
    point: Point
    """Its overrides by dotted key."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A report that a trial came to an evaluation; the fields are those of `Evaluation`, with
    `evaluation` for its index, and the trial's counts."""

    evaluation: int
    total: int
    epoch: float = 0.0
    step: int = 0
    score: float
    best_score: float
    best_index: int = 0
    train_loss: float = 0.0
    noise: float = 0.0
    lr: float = 0.0
    seconds: float = 0.0
    rows_per_second: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    heldout: Mapping[str, float] = field(default_factory=dict)
    adapter_params: int = 0
    classifier_params: int = 0
    micro_batch_size: int = 0
    """Rows a pass."""
    peak_memory_mb: float | None = None
    """Of the trial's GPU; None: it has none, or shares it."""

    @property
    def is_last(self) -> bool:
        """Whether the trial is complete."""
        return self.evaluation == self.total

    def record(self) -> dict[str, Any]:
        """Return what the event log keeps of it."""
        record = dict(vars(self))
        if self.peak_memory_mb is None:
            del record["peak_memory_mb"]
        if self.is_last:
            record["outcome"] = Outcome.COMPLETED.value
        return record


@dataclass(frozen=True)
class EndedEarly:
    """A report that a trial ended without another evaluation, by a fault of its own."""

    outcome: Outcome
    """Diverged, out of memory or failed."""
    error: str
    evaluation: int = 0
    """Index of its last evaluation; 0: it had none."""
    best_score: float = math.nan
    """As of then."""

    is_last = True

    def record(self) -> dict[str, Any]:
        """Return what the event log keeps of it."""
        return {
            "evaluation": self.evaluation,
            "score": math.nan,
            "best_score": self.best_score,
            "outcome": self.outcome.value,
            "error": self.error,
        }


@dataclass(frozen=True)
class StorageFailed:
    """A report that a worker cannot read or write the checkpoint store: the batch is to end, and
    the trial goes on when it is resumed."""

    error: str

    is_last = True


Report = Evaluated | EndedEarly | StorageFailed
"""What a worker says of its trial."""


@dataclass(frozen=True)
class WorkerLost:
    """An event: a trial's worker failed or died, or the machine below it."""

    error: str
    """What is known of it, whole."""
    node: str | None = None
    """Address of the machine, if known."""
    outcome: Outcome = Outcome.FAILED
    """How the trial ends if it may not go on."""
    reason: str = ""
    """What is said of that end."""
