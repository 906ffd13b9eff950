"""Whom to stop: asynchronous successive halving (ASHA), counting evaluations.

The stopping variant of Li et al., "A System for Massively Parallel Hyperparameter Tuning",
MLSys 2020. At a rung (an evaluation number grace · η^k) a trial goes on if it is among the best
⌊n/η⌋ of the n trials recorded there so far, and at least if it is the best: the same rule as
optuna's SuccessiveHalvingPruner, which adds that least one because a stopped trial never comes
back. What differs from published ASHA:

- Ties count against the later arrival: a trial survives if fewer than max(1, ⌊n/η⌋) of the others
  recorded there are at least as good. A crowd of collapsed majority-class trials does not survive
  for being many, as it does where only scores below the cutoff are stopped.
- A trial with a score that is not finite stops at once and is not recorded, so it takes no part
  in n.
- Rungs count the evaluations that the trial itself reports: Tune's training_iteration may start
  again after a failure.

The state is plain data (`get_state`), because Tune does not save its schedulers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from orchestrator.outcome import Outcome


def rungs(grace: int, reduction: int, total: int) -> list[int]:
    """Return the evaluations grace · reduction^k below `total` at which trials may be stopped."""
    levels = []
    level = grace
    while level < total:
        levels.append(level)
        level *= reduction
    return levels


class Asha(FIFOScheduler):
    """Stops trials that fall behind at a rung; first come, first served otherwise.

    Attributes:
        rungs: {evaluation: {trial id: best score when it came there}}, in order of arrival.
        stopped: {trial id: rung where it was stopped}.
    """

    def __init__(self, grace: int, reduction: int, total: int) -> None:
        """Set the rungs.

        Args:
            grace: evaluations that every trial gets.
            reduction: η; about one in η goes on at each rung.
            total: evaluations of a whole trial, which ends by itself.
        """
        super().__init__()
        self.reduction = reduction
        self.rungs: dict[int, dict[str, float]] = {n: {} for n in rungs(grace, reduction, total)}
        self.stopped: dict[str, int] = {}

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str:
        """Return STOP or CONTINUE for a result with `evaluation`, `score` and `best_score`."""
        return self.decide(trial.trial_id, result)

    def decide(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Record the trial at its rung, if it stands at a new one, and return STOP or CONTINUE."""
        if trial_id in self.stopped or _diverged(result):
            return TrialScheduler.STOP
        rung = self._rung_reached(trial_id, result.get("evaluation", 0))
        if rung is None or "best_score" not in result:
            return TrialScheduler.CONTINUE
        recorded = self.rungs[rung]
        recorded[trial_id] = float(result["best_score"])
        if self._survives(trial_id, recorded):
            return TrialScheduler.CONTINUE
        self.stopped[trial_id] = rung
        return TrialScheduler.STOP

    def _rung_reached(self, trial_id: str, evaluation: int) -> int | None:
        """The highest rung reached, unless the trial was judged there or higher before.

        A trial that skipped a rung is judged at the highest one only: its score of now would be
        unfair to those recorded at the lower one.
        """
        reached = [rung for rung in self.rungs if rung <= evaluation]
        judged = [rung for rung, recorded in self.rungs.items() if trial_id in recorded]
        if not reached or (judged and max(judged) >= max(reached)):
            return None
        return max(reached)

    def _survives(self, trial_id: str, recorded: Mapping[str, float]) -> bool:
        score = recorded[trial_id]
        as_good = sum(other >= score for key, other in recorded.items() if key != trial_id)
        return as_good < max(1, len(recorded) // self.reduction)

    def debug_string(self) -> str:
        """Return one line for Tune's own log."""
        counts = ", ".join(f"{rung}: {len(scores)}" for rung, scores in self.rungs.items())
        return f"ASHA: {len(self.stopped)} stopped; trials recorded at each rung: {counts}"

    def get_state(self) -> dict[str, Any]:
        """Return rungs and stops as plain data that JSON can hold."""
        return {
            "rungs": {str(rung): dict(scores) for rung, scores in self.rungs.items()},
            "stopped": dict(self.stopped),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned.

        Rungs are those of this scheduler: where they changed, records at others are dropped.
        """
        for rung in self.rungs:
            self.rungs[rung] = dict(state["rungs"].get(str(rung), {}))
        self.stopped = dict(state["stopped"])


def _diverged(result: Mapping[str, Any]) -> bool:
    scores = (result.get("score", 0.0), result.get("best_score", 0.0))
    return result.get("outcome") == Outcome.DIVERGED or not all(map(math.isfinite, scores))
