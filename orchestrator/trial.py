"""A Ray Tune trainable around tinyattn's Trainer, in a worker that stays warm.

The worker's Workshop (PLM, tokenizer, tokenised data) outlives a trial; the Trainer, which holds
all that belongs to a trial, does not. One Tune step is one evaluation.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ray import tune

from orchestrator.memory import FILE, give_back_memory, note_too_many, rows_that_fit
from orchestrator.outcome import Outcome
from orchestrator.scheduler import NAME, POINT
from tinyattn.checkpoint import replace_folder
from tinyattn.config import TrainConfig
from tinyattn.errors import DivergedError, OutOfMemoryError, StorageError, TinyAttnError
from tinyattn.trainer import Evaluation, Trainer, out_of_memory_is_an_error
from tinyattn.workshop import Workshop

UNWRITABLE = "unwritable"
"""Key of a result that says why a worker could not write: the driver then ends the sweep."""
STATES_KEPT = 2
"""States of a trial that are kept: the last one, and one in case that it is damaged."""


class SweepTrial(tune.Trainable):
    """One trial on a warm worker.

    Tune's config is `{"trial": its name, "point": its overrides}`. A trial keeps its state after
    each evaluation in a folder of its own, and whoever starts a trial of that name goes on from
    there: after the death of a worker, a node or the driver, or after a pause.
    """

    def setup(
        self,
        config: dict[str, Any],
        base: TrainConfig | None = None,
        folder: Path | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Start the worker and its first trial.

        Args:
            config: name and overrides of the first trial.
            base: what all trials have in common.
            folder: the sweep's folder, which all nodes see; holds `adapters/NAME`, a trial's best
                adapter, and `states/NAME`, what it needs to go on.
            data_dir: where task files are.
        """
        assert base is not None
        assert folder is not None
        self.base, self.folder = base, folder
        self.memory = folder.parent.parent / FILE
        self.workshop = Workshop(data_dir)
        self._use_own_cores()
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Go over to another trial; all that is kept is the workshop."""
        self.cleanup()
        self._begin(new_config)
        return True

    def _begin(self, config: Mapping[str, Any]) -> None:
        self.name, self.overrides = config[NAME], dict(config[POINT])
        self.states = self.folder / "states" / self.name
        self.rows = sys.maxsize
        """Rows a pass, once it has started."""
        self.trainer: Trainer | None = None
        self.evaluations: Any = None
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation and return it as a flat result.

        The first step of a trial that goes on returns its last evaluation again: its worker may
        have died before the driver heard of it.
        """
        try:
            while (evaluation := self._evaluation_if_it_fits()) is None:
                self._halve()
        except DivergedError as error:
            return self._ended(Outcome.DIVERGED, error)
        except OutOfMemoryError as error:
            return self._ended(Outcome.OUT_OF_MEMORY, error)
        except StorageError as error:  # no fault of the trial: it goes on when there is room
            interrupted = Outcome.INTERRUPTED.value
            return {"done": True, UNWRITABLE: str(error), "outcome": interrupted, "evaluation": 0}
        except TinyAttnError as error:  # it would come again; other errors cost the worker
            return self._ended(Outcome.FAILED, error)
        assert self.trainer is not None
        return self._result(self.trainer, evaluation)

    def _evaluation_if_it_fits(self) -> Evaluation | None:
        """The next evaluation; None: out of memory, but fewer rows a pass may fit.

        An error holds on to all that its frames hold, so it must be gone before the next try.
        """
        try:
            return self._next_evaluation()
        except OutOfMemoryError:
            if self.rows == 1:
                raise
            return None

    def _next_evaluation(self) -> Evaluation:
        """Train to the next evaluation and keep its state; or the last one, of a trial restored."""
        with out_of_memory_is_an_error(self.base):
            if self.trainer is None and (last := self._start()) is not None:
                return last
            evaluation = next(self.evaluations)
        self._keep(evaluation)
        return evaluation

    def _start(self) -> Evaluation | None:
        """Make this trial's Trainer, from its newest state that can be read if it has one.

        Returns:
            The last evaluation of that state.
        """
        config = self.base.with_overrides(self.overrides)
        self.rows = min(self.rows, rows_that_fit(config, self.memory))
        if self.rows < (config.micro_batch_size or config.batch_size):
            config = config.with_overrides({"micro_batch_size": self.rows})
        self.trainer = Trainer(config, self.workshop)
        for state in sorted(self.states.glob("[0-9]*"), reverse=True):
            try:
                self.trainer.restore(state)
                break
            except StorageError as error:  # a torn or damaged state: the one before will do
                warnings.warn(f"{error}; going back to the state before", stacklevel=2)
                self.trainer.close()
                self.trainer = Trainer(config, self.workshop)
        self.evaluations = iter(self.trainer)
        return self.trainer.last

    def _halve(self) -> None:
        """Go back to the last state, with half the rows a pass."""
        note_too_many(self.base.with_overrides(self.overrides), self.rows, self.memory)
        self.rows //= 2
        self.cleanup()
        give_back_memory()

    def _keep(self, evaluation: Evaluation) -> None:
        """Write adapter and state to disk, before anybody hears of the evaluation."""
        trainer = self.trainer
        assert trainer is not None
        if evaluation.best_index == evaluation.index or evaluation.is_last:
            trainer.save_adapter(self.folder / "adapters" / self.name)
        with replace_folder(self.states / f"{evaluation.index:06d}") as fresh:
            trainer.save(fresh)
        for old in sorted(self.states.glob("[0-9]*"))[:-STATES_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    @staticmethod
    def _result(trainer: Trainer, evaluation: Evaluation) -> dict[str, Any]:
        counts = trainer.counts()
        result = asdict(evaluation)
        result["evaluation"] = result.pop("index")
        result |= {
            "adapter_params": counts.adapter,
            "classifier_params": counts.classifier,
            "micro_batch_size": trainer.config.micro_batch_size or trainer.config.batch_size,
        }
        if torch.cuda.is_available():
            result["peak_memory_mb"] = torch.cuda.max_memory_allocated() / 2**20
        if evaluation.is_last:
            result |= {"done": True, "outcome": Outcome.COMPLETED.value}
        return result

    def _ended(self, outcome: Outcome, error: Exception) -> dict[str, Any]:
        """The result of a trial that ends without an evaluation."""
        last = self.trainer.last if self.trainer is not None else None
        return {
            "done": True,
            "outcome": outcome.value,
            "error": str(error),
            "evaluation": 0 if last is None else last.index,
            "score": float("nan"),
            "best_score": float("nan") if last is None else last.best_score,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Keep nothing more: Tune asks for it at every pause and end, when all is on disk."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Read nothing: the first step finds the trial's state."""

    def cleanup(self) -> None:
        """Let go of the trial; the PLM is as it was."""
        if self.trainer is not None:
            self.trainer.close()
        self.trainer = None

    def _use_own_cores(self) -> None:
        """Use as many threads as the cores that Ray gave this worker: more would only contend."""
        resources = self.trial_resources
        cores = resources.required_resources.get("CPU", 1) if resources is not None else 1
        torch.set_num_threads(max(1, int(cores)))
