"""What follows when trials start, report and end: event log first, then MLflow and the view."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import tune

from orchestrator.driver.context import UNWRITABLE, RetryBudget, Stop
from orchestrator.execution.nodes import Nodes, TooSmallError, refuse_dead_ray
from orchestrator.execution.ray_compat import address_in
from orchestrator.search.asha import NAME, POINT, Asha, replay
from orchestrator.spec.batch import TrialBatch
from orchestrator.spec.outcome import BY_USER, Outcome
from orchestrator.state.checkpoint_store import CheckpointStore
from orchestrator.state.event_log import EventLog, Past
from orchestrator.state.workspace import REQUESTS, STOP_ALL
from orchestrator.tracking.writer import TrackingWriter
from tinyattn.errors import StorageError

LESS_MEMORY = "fewer trials at once (resources.concurrent) or a smaller micro_batch_size need less"
RUNNING = "RUNNING"
"""Tune's status of a trial that has a worker."""
_POLL_SECONDS = 1.0
_REPORTED = (
    "evaluation", "total", "epoch", "step", "score", "best_score", "best_index", "train_loss",
    "noise", "lr", "seconds", "rows_per_second", "metrics", "heldout", "adapter_params",
    "classifier_params", "micro_batch_size", "peak_memory_mb", "outcome", "error",
    "node_ip",
)  # fmt: skip
"""What is kept of a result; Tune adds more."""


def _guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """A callback that does nothing once the batch is to end, and whose errors end it."""

    @functools.wraps(hook)
    def guarded(self: SweepCallback, *args: Any, **info: Any) -> None:
        if self.stop.error is None:
            if not self.stop.asked:
                refuse_dead_ray()
            with self.stop.on_error():
                hook(self, *args, **info)

    return guarded


