"""Messages between workers, the driver and what runs trials for it: typed, frozen, without Ray."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from orchestrator.spec.outcome import Outcome
from orchestrator.spec.result import Result
from orchestrator.spec.values import Point


class Decision(StrEnum):
    """The driver's answer to a report of a worker."""

    CONTINUE = "CONTINUE"
    """The worker trains the trial to its next evaluation."""
    PAUSE = "PAUSE"
    """The worker is free: the trial waits at a rung for a promotion."""
    STOP = "STOP"
    """The worker is free: the trial has ended."""


class TrialKey(NamedTuple):
    """A trial among those of all sweeps that share the machines."""

    sweep: str
    trial: str


@dataclass(frozen=True)
class Assignment:
    """A trial that a worker is to run: a new one, or one that goes on from its last state."""

    trial: str
    """Its name, the same for its whole life."""
    point: Point
    """Its overrides by dotted key."""
    sweep: str = ""
    """The sweep that it belongs to, where several share the machines."""

    @property
    def key(self) -> TrialKey:
        """The trial among those of all sweeps."""
        return TrialKey(self.sweep, self.trial)


@dataclass(frozen=True, kw_only=True)
class Evaluated(Result):
    """A report that a trial came to an evaluation: a result that does not know its machine yet."""

    total: int = field()  # required, though Result's has a default

    @property
    def is_last(self) -> bool:
        """Whether the trial is complete."""
        return self.evaluation == self.total

    def result(self, node: str) -> Result:
        """Return the entry that it makes in the trial's history.

        Args:
            node: address of the worker's machine.
        """
        outcome = Outcome.COMPLETED if self.is_last else None
        return Result(**{**vars(self), "outcome": outcome, "node_ip": node})


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

    def result(self, node: str) -> Result:
        """Return the entry that it makes in the trial's history; `node` as in Evaluated."""
        return Result(
            evaluation=self.evaluation,
            score=math.nan,
            best_score=self.best_score,
            outcome=self.outcome,
            error=self.error,
            node_ip=node,
        )


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
    """Error text that is logged if the trial ends by this."""
