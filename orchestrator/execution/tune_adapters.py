"""Ray Tune's extension points as thin adapters over a driver, which does not know Ray.

Tune names a trial anew each time that it starts: a Tune trial is one stint of a trial here. One
that pauses or loses its worker ends for Tune, and comes again as another.

| Tune calls, in this order               | the driver hears                                       |
|-----------------------------------------|--------------------------------------------------------|
| searcher.suggest                        | `next_trial`                                           |
| callback.on_trial_start                 | `on_start`                                             |
| scheduler.on_trial_result, then         | `on_report` from the first: where a result says that   |
| callback.on_trial_result                | the trial is done, Tune leaves out the scheduler       |
| scheduler.on_trial_error                | `on_lost`                                              |
| searcher.on_trial_complete, at all ends | `on_release`                                           |
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import NODE_IP, TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from orchestrator.driver.context import Stop
from orchestrator.driver.driver import Driver
from orchestrator.execution.nodes import TooSmallError, refuse_dead_ray
from orchestrator.execution.ray_compat import address_in
from orchestrator.execution.trainable import POINT, REPORT, TRIAL
from orchestrator.spec.messages import Decision, WorkerLost
from orchestrator.spec.outcome import Outcome

LESS_MEMORY = "fewer trials at once (resources.concurrent) or a smaller micro_batch_size need less"
POLL_SECONDS = 1.0
"""How often the driver looks for requests and machines."""

_NO_RESULT = (0, TrialScheduler.CONTINUE)
"""Number and answer of the result before the first."""

T = TypeVar("T")


class TuneEvents:
    """Turns what Tune calls into events of the driver, each of which it hears once.

    It does nothing more once the batch is to end because of an error.
    """

    def __init__(self, driver: Driver, stop: Stop) -> None:
        self.stop = stop
        self._driver = driver
        self._trials: dict[str, str] = {}
        """Names of trials by Tune's names of their stints, of those that have a worker or will."""
        self._decided: dict[str, tuple[int, str]] = {}
        """By the same, the last result that the driver heard of, as Tune counts them, and what
        Tune is to do."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes searcher and callbacks to disk, but a terminal's view cannot be
        pickled, and a store's password must not be. The event log is what holds the truth."""
        return {}

    def next_trial(self, stint: str) -> dict[str, Any] | str | None:
        """Return the Tune config of the next trial; None: not now; FINISHED: never again."""
        found = None if self.stop.asked else self._tell(self._driver.next_trial, None)
        if found is None:
            return Searcher.FINISHED if self._driver.is_finished else None
        self._trials[stint] = found.trial
        return {TRIAL: found.trial, POINT: dict(found.point)}

    def start(self, stint: str) -> None:
        """A stint has a worker."""
        self._tell(lambda: self._driver.on_start(self._trials[stint]), None)

    def result(self, stint: str, result: Mapping[str, Any]) -> str:
        """Return what Tune is to do after a result, flattened or not."""
        number = result[TRAINING_ITERATION]
        heard, answer = self._decided.get(stint, _NO_RESULT)
        if number != heard:
            report, node = result[REPORT], result[NODE_IP]
            decision = self._tell(
                lambda: self._driver.on_report(self._trials[stint], report, node),
                Decision.CONTINUE,  # Tune ends before it comes to that
            )
            goes_on = decision is Decision.CONTINUE
            answer = TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP
            self._decided[stint] = number, answer
        return answer

    def lost(self, trial: Trial) -> None:
        """A stint failed."""
        if self.stop.asked:  # Ray may be ending too; the next driver goes on with the trial
            return
        _, answer = self._decided.get(trial.trial_id, _NO_RESULT)
        if answer == TrialScheduler.STOP:  # the worker had nothing more to do for the trial
            return
        lost = lost_worker(_last_words(trial))
        self._tell(lambda: self._driver.on_lost(self._trials[trial.trial_id], lost), None)

    def release(self, stint: str) -> None:
        """A stint is over."""
        self._decided.pop(stint, None)
        if self._trials.pop(stint, None) is not None:
            self._driver.on_release()

    def _tell(self, tell: Callable[[], T], otherwise: T) -> T:
        if self.stop.error is not None:
            return otherwise
        if not self.stop.asked:
            refuse_dead_ray()
        with self.stop.on_error():
            return tell()
        return otherwise


