"""A Ray Tune trainable around a worker that stays warm. One Tune step is one evaluation."""

from __future__ import annotations

from typing import Any, Protocol

from ray import tune
from ray.tune.result import DONE

from orchestrator.driver.context import TrialContext
from orchestrator.execution.ray_compat import nothing_saved
from orchestrator.spec.config import Resources
from orchestrator.spec.messages import Assignment, Report
from tinyattn.errors import OutOfMemoryError

TRIAL, POINT = "trial", "point"
"""Keys of a Tune config: the trial's name, and its overrides by dotted key."""
REPORT = "report"
"""Key of a Tune result: the worker's report."""


class TrialWorker(Protocol):
    """What trains trials, one after the other: a Worker, a slot of a shared one, or a group."""

    def begin(self, assignment: Assignment) -> None:
        """Go over to a trial."""

    def step(self) -> Report:
        """Train to the next evaluation and report it; OutOfMemoryError: fewer rows may fit."""

    def halve(self) -> None:
        """Go back to the last state, with half the rows a pass."""

    def end(self) -> None:
        """Let go of the trial."""


class SweepTrainable(tune.Trainable):
    """One trial on a warm worker, on a share of one, or on a group of them.

    A trial leaves its state after each evaluation in the checkpoint store, and whoever starts a
    trial of that name goes on from there: after the death of a worker, a node or the driver, or
    after a pause.
    """

    context: TrialContext
    """What all trials have in common."""
    resources: Resources
    """What one trial occupies."""

    @classmethod
    def on(cls, context: TrialContext, resources: Resources) -> type[SweepTrainable]:
        """The trainable of one batch.

        `tune.with_parameters` would keep both in Ray's object store, and Ray ends a driver that
        owns objects there, without a word, once the store has died.
        """
        return type(cls.__name__, (cls,), {"context": context, "resources": resources})

    def setup(self, config: dict[str, Any]) -> None:
        """Take note of the first trial; the worker starts with its first step.

        Tune gives a trial whose actor is still starting the actor of any trial that ends, and calls
        the starting one off. Where trials end more often than a worker takes to load torch, a
        machine that joins would never get one.

        Args:
            config: name and overrides of the first trial.
        """
        self.next: Assignment | None = _assignment(config)
        """The trial that the next step begins with; None: it goes on with the one it has."""
        self.worker: TrialWorker | None = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take note of another trial; what loaded PLM and data keeps them."""
        self.next = _assignment(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation and report it, with ever fewer rows a pass until it fits."""
        if self.worker is None:
            self.worker = self._worker()
        if self.next is not None:
            self.worker.begin(self.next)
            self.next = None
        while (report := self._step_if_it_fits(self.worker)) is None:
            self.worker.halve()
        return {REPORT: report, DONE: report.is_last}

    def _worker(self) -> TrialWorker:
        # Imported here: they import torch, which an actor that is only starting must not wait for.
        if self.resources.trials_a_process > 1:
            from orchestrator.execution.shared_worker import SharedSlot

            return SharedSlot()
        from orchestrator.execution.distributed_worker import DistributedWorker
        from orchestrator.execution.worker import Worker

        if self.resources.ranks == 1:
            return Worker(self.context, int(self.resources.cpus))
        return DistributedWorker(self.context, self.resources)

    @staticmethod
    def _step_if_it_fits(worker: TrialWorker) -> Report | None:
        """The next report; None: out of memory, but fewer rows a pass may fit.

        An error holds on to all that its frames hold, so it must be gone before the next try.
        """
        try:
            return worker.step()
        except OutOfMemoryError:
            return None

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Keep nothing more. Tune asks for it at every pause and end, when the checkpoint store has
        all, and would look for its own folder, which is on the driver's disk."""
        return nothing_saved()

    def cleanup(self) -> None:
        """Let go of the trial."""
        if self.worker is not None:
            self.worker.end()


def _assignment(config: dict[str, Any]) -> Assignment:
    """What a Tune config says."""
    return Assignment(config[TRIAL], config[POINT])
