"""A Ray Tune trainable around tinyattn's Trainer, in a worker that stays warm.

The worker's Workshop (PLM, tokenizer, tokenised data) outlives a trial; the Trainer, which holds
all that belongs to a trial, does not. One Tune step is one evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ray import tune

from orchestrator.outcome import Outcome
from tinyattn.config import TrainConfig
from tinyattn.errors import DivergedError, OutOfMemoryError, TinyAttnError
from tinyattn.trainer import Evaluation, Trainer, out_of_memory_is_an_error
from tinyattn.workshop import Workshop

POINT = "point"
"""Key of a Tune config that holds a trial's overrides where no searcher made them."""


class SweepTrial(tune.Trainable):
    """One trial on a warm worker.

    Tune's config is the trial's overrides (`{"optimizer.lr": 6.8e-4}`), bare or under `point`.
    """

    def setup(
        self,
        config: dict[str, Any],
        base: TrainConfig | None = None,
        adapters: Path | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Start the worker and its first trial.

        Args:
            config: the first trial's overrides.
            base: what all trials have in common.
            adapters: folder that gets each trial's best adapter, by trial id.
            data_dir: where task files are.
        """
        assert base is not None
        assert adapters is not None
        self.base, self.adapters = base, adapters
        self.workshop = Workshop(data_dir)
        self._use_own_cores()
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Go over to another trial; all that is kept is the workshop."""
        self.cleanup()
        self._begin(new_config)
        return True

    def _begin(self, config: Mapping[str, Any]) -> None:
        self.overrides = dict(config.get(POINT, config))
        self.trainer: Trainer | None = None
        self.evaluations: Any = None
        self.restore_from: Path | None = None
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation and return it as a flat result."""
        try:
            with out_of_memory_is_an_error(self.base):
                trainer = self._trainer()
                evaluation = next(self.evaluations)
            if evaluation.best_index == evaluation.index or evaluation.is_last:
                trainer.save_adapter(self.adapters / self.trial_id)
        except DivergedError as error:
            return self._ended(Outcome.DIVERGED, error)
        except OutOfMemoryError as error:
            return self._ended(Outcome.OUT_OF_MEMORY, error)
        except TinyAttnError as error:  # it would come again; other errors cost the worker
            return self._ended(Outcome.FAILED, error)
        return self._result(trainer, evaluation)

    def _trainer(self) -> Trainer:
        """This trial's Trainer, made at its first step, where errors become outcomes."""
        if self.trainer is None:
            self.trainer = Trainer(self.base.with_overrides(self.overrides), self.workshop)
            if self.restore_from is not None:
                self.trainer.restore(self.restore_from)
            self.evaluations = iter(self.trainer)
        return self.trainer

    @staticmethod
    def _result(trainer: Trainer, evaluation: Evaluation) -> dict[str, Any]:
        counts = trainer.counts()
        result = asdict(evaluation)
        result["evaluation"] = result.pop("index")
        result |= {
            "adapter_params": counts.adapter,
            "classifier_params": counts.classifier,
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
        """Write what this trial needs to go on after its last evaluation."""
        if self.trainer is not None:  # else it failed before it had anything to keep
            self.trainer.save(Path(checkpoint_dir))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from a checkpoint at the next step."""
        self.cleanup()
        self.restore_from = Path(checkpoint)
        self._trainer()

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
