"""Which trial comes next: those to go on with, then what a search or a list of points suggests.

Tune names a trial anew each time it starts. Here a trial has one name for its whole life,
`search_00004`, given at its first suggestion and carried in its Tune config beside its overrides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ray.tune.search import Searcher

from orchestrator.driver.context import RetryBudget, Stop
from orchestrator.search.asha import NAME, POINT, Asha
from orchestrator.spec.outcome import Outcome
from orchestrator.state.event_log import EventLog, Past


class Source(Protocol):
    """What suggests trials and hears how they go: OptunaSearcher or Points."""

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the overrides of a new trial; None: there are no more."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Hear of an evaluation."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Hear how a trial ended."""

    def catch_up(self, trials: Iterable[Past]) -> None:
        """Hear what became of all trials so far; those without an outcome go on."""

    def finish(self, outcome: Outcome) -> None:
        """Settle what still runs: the driver ends."""


class Points:
    """Suggests given points, each once, and learns nothing."""

    def __init__(self, points: Iterable[Mapping[str, Any]]) -> None:
        self._waiting = deque(dict(point) for point in points)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the next point."""
        return self._waiting.popleft() if self._waiting else None

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Learn nothing."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn nothing."""

    def catch_up(self, trials: Iterable[Past]) -> None:
        """Leave out the points that have had their trials; points are tried in order."""
        for _ in trials:
            self._waiting.popleft()

    def finish(self, outcome: Outcome) -> None:
        """There is nothing to settle."""


class TrialQueue(Searcher):
    """What Tune asks: which trial gets a worker next.

    Trials that were running when the last driver died or that lost their worker come first, then
    those that the scheduler promotes, then new ones. A Tune trial is one stint of a trial here: one
    that pauses or loses its worker ends for Tune, and comes again under its own name.
    """

    def __init__(
        self,
        source: Source,
        event_log: EventLog,
        scheduler: Asha,
        batch: str,
        slots: Callable[[], int],
        stop: Stop,
        retry_budget: RetryBudget,
    ) -> None:
        """Bring the source up to the event log, which the scheduler has seen already.

        Args:
            source: suggests trials.
            event_log: of the batch.
            scheduler: knows who is paused.
            batch: first part of the trials' names.
            slots: how many trials run at once, as of now.
            stop: told of a source that fails; nothing more is told to it then.
            retry_budget: of the trials.
        """
        super().__init__()
        self._source, self._journal, self._scheduler = source, event_log, scheduler
        self._batch, self._slots, self._stop, self._lives = batch, slots, stop, retry_budget
        self._number = len(event_log.trials)
        self._active: dict[str, str] = {}
        """Our names by Tune's, of trials that have a worker or will get one."""
        self._exhausted = False
        self._going_on = deque(
            past.name
            for past in event_log.trials.values()
            if past.outcome is None and past.name not in scheduler.paused
        )
        source.catch_up(event_log.trials.values())

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes its searcher to disk, but the event log is what holds the truth."""
        return {}

    def set_search_properties(self, *_: Any, **__: Any) -> bool:
        """Accept whatever Tune offers: space, metric and direction are the source's own."""
        return True

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing, as above."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing, as above."""

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return name and overrides of the next trial; None: not now; FINISHED: never again."""
        if self._stop.asked or len(self._active) >= self._slots():
            return None
        found = self._again() or self._new()
        if found is None:
            return None if self._active else Searcher.FINISHED
        self._journal.start(found[NAME], found[POINT])
        self._active[trial_id] = found[NAME]
        return found

    def _again(self) -> dict[str, Any] | None:
        """A trial that goes on, after a crash or from its rung."""
        name = self._going_on.popleft() if self._going_on else self._scheduler.promote()
        return self._known(name)

    def _new(self) -> dict[str, Any] | None:
        """A trial that begins; if there are no more and nothing runs, one that gets a last call."""
        if not self._exhausted:
            name = f"{self._batch}_{self._number + 1:05d}"
            suggested = self._source.suggest(name)
            if suggested is not None:
                self._number += 1
                return {NAME: name, POINT: suggested}
            self._exhausted = True
        return None if self._active else self._known(self._scheduler.promote(is_last_call=True))

    def _known(self, name: str | None) -> dict[str, Any] | None:
        return None if name is None else {NAME: name, POINT: self._journal.trials[name].params}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Tell the source of an evaluation."""
        name = self._active[trial_id]
        self._tell(lambda: self._source.on_trial_result(name, result))

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the source how a trial ended, unless it is only paused or lost its worker."""
        name = self._active.pop(trial_id, None)
        if name is None:
            return
        if error:
            self._lives.lose(name)
            if self._lives.has(name):
                self._going_on.append(name)
                return
        if name not in self._scheduler.paused:
            self._tell(lambda: self._source.on_trial_complete(name, result, error))
        elif result is not None:
            self._tell(lambda: self._source.on_trial_result(name, result))

    def _tell(self, what: Callable[[], None]) -> None:
        """Tell the source, unless the batch is to end because something cannot be written."""
        if self._stop.error is None:
            with self._stop.on_error():
                what()
