"""One batch of trials through Ray Tune, each tracked as it happens.

A sweep, its finalists and its four-head experts are all such batches. Only collapsed adapters and
the classifiers alone that `promote` trains are made elsewhere (`selection/`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ray import tune
from ray.exceptions import RayError
from ray.tune.error import TuneError

from orchestrator.driver.context import RetryBudget, Stop, TrialContext
from orchestrator.driver.driver import Driver
from orchestrator.driver.listeners import CheckpointListener, MlflowListener, ViewListener
from orchestrator.driver.signals import handled, leave_terminal
from orchestrator.driver.trial_queue import Source
from orchestrator.execution.nodes import (
    Connections,
    Nodes,
    NoMachineError,
    placement_of,
    unless_ray_dies,
    watched_ray,
)
from orchestrator.execution.ray_compat import prepare_tune
from orchestrator.execution.shared_worker import shared_workers_of
from orchestrator.execution.sharing import settled
from orchestrator.execution.trainable import SweepTrainable
from orchestrator.execution.tune_adapters import (
    TuneCallback,
    TuneEvents,
    TuneScheduler,
    TuneSearcher,
)
from orchestrator.execution.watch import MachineListener, Watch
from orchestrator.reporting.view import Progress, say, view_of
from orchestrator.search.asha import Asha, make_scheduler
from orchestrator.spec.batch import TrialBatch
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.trial import Trial
from orchestrator.state.checkpoint_store import CheckpointStore
from orchestrator.state.event_log import EventLog
from orchestrator.tracking.sweep_runs import SweepRuns
from tinyattn.errors import StorageError, TinyAttnError


class InterruptedSweepError(TinyAttnError):
    """The user asked to stop."""


def run_batch(
    batch: TrialBatch,
    source: Source,
    *,
    checkpoints: CheckpointStore,
    runs: SweepRuns,
    data_dir: Path | None = None,
) -> list[Trial]:
    """Run trials until the source has no more; go on where an earlier call with `batch` ended.

    Args:
        batch: what they have in common.
        source: suggests the trials.
        checkpoints: the sweep's folder, and where its trials leave what others need.
        runs: the sweep's, to which theirs are added.
        data_dir: where task files are.

    Returns:
        The trials that have ended, in order of their starts. The store has all of them then.

    Raises:
        KeyboardInterrupt: Ctrl-C, SIGTERM, a closed terminal or `sweep stop`.
        StorageError: the store stayed away, or refused to make a trial's run.
        TinyAttnError: Tune failed; trials that fail do not raise, they end with an outcome.
    """
    event_log = EventLog(checkpoints.folder / f"{batch.name}.jsonl")
    seen = {key: batch.tags[key] for key in ("plm_fingerprint", "data_fingerprint")}
    context = TrialContext(batch.base, checkpoints, data_dir, seen, batch.plugins)
    left = batch.trials - sum(trial.outcome is not None for trial in event_log.trials.values())
    with signals_noted() as stop, watched_ray() as connections:
        begun = len(event_log.trials)
        batch, found = settled(batch, context, begun, left, stop, say, connections=connections)
        _run_trials(batch, context, source, event_log, runs, stop, connections, found)
    runs.settle()
    ended = [trial for trial in event_log.trials.values() if trial.outcome is not None]
    for trial in ended:
        runs.run_of(trial.name)  # a store that refused to make one fails the batch
    return ended


def _run_trials(
    batch: TrialBatch,
    context: TrialContext,
    source: Source,
    event_log: EventLog,
    runs: SweepRuns,
    stop: Stop,
    connections: Connections,
    note: str | None,
) -> None:
    """Make driver and listeners of a batch and run it through Tune; `note` is shown first."""
    checkpoints, nodes = context.checkpoints, Nodes(batch.resources, connections.nodes)
    asha = make_scheduler(batch.asha, batch.evaluations)
    with view_of(_progress_of(batch, nodes, asha)) as view:
        if note:
            view.note(note)
        listeners = (
            MachineListener(nodes, view.note),
            MlflowListener(runs, batch, checkpoints),
            CheckpointListener(checkpoints),
            ViewListener(view),
        )
        retry_budget = RetryBudget(is_renewed=batch.resources.trials_a_process > 1)
        driver = Driver(batch.name, event_log, asha, source, nodes.slots, retry_budget, listeners)
        try:
            with shared_workers_of(context, batch.resources, connections) as look_after_shared:
                folder = checkpoints.folder
                watch = Watch(driver, stop, nodes, runs, folder, look_after_shared)
                events = TuneEvents(driver, stop, connections)
                made = _tuner(batch, context, events, watch, nodes)
                run_tune(made.fit, folder, stop, connections)
            if stop.asked:  # when Tune took no more steps
                raise KeyboardInterrupt
            driver.end_paused()
        except KeyboardInterrupt:
            if stop.error is not None:
                raise stop.error from None
            raise
        finally:
            if stop.error is None:  # else the next driver completes the study
                with handled(signal.SIG_IGN):
                    source.finish(Outcome.INTERRUPTED)


def _progress_of(batch: TrialBatch, nodes: Nodes, asha: Asha) -> Progress:
    slots, rungs = nodes.last_slots, asha.rungs
    return Progress(batch.title, batch.trials, batch.evaluations, slots, rungs=rungs)


def _tuner(
    batch: TrialBatch, context: TrialContext, events: TuneEvents, watch: Watch, nodes: Nodes
) -> tune.Tuner:
    prepare_tune()
    return tune.Tuner(
        SweepTrainable.on(context, batch.resources),
        tune_config=tune.TuneConfig(
            search_alg=TuneSearcher(events),
            scheduler=TuneScheduler(events, placement_of(batch.resources, nodes)),
            num_samples=-1,  # the source knows when it has no more
            reuse_actors=True,
            # A folder named after the configuration would be longer than some disks allow.
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=f"{batch.name}-{time.time_ns()}",  # Tune's own notes, which nobody reads again
            storage_path=str(context.checkpoints.folder / "tune"),
            callbacks=[TuneCallback(events, watch.look)],
            verbose=0,
        ),
    )


def run_tune(
    fit: Callable[[], object], folder: Path, stop: Stop, connections: Connections | None = None
) -> None:
    """Let Tune run; turn what it raises into errors of this project where a user caused it.

    Args:
        fit: Tune's loop.
        folder: the sweep's folder, for the message where a disk is full.
        stop: notes the signals that ask to end.
        connections: to Ray's processes; None: they are not watched.

    Raises:
        KeyboardInterrupt: it was asked to end, or Ray has died.
        StorageError: the disk is full or may not be written.
        TinyAttnError: as a trial raised it.
    """
    connections = connections or Connections()
    try:
        unless_ray_dies(fit, connections)
    except KeyboardInterrupt:
        was_asked = stop.asked
        stop.asked = stop.is_left = True
        if was_asked:  # and Ray has died since, as where a batch system ends both
            raise KeyboardInterrupt from None
        raise
    except (TuneError, RayError, OSError) as error:
        if stop.at_once:  # as a scratch file of Tune's that is gone where it was interrupted
            raise KeyboardInterrupt from None
        connections.refuse_dead()
        cause = error.__cause__ or error
        if isinstance(cause, TinyAttnError):
            raise cause from None
        if isinstance(cause, OSError):
            raise StorageError(f"{folder}: {cause}; free space or choose another") from None
        raise


@contextmanager
def signals_noted() -> Iterator[Stop]:
    """Set `stop.asked` on SIGINT, SIGTERM or SIGHUP; a second SIGINT or SIGTERM ends at once."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # nobody is impatient
            leave_terminal()
        elif stop.asked:
            stop.at_once = True
            raise KeyboardInterrupt
        stop.asked = True

    with handled(note):
        yield stop


