"""Status of a sweep (`sweep status`), read while its driver may be writing.

What happened to trials is read from the sweep's event logs, the rest from MLflow; all of it from
MLflow where the sweep's folder is not on this machine.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.reporting.view import brief, clock, in_brackets
from orchestrator.search.asha import make_scheduler, replay
from orchestrator.spec.batch import SEARCH
from orchestrator.spec.config import AshaConfig, Sweep
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.space import count, endless
from orchestrator.state.definition import Definition
from orchestrator.state.event_log import read_events
from orchestrator.state.events import ResultEvent
from orchestrator.state.ranking import best_of, no_candidate, passed_over, standing_of_run
from orchestrator.state.sweep_trials import current_runs
from orchestrator.state.workspace import Workspace
from orchestrator.tracking.records import FINAL_KINDS, SweepRecord, TrialRun, protocol_words
from tinyattn.errors import StorageError, UsageError

_PAGE_TRIALS = 20
"""Trials that are shown one by one."""


@dataclass(frozen=True)
class Status:
    """The status of a sweep."""

    sweep: SweepRecord
    trials: list[TrialRun]
    driver_here: bool | None
    """Whether a driver holds it; None: its folder is not on this machine."""
    paused: frozenset[str] = frozenset()
    """Names of the trials that ASHA has paused, as far as its folder is on this machine."""
    total: int | None = None
    """Trials of its search in all, begun or not; None: not known."""
    finalizes_by: str = ""
    """Command that goes on with its finalizer; empty: without overrides."""

    def __str__(self) -> str:
        sweep = self.sweep
        return "\n".join(
            [
                f"sweep    {sweep.name}: {sweep.task} on {sweep.plm}, protocol "
                f"{protocol_words(sweep.protocol, sweep.carve)}",
                f"state    {self._state()}",
                f"trials   {self._of_total()}",
                *([f"finalize {self._counts(self._finalizing)}"] if self._finalizing else []),
                f"best     {self._best()}",
                *(f"note     {line}" for line in self._ahead()),
                *(f"winner   {line}" for line in self._winner()),
                *self._lines_of_open(),
            ]
        )

    def line(self, width: int) -> str:
        """The status in one line, with the name in a column of `width` characters."""
        sweep = self.sweep
        return (
            f"{sweep.name:{width}}  {sweep.task} on {sweep.plm}: {self._state()}; "
            f"{self._of_total()}; best {self._best()}"
        )

    @property
    def _searched(self) -> list[TrialRun]:
        return [trial for trial in self.trials if trial.kind == "trial"]

    @property
    def _finalizing(self) -> list[TrialRun]:
        return [trial for trial in self.trials if trial.kind in FINAL_KINDS]

    @property
    def _open(self) -> str:
        """Name for trials without an outcome: running, or waiting if the driver is gone."""
        return "waiting" if self.driver_here is False else "running"

    def _word(self, run: TrialRun) -> str:
        """The outcome of a trial, or what it does without one."""
        trial = run.trial
        if trial.outcome is not None:
            return trial.outcome.value
        is_paused = trial.name in self.paused and self.driver_here is not False
        return "paused" if is_paused else self._open

    def _lines_of_open(self) -> list[str]:
        """Lines for the trials without an outcome, as many as fit a page."""
        found = [run for run in self.trials if run.trial.outcome is None]
        lines = [f"{self._word(run):9}{_line(run)}" for run in found[:_PAGE_TRIALS]]
        return [*lines, *([f"{'':9}{more} more"] if (more := len(found) - len(lines)) else [])]

    def _counts(self, trials: list[TrialRun]) -> str:
        found = Counter(map(self._word, trials))
        return ", ".join(f"{count} {word}" for word, count in sorted(found.items())) or "none yet"

    def _of_total(self) -> str:
        """The trials of the search, as in `2 of 3: 1 completed, 1 interrupted; 1 not begun`."""
        counts, begun = self._counts(self._searched), len(self._searched)
        if self.total is None or begun >= self.total or self.sweep.outcome is Outcome.COMPLETED:
            return counts
        return f"{begun} of {self.total}: {counts}; {self.total - begun} not begun"

    def _state(self) -> str:
        outcome, name = self.sweep.outcome, self.sweep.name
        words = f"last sign of life {clock(self._silence())} ago"
        if self.driver_here:
            return f"{'running' if outcome is None else 'finalizing'}, {words}"
        left_open = any(run.trial.outcome is None for run in self._finalizing)
        if outcome is not None and left_open and self.driver_here is False:
            command = self.finalizes_by or f"finalize {name}"
            return f"{outcome.value}, its finalize is gone; `tinyattn {command}` goes on"
        if outcome not in (None, Outcome.COMPLETED) and self.driver_here is False:
            return f"{outcome.value}; next: `tinyattn sweep resume {name}`"
        if outcome is not None:
            return outcome.value
        if self.driver_here is False:
            return f"its driver is gone ({words}); `tinyattn sweep resume {name}` goes on"
        return f"running, {words}"

    def _silence(self) -> float:
        """Seconds since the driver's last heartbeat."""
        last = float(self.sweep.tags.get("heartbeat", self.sweep.start_time / 1000))
        return max(0.0, time.time() - last)

    def _best(self) -> str:
        best = best_of(self._searched, standing_of_run)
        if best is None:
            found = [run.trial.best_score for run in self._searched]
            scores = [score for score in found if score is not None]
            others = (
                f"; the highest score of the others is {100 * max(scores):.2f}" if scores else ""
            )
            return f"no trial yet that may be called so{others}"
        trial = best.trial
        config = in_brackets(brief(trial.params))
        return f"{100 * (trial.best_score or 0):.2f}{config}, {trial.name}"

    def _ahead(self) -> list[str]:
        """Lines for a leading trial that is no candidate."""
        ahead = passed_over(self._searched, standing_of_run)
        if ahead is None:
            return []
        return [no_candidate(ahead.trial.name, ahead.trial.best_score)]

    def _winner(self) -> list[str]:
        """Lines for the adapter that the finalizer chose."""
        chosen = [run for run in self.trials if run.run_id == self.sweep.tags.get("winner")]
        return [
            f"{100 * (run.trial.best_score or 0):.2f} "
            f"({', '.join(filter(None, (run.kind, brief(run.trial.params))))}), {run.trial.name}"
            for run in chosen
        ]