class SweepCallback(tune.Callback):
    """Writes what Tune does into the event log, then tells MLflow and the view."""

    def __init__(
        self,
        batch: TrialBatch,
        checkpoints: CheckpointStore,
        event_log: EventLog,
        scheduler: Asha,
        tracker: TrackingWriter,
        view: Any,
        stop: Stop,
        nodes: Nodes,
        retry_budget: RetryBudget,
    ) -> None:
        self.batch, self.checkpoints, self.event_log, self.scheduler = (
            batch,
            checkpoints,
            event_log,
            scheduler,
        )
        self.tracker, self.view, self.stop = tracker, view, stop
        self.nodes, self.retry_budget = nodes, retry_budget
        self.look_after: Callable[[], None] = lambda: None
        """Keeps what trials share alive."""
        self._requests = checkpoints.folder / REQUESTS
        self._next_poll = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes its callbacks to disk, but a terminal's view cannot be pickled, and
        a store's password must not be."""
        return {}

    def catch_up(self) -> None:
        """Bring scheduler, event log, MLflow and view to where the last driver was."""
        replay(self.scheduler, self.event_log.events)
        left = self.checkpoints.trials_with_states()
        for past in list(self.event_log.trials.values()):
            if past.outcome is None and past.name in self.scheduler.stopped:
                self.event_log.end(past.name, Outcome.STOPPED)
            if not self.tracker.knows(past.name, past.evaluations, past.outcome):
                self._tell_all(past)
            if past.outcome is not None and past.name in left:
                self.checkpoints.clear(past.name, past.best_index)
            self.view.progress.replay(past)

    def _tell_all(self, past: Past) -> None:
        """Send MLflow what it lacks of a trial."""
        self._open_run(past.name, past.params)
        for result in past.results:
            self._log(past.name, result)
        if past.outcome is not None:
            self._close_run(past)

    # ---- what Tune calls ----

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """End here, between two steps of Tune, when somebody asked for it."""
        # Not once an end was asked for: a cluster's Ray may end as well, and asking it hangs then.
        if not self.stop.asked:
            refuse_dead_ray()
        if time.monotonic() >= self._next_poll and not self.stop.asked:
            self._next_poll = time.monotonic() + _POLL_SECONDS
            self._read_requests()
            self.tracker.heartbeat()
            self.look_after()
            with self.stop.on_error():
                self.nodes.refuse_standstill(any(trial.status == RUNNING for trial in trials))
        if self.stop.asked:
            # Not an Exception: Tune would clean up first, which takes a minute of waiting where a
            # batch system ends a cluster's Ray too.
            raise KeyboardInterrupt

    @_guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Open the trial's run, or go on in the one it has."""
        name, params = trial.config[NAME], trial.config[POINT]
        self._open_run(name, params)
        self.view.started(name, params)

    @_guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Log one evaluation; a trial that diverges reports its end without one."""
        name = trial.config[NAME]
        if UNWRITABLE in result:
            raise StorageError(f"{result['node_ip']}: {result[UNWRITABLE]}")
        numbers = {key: result[key] for key in _REPORTED if key in result}
        if self.event_log.result(name, numbers) and self._log(name, numbers):
            self.nodes.worked(result["node_ip"])
            if (
                self.batch.resources.trials_a_process > 1
            ):  # a neighbour may have ended their process
                self.retry_budget.renew(name)
            self.view.evaluated(name, result)

    @_guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the run of a trial that completed, was stopped, or ended itself."""
        name = trial.config[NAME]
        self.nodes.ended(name)
        if name in self.scheduler.paused:
            self.view.paused(name)
            return
        # A trial names its own end; one that ends without a word was stopped.
        by_user = name in self.scheduler.unwanted
        self._end(name, Outcome.STOPPED, BY_USER if by_user else None)

    @_guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note which machine a trial lost its worker on; the last loss is its end."""
        if self.stop.asked:  # Ray may be ending too; the trial goes on with the next driver
            return
        name, error = trial.config[NAME], _last_words(trial)
        if said := self.nodes.failed(name, error):
            self.view.note(said)
        if self.retry_budget.has(name):
            place, done = address_in(error), self.event_log.trials[name].evaluations
            self.view.note(
                f"{name} lost its worker{f' on {place}' if place else ''}: goes on after "
                f"{f'evaluation {done}' if done else 'its start'}"
            )
            return
        if name not in self.view.progress.params:  # its worker never came up
            self.on_trial_start(iteration, trials, trial)
        self.nodes.exonerate(name)
        self._end(name, *_outcome_of(error))

    def end_paused(self) -> list[str]:
        """End the trials that wait for a promotion which will not come; return their names."""
        names = list(self.scheduler.paused)
        for name in names:
            del self.scheduler.paused[name]
            self._end(name, Outcome.STOPPED, None)
        return names

    # ---- what follows ----

    def _end(self, name: str, outcome: Outcome, error: str | None) -> None:
        """Note and tell an end; a trial that named its own keeps it."""
        self.event_log.end(name, outcome, error)
        past = self.event_log.trials[name]
        assert past.outcome is not None
        self._close_run(past)
        self.checkpoints.clear(name, past.best_index)
        note = past.error.splitlines()[-1] if past.error else ""
        self.view.finished(name, past.outcome, note)

    def _open_run(self, name: str, params: Mapping[str, Any]) -> None:
        config = self.batch.base.with_overrides(params)
        identity = config.identity(self.batch.tags["data_fingerprint"], self.batch.tags["commit"])
        self.tracker.start_trial(
            name,
            config=config,
            params=params,
            tags={**self.batch.tags, "identity": identity},
            kind=self.batch.kind,
        )

    def _log(self, name: str, result: Mapping[str, Any]) -> bool:
        """Log a result that is an evaluation; return whether it is one."""
        is_evaluation = math.isfinite(result.get("score", math.nan))
        if is_evaluation:
            self.tracker.log_evaluation(name, result)
        return is_evaluation

    def _close_run(self, past: Past) -> None:
        assert past.outcome is not None
        adapter = self.checkpoints.adapter(past.name, past.best_index)
        self.tracker.end_trial(past.name, past.outcome, adapter=adapter, error=past.error)

    def _read_requests(self) -> None:
        """Do as `sweep stop` asked from another terminal."""
        asked = {path.name for path in self._requests.glob("*")}
        self.stop.asked = self.stop.asked or STOP_ALL in asked
        self.scheduler.unwanted |= asked - {STOP_ALL}


def stop_requested(folder: Path) -> bool:
    """Whether `sweep stop` asked the driver of that sweep's folder to end."""
    return (folder / REQUESTS / STOP_ALL).exists()


def _last_words(trial: Any) -> str:
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
