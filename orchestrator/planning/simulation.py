"""`sweep simulate`: a sweep on a virtual cluster, with the real searcher, scheduler and event log.

Only time and training are made up. Slots ask the same TrialQueue that Tune asks, results go through
the same event log to the same ASHA and Optuna study, and a node that is lost takes its running
trials back to their last evaluation, as a real one does.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.driver.context import RetryBudget, Stop
from orchestrator.driver.trial_queue import TrialQueue
from orchestrator.planning.curves import Curves
from orchestrator.reporting.view import clock
from orchestrator.search.asha import NAME, Asha, make_scheduler
from orchestrator.search.searcher import OptunaSearcher
from orchestrator.spec.config import Sweep
from orchestrator.spec.outcome import Outcome
from orchestrator.state.event_log import EventLog

STOP = "STOP"


@dataclass(frozen=True)
class VirtualCluster:
    """Machines that are not there."""

    nodes: int = 1
    slots: int = 1
    """Trials at once on a node."""
    seconds: float = 60.0
    """From one evaluation to the next."""
    losses: int = 0
    """Times that a node is lost, at random moments; it is back after `away` seconds."""
    away: float = 600.0


@dataclass
class Replay:
    """What came of it."""

    seconds: float = 0.0
    """Virtual time from the first start to the last end."""
    evaluations: int = 0
    """All that were computed, those computed again after a loss among them."""
    whole: int = 0
    """Evaluations of all trials without early stopping."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    rungs: dict[int, int] = field(default_factory=dict)
    """Trials that came to each rung."""
    lost: int = 0
    """Trials that a node took down; each went on."""
    busy: float = 0.0
    """Share of the slots' time that was used."""
    winner: dict[str, Any] = field(default_factory=dict)
    """Configuration of the best trial that was trained whole."""
    truth: float = math.nan
    """What the winner scores on infinitely many rows."""
    best_truth: float = math.nan
    """What the best of all trials that began would have scored."""

    def __str__(self) -> str:
        ended = ", ".join(f"{n} {o.value}" for o, n in sorted(self.outcomes.items()))
        rungs = ", ".join(f"{rung}: {n} came" for rung, n in self.rungs.items()) or "none"
        share = self.evaluations / max(1, self.whole)
        return "\n".join(
            [
                f"trials   {ended}",
                f"rungs    {rungs}",
                f"compute  {self.evaluations:,} evaluations of {self.whole:,} without early "
                f"stopping ({100 * share:.0f} %)",
                f"time     {clock(self.seconds)}, slots busy {100 * self.busy:.0f} %",
                f"lost     {self.lost} trials lost their node and went on where they were",
                f"winner   {100 * self.truth:.2f} in truth, the best begun "
                f"{100 * self.best_truth:.2f}",
            ]
        )


def simulate(sweep: Sweep, curves: Curves, cluster: VirtualCluster, evaluations: int) -> Replay:
    """Replay a sweep's search on a virtual cluster.

    Args:
        sweep: space, search and ASHA.
        curves: what its trials score.
        cluster: where they run.
        evaluations: of a whole trial.
    """
    with _scratch() as folder:
        return _Simulation(sweep, curves, cluster, evaluations, folder).run()


