"""One batch of trials through Ray Tune, each tracked as it happens.

A sweep, its finalists and its four-head experts are all such batches: there is one path to
training, and one to MLflow.
"""

from __future__ import annotations

import logging
import math
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.tune.error import TuneError
from ray.tune.schedulers import TrialScheduler

from orchestrator.config import Resources
from orchestrator.outcome import Outcome
from orchestrator.search import OptunaSearcher
from orchestrator.tracking import Tracker
from orchestrator.trial import POINT, SweepTrial
from orchestrator.view import Progress, view_of
from tinyattn.config import TrainConfig
from tinyattn.errors import StorageError, TinyAttnError

logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # tracebacks of trials: MLflow has them

RETRIES = 1
"""Times that a trial whose worker died is started again from its last evaluation."""
LESS_MEMORY = "fewer trials at once (resources.concurrent) or a smaller micro_batch_size need less"


class InterruptedSweepError(TinyAttnError):
    """The user asked to stop."""


@dataclass(frozen=True)
class Batch:
    """Trials that belong together."""

    name: str
    """Folder of the batch under the sweep's."""
    title: str
    """What the view calls it."""
    kind: str
    """trial, finalist or expert: the tag of their MLflow runs."""
    base: TrainConfig
    """What they have in common."""
    trials: int
    """How many there are at most."""
    evaluations: int
    """Of the longest."""
    resources: Resources
    tags: Mapping[str, str]
    """Tags of every run: fingerprints, counts."""


@dataclass(frozen=True)
class Ended:
    """One trial that ended."""

    trial_id: str
    run_id: str
    outcome: Outcome
    params: dict[str, Any]
    result: dict[str, Any]
    adapter: Path | None
    """Its best adapter; None: it had no evaluation."""


def run_batch(
    batch: Batch,
    *,
    folder: Path,
    tracker: Tracker,
    searcher: OptunaSearcher | None = None,
    points: Sequence[Mapping[str, Any]] = (),
    scheduler: TrialScheduler | None = None,
    data_dir: Path | None = None,
) -> list[Ended]:
    """Run trials until the searcher has no more, or the given points are done.

    Args:
        batch: what they have in common.
        folder: the sweep's folder.
        tracker: writes their runs.
        searcher: suggests the trials; None: `points` are the trials.
        points: overrides of each trial.
        scheduler: whom to stop; None: nobody.
        data_dir: where task files are.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM.
        TinyAttnError: Tune failed; trials that fail do not raise, they end with an outcome.
    """
    slots = concurrency(batch.resources)
    progress = Progress(batch.title, batch.trials, batch.evaluations, slots)
    progress.rungs = getattr(scheduler, "rungs", {})
    adapters = folder / "adapters"
    trainable = tune.with_resources(
        tune.with_parameters(SweepTrial, base=batch.base, adapters=adapters, data_dir=data_dir),
        {"cpu": batch.resources.cpus, "gpu": batch.resources.gpus},
    )
    tune_config = tune.TuneConfig(
        search_alg=searcher,
        scheduler=scheduler,
        num_samples=1 if points else batch.trials,
        max_concurrent_trials=slots,
        reuse_actors=True,
        # A folder named after the configuration would be longer than some disks allow.
        trial_dirname_creator=lambda trial: trial.trial_id,
    )
    with view_of(progress) as view, signals_noted() as stop:
        watcher = _Watcher(batch, tracker, view, adapters, stop)
        tuner = tune.Tuner(
            trainable,
            param_space={POINT: tune.grid_search([dict(p) for p in points])} if points else {},
            tune_config=tune_config,
            run_config=_run_config(batch.name, folder, watcher),
        )
        try:
            _fit(tuner, folder)
        finally:
            if searcher is not None:
                with handled(signal.SIG_IGN):
                    searcher.finish(Outcome.INTERRUPTED)
    return watcher.ended


def _run_config(name: str, folder: Path, watcher: _Watcher) -> tune.RunConfig:
    return tune.RunConfig(
        name=name,
        storage_path=str(folder),
        callbacks=[watcher],
        verbose=0,
        failure_config=tune.FailureConfig(max_failures=RETRIES),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
    )


def _fit(tuner: tune.Tuner, folder: Path) -> None:
    """Let Tune run; turn what it raises into errors of this project where a user caused it."""
    try:
        tuner.fit()
    except (TuneError, RayError, OSError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, TinyAttnError):
            raise cause from None
        if isinstance(cause, OSError):
            raise StorageError(f"{folder}: {cause}; free space or choose another") from None
        raise


def concurrency(resources: Resources) -> int:
    """Trials that this cluster runs at once.

    Raises:
        TinyAttnError: not even one fits.
    """
    available = ray.cluster_resources()
    cpus, gpus = available.get("CPU", 0), available.get("GPU", 0)
    fits = math.floor(cpus / resources.cpus + 1e-9)
    if resources.gpus:
        fits = min(fits, _on_gpus(math.floor(gpus), resources.gpus))
    if fits < 1:
        raise TinyAttnError(
            f"a trial needs {resources.cpus:g} cores and {resources.gpus:g} GPUs, the cluster has "
            f"{cpus:g} cores and {gpus:g} GPUs; set resources.cpus, resources.gpus=0 (for cores "
            "alone), or use a larger cluster"
        )
    return min(fits, resources.concurrent or fits)


def _on_gpus(gpus: int, share: float) -> int:
    """Trials that fit on `gpus` devices; a share of one never spans two."""
    return gpus // int(share) if share >= 1 else gpus * math.floor(1 / share + 1e-9)


