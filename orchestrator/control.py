"""Another terminal's hand on a sweep: see how it stands, stop it or one of its trials."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.definition import Definition
from orchestrator.home import REQUESTS, STOP_ALL, Home
from orchestrator.journal import Past, read_journal
from orchestrator.ranking import best_of, no_candidate, passed_over, standing_of
from orchestrator.store import FINAL_KINDS, SweepRecord, TrialRecord, protocol_words
from orchestrator.view import brief, clock, short
from tinyattn.errors import StorageError, TinyAttnError, UsageError

_WAIT_SECONDS = 120.0
"""How long a stopped sweep may take to close what runs."""
_PAGE_TRIALS = 20
"""Trials that are shown one by one."""


@dataclass(frozen=True)
class Status:
    """How a sweep stands, as far as its MLflow store knows."""

    sweep: SweepRecord
    trials: list[TrialRecord]
    driver_here: bool | None
    """Whether a driver holds it; None: its folder is not on this machine."""

    def __str__(self) -> str:
        sweep = self.sweep
        return "\n".join(
            [
                f"sweep    {sweep.name}: {sweep.task} on {sweep.plm}, protocol "
                f"{protocol_words(sweep.protocol, sweep.carve)}",
                f"state    {self._state()}",
                f"trials   {self._counts(self._searched)}",
                *([f"finalize {self._counts(self._finalizing)}"] if self._finalizing else []),
                f"best     {self._best()}",
                *(f"note     {line}" for line in self._ahead()),
                *(f"winner   {line}" for line in self._winner()),
                *self._lines_of_open(),
            ]
        )

    @property
    def _searched(self) -> list[TrialRecord]:
        return [trial for trial in self.trials if trial.kind == "trial"]

    @property
    def _finalizing(self) -> list[TrialRecord]:
        return [trial for trial in self.trials if trial.kind in FINAL_KINDS]

    @property
    def _open(self) -> str:
        """What trials are that have no outcome: without their driver they only wait."""
        return "waiting" if self.driver_here is False else "running"

    def _lines_of_open(self) -> list[str]:
        """The trials without an outcome, as many as a page has."""
        found = [trial for trial in self.trials if trial.outcome is None]
        lines = [f"{self._open:9}{_line(trial)}" for trial in found[:_PAGE_TRIALS]]
        return [*lines, *([f"{'':9}{more} more"] if (more := len(found) - len(lines)) else [])]

    def _counts(self, trials: list[TrialRecord]) -> str:
        found = Counter(self._open if t.outcome is None else t.outcome.value for t in trials)
        return ", ".join(f"{count} {word}" for word, count in sorted(found.items())) or "none yet"

    def _state(self) -> str:
        outcome, name = self.sweep.outcome, self.sweep.name
        words = f"last sign of life {clock(self._silence())} ago"
        if self.driver_here:
            return f"{'running' if outcome is None else 'finalizing'}, {words}"
        left_open = any(trial.outcome is None for trial in self._finalizing)
        if outcome is not None and left_open and self.driver_here is False:
            return f"{outcome.value}, its finalize is gone; `tinyattn finalize {name}` goes on"
        if outcome is not None:
            return outcome.value
        if self.driver_here is False:
            return f"its driver is gone ({words}); `tinyattn sweep resume {name}` goes on"
        return f"running, {words}"

    def _silence(self) -> float:
        """Seconds since the driver's last word."""
        last = float(self.sweep.tags.get("heartbeat", self.sweep.start_time / 1000))
        return max(0.0, time.time() - last)

    def _best(self) -> str:
        best = best_of(self._searched, standing_of)
        if best is None:
            return "no score yet"
        return f"{100 * (best.best_score or 0):.2f} ({brief(best.params)}), run {best.run_id[:8]}"

    def _ahead(self) -> list[str]:
        """What leads and is no candidate."""
        ahead = passed_over(self._searched, standing_of)
        return [] if ahead is None else [no_candidate(short(ahead.trial_id), ahead.best_score)]

    def _winner(self) -> list[str]:
        """What the finalizer chose."""
        chosen = [t for t in self.trials if t.run_id == self.sweep.tags.get("winner")]
        return [
            f"{100 * (t.best_score or 0):.2f} ({t.kind}, {brief(t.params)}), run {t.run_id[:8]}"
            for t in chosen
        ]


def _line(trial: TrialRecord) -> str:
    since = datetime.fromtimestamp(trial.start_time / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    score = "–" if trial.best_score is None else f"{100 * trial.best_score:.2f}"
    return (
        f"{trial.kind} {short(trial.trial_id)} since {since}, {trial.evaluations} evaluations, "
        f"best {score}: {brief(trial.params)}"
    )


def status(home: Home, name: str) -> Status:
    """Return how a sweep stands.

    Raises:
        UsageError: the store has no such sweep.
    """
    here = home.is_held(name) if home.path_of(name).is_dir() else None
    store = home.store()
    sweep = store.find_sweep(name)
    return Status(sweep, store.trials_of(sweep), here)


def stop(home: Home, name: str, trial: str | None, say: Callable[[str], None]) -> None:
    """Ask the driver of a sweep on this machine to end it, or one of its trials.

    Args:
        home: where the sweep is kept.
        name: the sweep.
        trial: `#4`, `4` or `search_00004`; None: all of it.
        say: told what happens.

    Raises:
        UsageError: nobody works on it here, or it has no such trial running.
    """
    folder = home.path_of(name)
    Definition.read(folder, name)  # UsageError that lists the sweeps there are
    if not home.is_held(name):
        raise UsageError(
            f"nobody works on sweep '{name}' in {home.runs}; `tinyattn sweep status {name}` shows "
            "how it stands"
        )
    if trial is not None:
        live = _live_trial(folder, trial)
        _request(folder, live.name)
        say(f"trial {short(live.name)} ends at its next evaluation")
        return
    _request(folder, STOP_ALL)
    say(f"sweep {name} ends: waiting until its runs are closed")
    deadline = time.monotonic() + _WAIT_SECONDS
    while home.is_held(name):
        if time.monotonic() > deadline:
            raise TinyAttnError(
                f"sweep '{name}' was asked to end and has not within {_WAIT_SECONDS:.0f} s; it "
                f"may still, see `tinyattn sweep status {name}`, or kill its process: nothing is "
                "lost by that"
            )
        time.sleep(0.5)
    say(f"it has ended; `tinyattn sweep resume {name}` goes on with it")


def _live_trial(folder: Path, word: str) -> Past:
    """The running trial that a user means."""
    trials = [
        past
        for path in folder.glob("*.jsonl")
        for past in read_journal(path).values()
        if past.outcome is None
    ]
    found = [past for past in trials if word in (past.name, short(past.name), short(past.name)[1:])]
    if len(found) != 1:
        names = ", ".join(past.name for past in trials) or "none"
        raise UsageError(f"'{word}' is not a running trial; running are {names}")
    return found[0]


def _request(folder: Path, word: str) -> None:
    requests = folder / REQUESTS
    try:
        requests.mkdir(exist_ok=True)
        (requests / word).touch()
    except OSError as error:
        raise StorageError(
            f"{requests}: the wish to stop cannot be left there: {error.strerror}; only an account "
            "that may write there can end the sweep"
        ) from None