class _Simulation:
    """Virtual time: a heap of events, each at the end of one evaluation or of a node's absence."""

    def __init__(
        self, sweep: Sweep, curves: Curves, cluster: VirtualCluster, evaluations: int, folder: Path
    ) -> None:
        self.curves, self.cluster, self.total = curves, cluster, evaluations
        self.luck = random.Random(sweep.search.seed)
        self.event_log = EventLog(folder / "search.jsonl")
        self.asha: Asha = make_scheduler(sweep.asha, evaluations)
        source = OptunaSearcher(
            sweep.space, sweep.search, folder / "study.journal", sweep.name, sweep.asha
        )
        slots = cluster.nodes * cluster.slots
        self.source = source
        self.trial_queue = TrialQueue(
            source, self.event_log, self.asha, "search", lambda: slots, Stop(), RetryBudget()
        )
        self.free = deque((n, s) for s in range(cluster.slots) for n in range(cluster.nodes))
        self.away: set[int] = set()
        self.running: dict[tuple[int, int], tuple[str, int]] = {}
        """In each busy slot (node, number): Tune's name of the trial, and the assignment."""
        self.names: dict[str, str] = {}
        self.again: deque[str] = deque()
        """Trials that a node took down, by Tune's names."""
        self.events: list[tuple[float, int, str, Any]] = []
        self.order, self.now = itertools.count(), 0.0
        self.found = Replay()

    def run(self) -> Replay:
        """Run to the end."""
        horizon = self.cluster.seconds * self.total  # losses fall into the first trials' time
        for _ in range(self.cluster.losses):
            self._at(
                self.luck.uniform(0, 3 * horizon), "lost", self.luck.randrange(self.cluster.nodes)
            )
        self._fill()
        while self.events:
            self.now, _, kind, what = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(*what if isinstance(what, tuple) else (what,))
            self._fill()
        self._close()
        return self.found

    def _at(self, when: float, kind: str, what: Any) -> None:
        heapq.heappush(self.events, (when, next(self.order), kind, what))

    def _fill(self) -> None:
        """Give every free slot a trial, as long as there are some."""
        while self.free:
            tune_id = self.again.popleft() if self.again else self._ask()
            if tune_id is None:
                return
            slot = self.free.popleft()
            self.running[slot] = tune_id, next(self.order)
            self._at(self.now + self.cluster.seconds, "evaluated", (slot, *self.running[slot]))

    def _ask(self) -> str | None:
        tune_id = f"tune{next(self.order)}"
        config = self.trial_queue.suggest(tune_id)
        if not isinstance(config, dict):
            return None
        self.names[tune_id] = config[NAME]
        return tune_id

    def _evaluated(self, slot: tuple[int, int], tune_id: str, assignment: int) -> None:
        """A trial has come to its next evaluation."""
        if self.running.get(slot) != (tune_id, assignment):
            return  # its node was lost meanwhile
        self.found.evaluations += 1
        self.found.seconds = self.now
        past = self.event_log.trials[self.names[tune_id]]
        result = self._result(past.name)
        decision = STOP if "outcome" in result else self.asha.decide(past.name, result)
        self.event_log.result(past.name, result)
        if decision != STOP:
            self.trial_queue.on_trial_result(tune_id, result)
            again = (slot, tune_id, assignment)
            self._at(self.now + self.cluster.seconds, "evaluated", again)
            return
        if past.name not in self.asha.paused:
            self.event_log.end(past.name, Outcome.STOPPED)
        self.trial_queue.on_trial_complete(tune_id, result)
        del self.running[slot]
        self.free.append(slot)

    def _result(self, name: str) -> dict[str, Any]:
        """What a worker would report."""
        past = self.event_log.trials[name]
        evaluation = past.evaluations + 1
        score = self.curves.score(past.params, evaluation)
        best = max(score, past.last.get("best_score", -math.inf))
        result = {"evaluation": evaluation, "total": self.total, "score": score, "best_score": best}
        if not math.isfinite(score):
            return result | {"outcome": Outcome.DIVERGED.value, "evaluation": past.evaluations}
        result["noise"] = self.curves.noise(score)
        if evaluation == self.total:
            result["outcome"] = Outcome.COMPLETED.value
        return result

    def _lost(self, node: int) -> None:
        """A node goes away; its trials wait for another slot."""
        self.away.add(node)
        for slot in [slot for slot in self.running if slot[0] == node]:
            self.again.append(self.running.pop(slot)[0])
            self.found.lost += 1
        self.free = deque(slot for slot in self.free if slot[0] != node)
        self._at(self.now + self.cluster.away, "back", node)

    def _back(self, node: int) -> None:
        busy = {slot for slot in self.running if slot[0] == node} | set(self.free)
        self.away.discard(node)
        slots = ((node, number) for number in range(self.cluster.slots))
        self.free.extend(slot for slot in slots if slot not in busy)

    def _close(self) -> None:
        """End what waits for a promotion that will not come, and count."""
        for name in list(self.asha.paused):
            del self.asha.paused[name]
            self.event_log.end(name, Outcome.STOPPED)
        trials = list(self.event_log.trials.values())
        found = self.found
        found.whole = len(trials) * self.total
        found.outcomes.update(past.outcome for past in trials if past.outcome is not None)
        found.rungs = {rung: len(came) for rung, came in self.asha.rungs.items()}
        slots = self.cluster.nodes * self.cluster.slots
        worked = found.evaluations * self.cluster.seconds
        found.busy = worked / max(1e-9, found.seconds * slots)
        done = [past for past in trials if past.outcome is Outcome.COMPLETED]
        if done:
            best = max(done, key=lambda past: past.last["best_score"])
            found.winner, found.truth = best.params, self.curves.truth(best.params)
        found.best_truth = max(
            (self.curves.truth(past.params) for past in trials), default=math.nan
        )


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for event logs that nobody keeps, in memory where there is such a disk."""
    memory = Path("/dev/shm")
    place = str(memory) if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tinyattn-", dir=place) as folder:
        yield Path(folder)