class _Watcher(tune.Callback):
    """Tells MLflow and the view what Tune does."""

    def __init__(
        self, batch: Batch, tracker: Tracker, view: Any, adapters: Path, stop: _Stop
    ) -> None:
        self.batch, self.tracker, self.view, self.stop = batch, tracker, view, stop
        self.adapters = adapters
        self.ended: list[Ended] = []

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune writes its callbacks to disk, but a terminal's view cannot be pickled, and
        a store's password must not be."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """End here, between two steps of Tune, when a signal came."""
        if self.stop.asked:
            # Not an Exception: Tune would clean up first, which takes a minute of waiting where
            # the signal went to Ray's processes too, as `timeout` or a batch system sends it.
            raise KeyboardInterrupt

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Open the trial's run, or go on in the one it has."""
        params = _params(trial)
        config = self.batch.base.with_overrides(params)
        identity = config.identity(self.batch.tags["data_fingerprint"], self.batch.tags["commit"])
        self.tracker.start_trial(
            trial.trial_id,
            config=config,
            params=params,
            tags={**self.batch.tags, "identity": identity},
            kind=self.batch.kind,
        )
        self.view.started(trial.trial_id, params)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Log one evaluation; a trial that diverges reports its end without one."""
        if math.isfinite(result.get("score", math.nan)):
            self.tracker.log_evaluation(trial.trial_id, _numbers(result))
            self.view.evaluated(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the run of a trial that completed, was stopped, or ended itself."""
        result = dict(trial.last_result)
        # A trial names its own end; one that ends without a word was stopped by the scheduler.
        outcome = Outcome(result.get("outcome", Outcome.STOPPED))
        self._end(trial, outcome, result, result.get("error"))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the run of a trial that failed more often than it is retried."""
        if trial.trial_id not in self.view.progress.params:  # its worker never came up
            self.on_trial_start(iteration, trials, trial)
        outcome, message = _last_error(trial)
        self._end(trial, outcome, {**(trial.last_result or {}), "error": message}, message)

    def _end(self, trial: Any, outcome: Outcome, result: dict[str, Any], error: str | None) -> None:
        adapter: Path | None = self.adapters / trial.trial_id
        if adapter is not None and not adapter.is_dir():
            adapter = None
        self.tracker.end_trial(trial.trial_id, outcome, adapter=adapter, error=error)
        run_id = self.tracker.run_of(trial.trial_id)
        self.ended.append(Ended(trial.trial_id, run_id, outcome, _params(trial), result, adapter))
        note = error.splitlines()[-1] if error and outcome is not Outcome.COMPLETED else ""
        self.view.finished(trial.trial_id, outcome, note)


def _last_error(trial: Any) -> tuple[Outcome, str]:
    """What ended a trial's last worker, as outcome and message, from the file that Tune keeps."""
    try:  # Tune's own reader looks where the file is copied later
        text = Path(trial.error_file).read_text("utf-8", errors="replace")
    except (OSError, TypeError):
        return Outcome.FAILED, "its error could not be kept: is the disk full?"
    last = re.split(r"^Failure # .*\n", re.sub(r"\x1b\[\d+m", "", text), flags=re.MULTILINE)[-1]
    if "running low on memory" in last:
        return Outcome.OUT_OF_MEMORY, f"killed when the machine ran low on memory; {LESS_MEMORY}"
    if "actor died unexpectedly" in last:
        return Outcome.FAILED, f"its worker died each time, perhaps out of memory; {LESS_MEMORY}"
    return Outcome.FAILED, last.strip()


def _params(trial: Any) -> dict[str, Any]:
    return dict(trial.config.get(POINT, trial.config))


def _numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    """The trial's own numbers, without those that Tune adds."""
    ours = (
        "evaluation", "total", "epoch", "step", "score", "best_score", "best_index", "train_loss",
        "lr", "seconds", "rows_per_second", "metrics", "heldout", "adapter_params",
        "classifier_params", "peak_memory_mb",
    )  # fmt: skip
    return {key: result[key] for key in ours if key in result}


@dataclass
class _Stop:
    """Whether a signal asked to stop."""

    asked: bool = False


@contextmanager
def signals_noted() -> Iterator[_Stop]:
    """Note Ctrl-C and SIGTERM instead of dying of them; a second one ends at once."""
    stop = _Stop()

    def note(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    # Tune's own handler would end its loop silently, as if all trials had run.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    with handled(note):
        yield stop


@contextmanager
def closed_in_any_case(tracker: Tracker, sweep: Outcome | None = None) -> Iterator[None]:
    """End all that runs, and the sweep's run, with a truthful outcome however the block ends.

    Args:
        tracker: the sweep's.
        sweep: outcome of the search, if it had ended before: what comes after does not change it.

    Raises:
        InterruptedSweepError: in the place of a KeyboardInterrupt.
    """
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        with handled(signal.SIG_IGN):  # an impatient second Ctrl-C must not leave runs open
            tracker.close_all(Outcome.INTERRUPTED if interrupted else Outcome.FAILED, sweep=sweep)
        if interrupted:
            raise InterruptedSweepError(
                "interrupted; what had ended is kept in the MLflow store with its adapters, what "
                "was running is closed there as interrupted"
            ) from None
        raise
    tracker.end_sweep(sweep or Outcome.COMPLETED)


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    """Give SIGINT and SIGTERM another handler for the length of the block."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
