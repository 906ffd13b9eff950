"""`sweep simulate`: a sweep on a virtual cluster, with the real driver, searcher and event log.

Only time and training are simulated. Virtual workers use the same Driver as Ray Tune does, and a
trial that loses its node goes on from its last evaluation, as a real one does.
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

from orchestrator.driver.context import RetryBudget
from orchestrator.driver.driver import Driver
from orchestrator.planning.curves import Curves
from orchestrator.reporting.view import clock
from orchestrator.search.asha import make_scheduler
from orchestrator.search.searcher import OptunaSearcher
from orchestrator.spec.config import Sweep
from orchestrator.spec.messages import Decision, EndedEarly, Evaluated, WorkerLost
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.values import Point
from orchestrator.state.event_log import EventLog

Slot = tuple[int, int]
"""A place for a trial: number of the node, number of the slot there."""


@dataclass(frozen=True)
class VirtualCluster:
    """The simulated machines."""

    nodes: int = 1
    slots: int = 1
    """Trials that run at once on a node."""
    seconds: float = 60.0
    """Seconds from one evaluation of a trial to the next."""
    losses: int = 0
    """How many times a random node is lost, at random moments."""
    away: float = 600.0
    """Seconds after which a lost node is back."""


@dataclass
class Replay:
    """The result of a simulation; str() is the output of `sweep simulate`."""

    seconds: float = 0.0
    """Virtual time from the first start to the last end."""
    evaluations: int = 0
    """Evaluations that were computed."""
    whole: int = 0
    """Evaluations of all trials without early stopping."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    rungs: dict[int, int] = field(default_factory=dict)
    """{rung: number of trials that came to it}."""
    lost: int = 0
    """How many times a trial lost its node and went on."""
    busy: float = 0.0
    """Share of the slots' time that was used."""
    winner: Point = field(default_factory=dict)
    """Overrides of the completed trial with the best score."""
    truth: float = math.nan
    """Final score of the winner on infinitely many rows."""
    best_truth: float = math.nan
    """Highest final score, on infinitely many rows, of all trials that began."""

    def __str__(self) -> str:
        ended = ", ".join(f"{n} {o.value}" for o, n in sorted(self.outcomes.items()))
        rungs = (
            ", ".join(f"{n} reached evaluation {rung}" for rung, n in self.rungs.items()) or "none"
        )
        share = self.evaluations / max(1, self.whole)
        return "\n".join(
            [
                f"trials   {ended}",
                f"rungs    {rungs}",
                f"compute  {self.evaluations:,} evaluations of {self.whole:,} without early "
                f"stopping ({100 * share:.0f} %)",
                f"time     {clock(self.seconds)}, slots busy {100 * self.busy:.0f} %",
                f"lost     {self.lost} times a trial lost its node and went on elsewhere",
                f"winner   {100 * self.truth:.2f} in truth, the best begun "
                f"{100 * self.best_truth:.2f}",
            ]
        )


def simulate(sweep: Sweep, curves: Curves, cluster: VirtualCluster, evaluations: int) -> Replay:
    """Simulate a sweep's search on a virtual cluster.

    Args:
        sweep: space, search and ASHA.
        curves: scores of its trials.
        cluster: the simulated machines.
        evaluations: evaluations of a whole trial.
    """
    with _scratch() as folder:
        driver = driver_of(sweep, cluster, evaluations, folder)
        return VirtualTime(driver, curves, cluster, evaluations, sweep.search.seed).run()


def driver_of(sweep: Sweep, cluster: VirtualCluster, evaluations: int, folder: Path) -> Driver:
    """Return a driver of a sweep's search, as a real one but with its files in `folder`."""
    study = folder / "study.journal"
    return Driver(
        "search",
        EventLog(folder / "search.jsonl"),
        make_scheduler(sweep.asha, evaluations),
        OptunaSearcher(sweep.space, sweep.search, study, sweep.name, sweep.asha),
        lambda: cluster.nodes * cluster.slots,
        RetryBudget(is_renewed=sweep.resources.trials_a_process > 1),
    )


