"""A Ray Tune trainable around a worker that stays warm. One Tune step is one evaluation."""

from __future__ import annotations

from typing import Any

from ray import tune

from orchestrator.config import Resources
from orchestrator.rank_group import RankGroup
from orchestrator.worker import Bench, Worker
from tinyattn.errors import OutOfMemoryError


class SweepTrial(tune.Trainable):
    """One trial on a warm worker, or on a group of them.

    Tune's config is `{"trial": its name, "point": its overrides}`. A trial keeps its state after
    each evaluation in a folder of its own, and whoever starts a trial of that name goes on from
    there: after the death of a worker, a node or the driver, or after a pause.
    """

    def setup(
        self,
        config: dict[str, Any],
        bench: Bench | None = None,
        resources: Resources | None = None,
    ) -> None:
        """Start the worker and its first trial.

        Args:
            config: name and overrides of the first trial.
            bench: what all trials have in common.
            resources: what one trial occupies.
        """
        assert bench is not None
        assert resources is not None
        self.worker: Worker | RankGroup = (
            Worker(bench, int(resources.cpus))
            if resources.ranks == 1
            else RankGroup(bench, resources)
        )
        self.worker.begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Go over to another trial; what loaded PLM and data keeps them."""
        self.worker.begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation and return it, with ever fewer rows a pass until it fits."""
        while (result := self._step_if_it_fits()) is None:
            self.worker.halve()
        return result

    def _step_if_it_fits(self) -> dict[str, Any] | None:
        """The next result; None: out of memory, but fewer rows a pass may fit.

        An error holds on to all that its frames hold, so it must be gone before the next try.
        """
        try:
            return self.worker.step()
        except OutOfMemoryError:
            return None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Keep nothing more: Tune asks for it at every pause and end, when all is on disk."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Read nothing: the first step finds the trial's state."""

    def cleanup(self) -> None:
        """Let go of the trial."""
        self.worker.end()