def _line(run: TrialRun) -> str:
    trial = run.trial
    since = datetime.fromtimestamp(run.start_time / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    score = "–" if trial.best_score is None else f"{100 * trial.best_score:.2f}"
    return (
        f"{run.kind} {trial.name} since {since}, {trial.evaluations} evaluations, "
        f"best {score}{f': {brief(trial.params)}' if trial.params else ''}"
    )


def status(workspace: Workspace, name: str) -> Status:
    """Return the status of a sweep.

    Raises:
        UsageError: the store has no such sweep.
    """
    folder = workspace.path_of(name)
    here = workspace.is_held(name) if folder.is_dir() else None
    store = workspace.store()
    sweep = store.find_sweep(name)
    runs = current_runs(folder, store, sweep)
    by = workspace.goes_on_by(name)
    by = by if by.startswith("finalize ") else ""
    try:
        spec = Definition.read(folder, name).sweep()
    except (UsageError, StorageError):
        return Status(sweep, runs, here, finalizes_by=by)
    return Status(sweep, runs, here, _paused(folder, spec.asha), _total(spec), by)


def _total(sweep: Sweep) -> int:
    """Return how many trials a search has in all: as many as it may, or as it has points."""
    finite = not endless(sweep.space)
    return min(sweep.search.trials, count(sweep.space)) if finite else sweep.search.trials


def statuses(workspace: Workspace) -> list[str]:
    """Return a line for each sweep of the store: name, task, PLM, state and best; newest first."""
    found = [status(workspace, sweep.name) for sweep in reversed(workspace.store().sweeps())]
    width = max((len(one.sweep.name) for one in found), default=0)
    return [one.line(width) for one in found]


def _paused(folder: Path, asha: AshaConfig | None) -> frozenset[str]:
    """Return the names of the trials that ASHA has paused; none where the folder is not here."""
    try:
        events = read_events(folder / f"{SEARCH}.jsonl")
    except StorageError:
        return frozenset()
    totals = [event.result.total or 1 for event in events if isinstance(event, ResultEvent)]
    scheduler = make_scheduler(asha, max([1, *totals]))
    replay(scheduler, events)
    return frozenset(scheduler.paused)