@contextmanager
def closed_in_any_case(
    open_runs: Callable[[], SweepRuns], go_on: str, sweep: Outcome | None = None
) -> Iterator[SweepRuns]:
    """Open a sweep's runs, and end all of them with a truthful outcome however the block ends.

    Args:
        open_runs: opens them; what it raises gets the same message as what the block raises.
        go_on: the command that goes on, such as `sweep resume NAME`, for the message.
        sweep: outcome of the search, if it had ended before: what comes after does not change it.

    Raises:
        InterruptedSweepError: in the place of a KeyboardInterrupt.
        StorageError, NoMachineError: as they came, and what to type once the cause is mended.
    """
    runs, stop = None, Stop()
    try:
        with signals_noted() as stop:  # a run that the store has made is known before anything ends
            runs = open_runs()
        if stop.asked:
            raise KeyboardInterrupt
        yield runs
    except BaseException as error:
        interrupted = stop.asked or isinstance(error, KeyboardInterrupt)
        if runs is not None:
            with handled(signal.SIG_IGN):  # an impatient second Ctrl-C must not leave runs open
                runs.close_all(Outcome.INTERRUPTED if interrupted else Outcome.FAILED, sweep=sweep)
        if interrupted:
            raise InterruptedSweepError(
                "interrupted; what had ended is kept with its adapters, what was running is closed "
                f"in MLflow as interrupted; `tinyattn {go_on}` goes on where it was"
            ) from None
        if isinstance(error, StorageError | NoMachineError):
            raise type(error)(f"{error}; then `tinyattn {go_on}` goes on") from error
        raise
    runs.end_sweep(sweep or Outcome.COMPLETED)
