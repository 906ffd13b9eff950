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
- Rungs count the evaluations that the trial itself reports.

The state follows from the results in their order of arrival, so an `Asha` that decides on an event
log's results again is the one that was lost.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.spec.config import AshaConfig, rungs
from orchestrator.spec.messages import Decision
from orchestrator.spec.outcome import Outcome

TOLERANCE = 0.5
"""In standard errors of a score."""


class Asha:
    """Stops trials that fall behind at a rung; first come, first served otherwise.

    Attributes:
        rungs: {evaluation: {trial: best score when it came there}}, in order of arrival.
        stopped: {trial: rung where it was stopped}.
        noise: {trial: standard error of its score when it came to its last rung}.
        unwanted: trials that the user wants to end, at their next evaluation.
        paused: {trial: rung where it waits}; empty here, see PromotingAsha.
    """

    def __init__(self, grace: int, reduction: int, total: int) -> None:
        """Set the rungs.

        Args:
            grace: evaluations that every trial gets.
            reduction: η; about one in η goes on at each rung.
            total: evaluations of a whole trial, which ends by itself.
        """
        self.reduction = reduction
        self.noise: dict[str, float] = {}
        self.rungs: dict[int, dict[str, float]] = {n: {} for n in rungs(grace, reduction, total)}
        self._ranked: dict[int, list[tuple[float, int, str]]] = {n: [] for n in self.rungs}
        """The same by rung, best first, of equals the earlier: (-score, arrival, trial)."""
        self._is_noisy = dict.fromkeys(self.rungs, False)
        """Whether a score at a rung has a known noise."""
        self.stopped: dict[str, int] = {}
        self.unwanted: set[str] = set()
        self.paused: dict[str, int] = {}

    def decide(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        """Record the trial at its rung, if it stands at a new one, and decide whether it goes on.

        Args:
            trial_id: the trial.
            result: has `evaluation`, `score` and `best_score`, perhaps `noise`.
        """
        if trial_id in self.stopped or trial_id in self.unwanted or _diverged(result):
            return Decision.STOP
        rung = self._rung_reached(trial_id, result.get("evaluation", 0))
        if rung is None or "best_score" not in result:
            return Decision.CONTINUE
        self._record(trial_id, rung, float(result["best_score"]))
        self.noise[trial_id] = float(result.get("noise", 0.0))
        self._is_noisy[rung] |= self.noise[trial_id] > 0
        return self._judge(trial_id, rung)

    def _record(self, trial_id: str, rung: int, score: float) -> None:
        recorded = self.rungs[rung]
        bisect.insort(self._ranked[rung], (-score, len(recorded), trial_id))
        recorded[trial_id] = score

    def _judge(self, trial_id: str, rung: int) -> Decision:
        """Say what becomes of a trial that was just recorded at a rung."""
        if self._survives(trial_id, rung):
            return Decision.CONTINUE
        self.stopped[trial_id] = rung
        return Decision.STOP

    def promote(self, is_last_call: bool = False) -> str | None:
        """Return a paused trial that is to go on; None here, where no trial pauses.

        Args:
            is_last_call: nothing runs and there are no new trials.
        """
        return None

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

    def _survives(self, trial_id: str, rung: int) -> bool:
        ranked, score = self._ranked[rung], self.rungs[rung][trial_id]
        as_good = bisect.bisect_right(ranked, (-score, math.inf)) - 1  # without itself
        return as_good < max(1, len(ranked) // self.reduction)


def make_scheduler(asha: AshaConfig | None, evaluations: int) -> Asha:
    """A fresh scheduler for trials of so many evaluations; without `asha` one that has no rungs."""
    if asha is None:
        return Asha(evaluations, 2, evaluations)
    kind = PromotingAsha if asha.mode == "promote" else Asha
    return kind(asha.grace, asha.reduction, evaluations)


def replay(asha: Asha, events: Iterable[Mapping[str, Any]]) -> None:
    """Bring a fresh ASHA to where an event log's events left the one that is gone."""
    for event in events:
        name, result = event["trial"], event.get("result")
        if result is not None and "outcome" not in result:
            asha.decide(name, result)
        else:  # it was promoted, or has ended
            asha.paused.pop(name, None)


class PromotingAsha(Asha):
    """Pauses every trial at its rung and goes on with those that prove to be the best.

    The variant of Li et al. 2020, algorithm 2: when there is room, the best trial of the highest
    rung that is promotable and waits there is promoted; if there is none, a new trial begins at the
    bottom. No early arrival goes on for being early, and no trial is lost for being judged before
    there was anything to compare it with. When nothing is left to run, a rung from which nobody
    went on sends its best one, so that some trial is trained whole.

    Promotable are, as published, the top ⌊n/η⌋ of a rung where scores have no known noise. Where
    they have, a difference within it is no reason to leave a trial behind, nor is it one to keep
    many: the top ⌊n/(η+1)⌋ go on, and up to twice as many where they are within `TOLERANCE`
    standard errors of the last of those. See EXPERIMENTS.md for what that gains.
    """

    def __init__(self, grace: int, reduction: int, total: int) -> None:
        super().__init__(grace, reduction, total)
        self._waiting: dict[int, list[tuple[float, int, str]]] = {n: [] for n in self.rungs}
        """Who paused at a rung, as `_ranked`; some may have gone on or ended since."""

    def _judge(self, trial_id: str, rung: int) -> Decision:
        """Pause a trial, unless it is the next to be promoted."""
        self.paused[trial_id] = rung
        arrival = len(self.rungs[rung]) - 1
        bisect.insort(self._waiting[rung], (-self.rungs[rung][trial_id], arrival, trial_id))
        if self._best_waiting() == trial_id:
            del self.paused[trial_id]
            return Decision.CONTINUE
        return Decision.PAUSE

    def promote(self, is_last_call: bool = False) -> str | None:
        """Return a paused trial that is to go on, which is then no longer paused; None: none is."""
        chosen = self._best_waiting() or (self._last_hope() if is_last_call else None)
        if chosen is not None:
            del self.paused[chosen]
        return chosen

    def _best_waiting(self) -> str | None:
        """The best promotable trial of the highest rung that has one."""
        for rung, waiting in reversed(self._waiting.items()):
            while waiting and not self._waits(waiting[0][2], rung):
                del waiting[0]
            # If the best that waits is not promotable, the others are not either.
            if waiting and self._is_promotable(waiting[0], rung):
                return waiting[0][2]
        return None

    def _waits(self, name: str, rung: int) -> bool:
        return self.paused.get(name) == rung and name not in self.unwanted

    def _is_promotable(self, entry: tuple[float, int, str], rung: int) -> bool:
        """Whether a trial that stands at a rung is among those that go on."""
        ranked = self._ranked[rung]
        place = bisect.bisect_left(ranked, entry)
        if not self._is_noisy[rung]:
            return place < len(ranked) // self.reduction
        sure, most = (count * len(ranked) // (self.reduction + 1) for count in (1, 2))
        if place < sure or not sure:
            return place < sure
        score, _, last = ranked[sure - 1]
        return place < most and -entry[0] >= -score - TOLERANCE * self.noise[last]

    def _last_hope(self) -> str | None:
        """The best trial of the highest rung that was reached, if nobody went on from there."""
        for rung, recorded in reversed(self.rungs.items()):
            if recorded:
                waiting = [name for name in recorded if self.paused.get(name) == rung]
                wanted = [name for name in waiting if name not in self.unwanted]
                everybody = wanted and len(waiting) == len(recorded)
                return max(wanted, key=lambda name: recorded[name]) if everybody else None
        return None


def _diverged(result: Mapping[str, Any]) -> bool:
    scores = (result.get("score", 0.0), result.get("best_score", 0.0))
    return result.get("outcome") == Outcome.DIVERGED or not all(map(math.isfinite, scores))