class TuneSearcher(Searcher):
    """What Tune asks for trials."""

    def __init__(self, events: TuneEvents) -> None:
        super().__init__()
        self._events = events

    def set_search_properties(self, *_: Any, **__: Any) -> bool:
        """Accept whatever Tune offers: space, metric and direction are the source's own."""
        return True

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing, as `TuneEvents`."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing."""

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the config of the next trial; None: not now; FINISHED: never again."""
        return self._events.next_trial(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """A stint is over, however it ended."""
        self._events.release(trial_id)


class TuneScheduler(FIFOScheduler):
    """What Tune asks whether a trial goes on; first come, first served otherwise."""

    def __init__(self, events: TuneEvents) -> None:
        super().__init__()
        self._events = events

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str:
        """Return CONTINUE or STOP; Tune's own pause would keep the trial's actor."""
        return self._events.result(trial.trial_id, result)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """A worker is lost."""
        self._events.lost(trial)


class TuneCallback(tune.Callback):
    """What Tune tells between its steps, when trials start, and of results."""

    def __init__(self, events: TuneEvents, look: Callable[[bool], None]) -> None:
        """Watch over a batch.

        Args:
            events: of the batch.
            look: called now and then; takes whether a trial has a worker.
        """
        self._events, self._look, self._next_look = events, look, 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Nothing, as TuneEvents."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """End here, between two steps of Tune, when somebody asked for it."""
        stop = self._events.stop
        # Not once an end was asked for: a cluster's Ray may end as well, and asking it hangs then.
        if not stop.asked:
            refuse_dead_ray()
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + POLL_SECONDS
                with stop.on_error():
                    self._look(any(trial.status == Trial.RUNNING for trial in trials))
        if stop.asked:
            # Not an Exception: Tune would clean up first, which takes a minute of waiting where a
            # batch system ends a cluster's Ray too.
            raise KeyboardInterrupt

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """A worker has a trial."""
        self._events.start(trial.trial_id)

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Tell of a result that the scheduler was not shown."""
        self._events.result(trial.trial_id, result)


def lost_worker(error: str) -> WorkerLost:
    """Return the message of a lost worker, from what Ray says of it."""
    return WorkerLost(error, address_in(error), *_outcome_of(error))


def _last_words(trial: Trial) -> str:
    """What ended a trial's last worker, from the file that Tune keeps; empty: it kept none."""
    try:  # Tune's own reader looks where the file is copied later
        text = Path(trial.error_file).read_text("utf-8", errors="replace")
    except (OSError, TypeError):
        return ""
    plain = re.sub(r"\x1b\[\d+m", "", text)
    return re.split(r"^Failure # .*\n", plain, flags=re.MULTILINE)[-1].strip()


def _outcome_of(error: str) -> tuple[Outcome, str]:
    """What became of a trial whose last worker ended so, as outcome and message."""
    if not error:
        return Outcome.FAILED, "its error could not be kept: is the disk full?"
    if TooSmallError.__name__ in error:
        return Outcome.OUT_OF_MEMORY, error.splitlines()[-1]
    if "running low on memory" in error:
        return Outcome.OUT_OF_MEMORY, f"killed when the machine ran low on memory; {LESS_MEMORY}"
    if re.search(r"actor died unexpectedly|actor \S+ is unavailable", error):
        return Outcome.FAILED, f"its worker died each time, perhaps out of memory; {LESS_MEMORY}"
    return Outcome.FAILED, error