class VirtualTime:
    """Runs a driver's trials in virtual time, by a heap of events.

    An event is the end of an evaluation, or the loss or return of a node.
    """

    def __init__(
        self, driver: Driver, curves: Curves, cluster: VirtualCluster, evaluations: int, seed: int
    ) -> None:
        """Begin at time 0.

        Args:
            driver: driver of the batch.
            curves: scores of its trials.
            cluster: the simulated machines.
            evaluations: evaluations of a whole trial.
            seed: seed of the losses: which node, when.
        """
        self.driver, self.curves, self.cluster, self.total = driver, curves, cluster, evaluations
        self.luck = random.Random(seed)
        self.free = deque((n, s) for s in range(cluster.slots) for n in range(cluster.nodes))
        self.away: set[int] = set()
        self.running: dict[Slot, tuple[str, int]] = {}
        """{busy slot: (trial, number of its stint)}."""
        self.events: list[tuple[float, int, str, int | tuple[Slot, str, int]]] = []
        self.order, self.now = itertools.count(), 0.0
        self.found = Replay()

    def run(self) -> Replay:
        """Run until no event is left; return the result."""
        horizon = self.cluster.seconds * self.total  # time of a whole trial
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

    def _at(self, when: float, kind: str, what: int | tuple[Slot, str, int]) -> None:
        heapq.heappush(self.events, (when, next(self.order), kind, what))

    def _fill(self) -> None:
        """Give every free slot a trial, as long as the driver has some."""
        while self.free and (found := self.driver.next_trial()) is not None:
            self.driver.on_start(found.trial)
            slot = self.free.popleft()
            self.running[slot] = found.trial, next(self.order)
            self._at(self.now + self.cluster.seconds, "evaluated", (slot, *self.running[slot]))

    def _evaluated(self, slot: Slot, trial: str, stint: int) -> None:
        """Report a trial's next evaluation to the driver."""
        if self.running.get(slot) != (trial, stint):
            return  # its node was lost meanwhile
        self.found.evaluations += 1
        self.found.seconds = self.now
        decision = self.driver.on_report(trial, self._report(trial), f"node {slot[0]}")
        if decision is Decision.CONTINUE:
            self._at(self.now + self.cluster.seconds, "evaluated", (slot, trial, stint))
            return
        del self.running[slot]
        self.free.append(slot)
        self.driver.on_release()

    def _report(self, name: str) -> Evaluated | EndedEarly:
        """The report that a worker would send."""
        trial = self.driver.event_log.trials[name]
        evaluation = trial.evaluations + 1
        score = self.curves.score(trial.params, evaluation)
        best = score if trial.best_score is None else max(score, trial.best_score)
        if not math.isfinite(score):
            return EndedEarly(Outcome.DIVERGED, f"the loss is {score}", trial.evaluations, best)
        noise = self.curves.noise(score)
        return Evaluated(
            evaluation=evaluation, total=self.total, score=score, best_score=best, noise=noise
        )

    def _lost(self, node: int) -> None:
        """Take a node away; the driver queues its trials again."""
        self.away.add(node)
        for slot in [slot for slot in self.running if slot[0] == node]:
            trial, _ = self.running.pop(slot)
            self.driver.on_lost(trial, WorkerLost(f"node {node} is gone", f"node {node}"))
            self.driver.on_release()
            self.found.lost += self.driver.event_log.trials[trial].outcome is None
        self.free = deque(slot for slot in self.free if slot[0] != node)
        self._at(self.now + self.cluster.away, "back", node)

    def _back(self, node: int) -> None:
        busy = {slot for slot in self.running if slot[0] == node} | set(self.free)
        self.away.discard(node)
        slots = ((node, number) for number in range(self.cluster.slots))
        self.free.extend(slot for slot in slots if slot not in busy)

    def _close(self) -> None:
        """End the trials that are still paused, and fill in the result."""
        self.driver.end_paused()
        trials = list(self.driver.event_log.trials.values())
        found = self.found
        found.whole = len(trials) * self.total
        found.outcomes.update(trial.outcome for trial in trials if trial.outcome is not None)
        found.rungs = {rung: len(came) for rung, came in self.driver.asha.rungs.items()}
        slots = self.cluster.nodes * self.cluster.slots
        worked = found.evaluations * self.cluster.seconds
        found.busy = worked / max(1e-9, found.seconds * slots)
        done = [trial for trial in trials if trial.outcome is Outcome.COMPLETED]
        if done:
            best = max(done, key=lambda trial: trial.last.best_score)
            found.winner, found.truth = best.params, self.curves.truth(best.params)
        found.best_truth = max(
            (self.curves.truth(trial.params) for trial in trials), default=math.nan
        )


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder for event log and study; in memory if the system has /dev/shm."""
    memory = Path("/dev/shm")
    place = str(memory) if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tinyattn-", dir=place) as folder:
        yield Path(folder)
