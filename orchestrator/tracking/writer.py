"""TrackingWriter: the only writer of MLflow runs, a parent run per sweep and a child run per trial.

A sweep must not wait for a slow store, nor die because a server restarts. So all writes of a trial
go through a RetryQueue, which sends them in order in a thread and keeps them while the store is
away. If a driver dies while writes wait, the next driver sends from the event log what the store
lacks. A write that is sent twice has no further effect: a retry looks for a run before it makes
one, metrics keep their first time, and all else is overwritten by the same values.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from orchestrator.spec.outcome import Outcome
from orchestrator.spec.result import Result
from orchestrator.spec.values import Json, Point
from orchestrator.tracking.metrics import metrics_of
from orchestrator.tracking.pages import NOTE_TAG, TRAINING, data_set, view_tags
from orchestrator.tracking.provenance import code_tags, slug
from orchestrator.tracking.reader import VERDICT_FILE, TrackingReader, first_line
from orchestrator.tracking.records import (
    PARENT_TAG,
    TAG,
    TAG_LENGTH,
    SweepRecord,
    flatten,
    run_tags,
)
from orchestrator.tracking.retry_queue import (
    PATIENCE_SECONDS,
    PAUSE_SECONDS,
    RetryQueue,
    is_passing,
    patiently,
)
from orchestrator.tracking.run_tables import RunRow
from tinyattn.config import TrainConfig
from tinyattn.errors import NameTakenError, StorageError, UsageError

Words = ParamSpec("Words")

AWAY_SECONDS = 900.0
"""How long the end of a batch waits for a store that is away."""
HEARTBEAT_SECONDS = 30.0
"""Time between two heartbeats of a driver."""
NUMBERS_A_REQUEST = 1000
"""Most metrics that MLflow takes in one request."""


class TrackingWriter(TrackingReader):
    """Writes one sweep at a time into an MLflow store, and reads all of the store."""

    def __init__(self, tracking_uri: str, roots: Sequence[Path] = ()) -> None:
        """Open a store.

        Args:
            tracking_uri: `sqlite:///…/mlflow.db`, or the address of a server or another database.
            roots: folders that may hold the artifacts of an SQLite store; new experiments use the
                last one. Empty: the server decides.

        Raises:
            StorageError: the store cannot be reached, opened or written.
        """
        super().__init__(tracking_uri, roots)
        self._retry_queue = RetryQueue(self.uri, PAUSE_SECONDS)
        self._forget_sweep()

    def _unwritable(self, file: Path) -> tuple[Path, str]:
        raise PermissionError(f"{file} may not be written")

    def _forget_sweep(self) -> None:
        """Forget the sweep that was open: trials of the next one may have the same names."""
        self._sweep_tags: dict[str, str] = {}
        self.sweep_run: str | None = None
        self.experiment: str | None = None
        self.runs_of_trials: dict[str, str] = {}
        self._live: set[str] = set()
        self._logged: dict[str, int] = {}
        self._metrics: defaultdict[str, list[list[Metric]]] = defaultdict(list)
        """{trial: metrics that wait to be sent, a list for each evaluation}."""
        self._told: dict[str, Outcome | None] = {}
        self._heartbeat = 0.0

    def open_sweep(
        self,
        *,
        name: str,
        task: str,
        plm: str,
        protocol: str,
        config: Mapping[str, Json],
        tags: Mapping[str, str],
    ) -> str:
        """Open a sweep's parent run, making it if the sweep is new; arguments as `start_sweep`."""
        if self.name_is_free(name):
            return self.start_sweep(
                name=name, task=task, plm=plm, protocol=protocol, config=config, tags=tags
            )
        run_id = self.resume_sweep(name)
        self._retry_queue.send(partial(self._log_json, run_id, dict(config), "sweep.json"))
        self._send_views(name, config, tags.get("primary_metric"))
        return run_id

    def start_sweep(
        self,
        *,
        name: str,
        task: str,
        plm: str,
        protocol: str,
        config: Mapping[str, Json],
        tags: Mapping[str, str],
    ) -> str:
        """Open the parent run of a new sweep; return its run id.

        Raises:
            NameTakenError: a sweep of this name is in the store.
        """
        if not self.name_is_free(name):
            raise NameTakenError(
                f"a sweep called '{name}' exists already; choose another name with name=..."
            )
        self._forget_sweep()
        self.experiment = self._experiment_of(slug(task), slug(plm))
        self._sweep_tags = {"sweep": name, "task": task, "plm": plm, "protocol": protocol}
        own = {**self._sweep_tags, **code_tags(), **tags, "kind": "sweep"}
        self.sweep_run = self._create_run(name, own)
        self._retry_queue.send(partial(self._log_json, self.sweep_run, dict(config), "sweep.json"))
        if inputs := data_set(task, own):
            self._retry_queue.send(partial(self.client.log_inputs, self.sweep_run, inputs))
        self._send_views(name, config, tags.get("primary_metric"))
        return self.sweep_run

    def _send_views(self, name: str, config: Mapping[str, Json], metric: str | None) -> None:
        """Queue the saved views by which MLflow's pages show a sweep's trials as a leaderboard."""
        experiment = self.experiment
        assert experiment is not None
        now = int(time.time() * 1000)
        space = config.get("space")
        searched = space if isinstance(space, Mapping) else {}
        tags = view_tags(name, searched, metric, now)
        self._retry_queue.send(partial(self._tag_experiment, experiment, TRAINING | tags))

    def _tag_experiment(self, experiment: str, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self.client.set_experiment_tag(experiment, key, value)

    def add_views(self, sweep: SweepRecord) -> None:
        """Queue the saved views of a sweep from an earlier version, unless it has them."""
        if self.has_view(sweep):
            return
        self.experiment = sweep.experiment_id
        self._send_views(sweep.name, self.sweep_config(sweep), sweep.tags.get("primary_metric"))

    def describe_sweep(self, text: str, metrics: Mapping[str, float]) -> None:
        """Queue the description and metrics of the sweep's run, for its page in MLflow.

        Args:
            text: the description, in Markdown.
            metrics: the sweep's counts and the scores of its best trial.
        """
        assert self.sweep_run is not None
        now = int(time.time() * 1000)
        numbers = [Metric(key, value, now, 0) for key, value in metrics.items()]
        note = [RunTag(NOTE_TAG, text[:TAG_LENGTH])]
        self._retry_queue.send(
            partial(self.client.log_batch, self.sweep_run, metrics=numbers, tags=note)
        )

    def keep_verdict(self, run_id: str, content: Mapping[str, Json]) -> None:
        """Queue the verdict of a sweep's finalizer, as an artifact of the sweep's run."""
        self._retry_queue.send(partial(self._log_json, run_id, content, VERDICT_FILE))

    def resume_sweep(self, name: str, *, search_goes_on: bool = True) -> str:
        """Reopen a sweep's parent run, and close trials' runs that a dead process left open.

        Args:
            name: the sweep.
            search_goes_on: whether the search continues, so that its outcome is deleted.
        """
        sweep = self.find_sweep(name)
        self._forget_sweep()
        self.experiment, self.sweep_run = sweep.experiment_id, sweep.run_id
        self._sweep_tags = {
            "sweep": name, "task": sweep.task, "plm": sweep.plm, "protocol": sweep.protocol,
        }  # fmt: skip
        for run_id, trial in ((run.run_id, run.trial) for run in self.trials_of(sweep)):
            self.runs_of_trials[trial.name] = run_id
            self._logged[trial.name] = trial.evaluations
            self._told[trial.name] = trial.outcome
            if trial.outcome is None:  # left open by a process that died
                self.end_trial(trial.name, Outcome.INTERRUPTED)
        self._retry_queue.send(partial(self._reopen, sweep.run_id, search_goes_on))
        return sweep.run_id

    def start_trial(
        self,
        trial_id: str,
        *,
        config: TrainConfig,
        params: Point,
        tags: Mapping[str, str],
        kind: str = "trial",
    ) -> None:
        """Queue the opening of a trial's run; an earlier run of the trial is reopened.

        Args:
            trial_id: name of the trial, unique in the sweep.
            config: the resolved configuration.
            params: values that the searcher chose, by dotted key.
            tags: identity, fingerprints and counts, without the project's prefix.
            kind: trial, finalist, expert or collapsed.
        """
        self._live.add(trial_id)
        if trial_id in self._logged:
            self._send(trial_id, self._reopen)
            return
        self._logged[trial_id] = 0
        own = {**self._sweep_tags, "protocol": config.protocol_name, **code_tags(), **tags}
        own |= {"trial": trial_id, "kind": kind, "searched": json.dumps(dict(params))}
        self._retry_queue.send(_NewRun(self, trial_id, own))
        resolved = config.model_dump(mode="json")
        flat = [Param(key, text) for key, text in flatten(resolved).items()]
        self._send(trial_id, self.client.log_batch, params=flat)
        self._send(trial_id, self._log_json, resolved, "config.json")
        if inputs := data_set(self._sweep_tags["task"], own):
            self._send(trial_id, self.client.log_inputs, inputs)

    def knows(self, trial_id: str, evaluations: int, outcome: Outcome | None) -> bool:
        """Return whether the store had all of a trial when its sweep was resumed.

        Call it before anything of the trial is written.
        """
        if outcome is None:  # its run is reopened when it gets a worker
            return trial_id in self.runs_of_trials and self._logged[trial_id] >= evaluations
        told = self._told.get(trial_id)
        return told is outcome and self._logged[trial_id] >= evaluations

    def settle(self, seconds: float = AWAY_SECONDS) -> None:
        """Wait until the store has everything.

        Raises:
            StorageError: it was away for longer than `seconds`.
        """
        if not self._retry_queue.drain(seconds):
            raise StorageError(
                f"the MLflow store has not answered for {seconds:.0f} s and lacks "
                f"{len(self._retry_queue)} writes, which are kept and sent when the sweep goes on; "
                "have the store answer again"
            )

    def run_of(self, trial_id: str) -> str:
        """Return the run id of a trial of this sweep; `settle` first.

        Raises:
            StorageError: MLflow refused to make the run.
        """
        if trial_id not in self.runs_of_trials:
            raise StorageError(
                f"MLflow has no run of trial {trial_id}, since it refused to make one; see that "
                "the store is in order"
            )
        return self.runs_of_trials[trial_id]

    def log_evaluation(self, trial_id: str, result: Result) -> None:
        """Queue the metrics of one evaluation, at step = evaluation.

        An evaluation that a restarted trial repeats is left out: the store has it already. All
        waiting evaluations of a trial go in one request, which spares a slow store.
        """
        step = result.evaluation
        if step <= self._logged[trial_id]:
            return
        self._logged[trial_id] = step
        now = int(time.time() * 1000)
        waiting = self._metrics[trial_id]
        waiting.append([Metric(key, value, now, step) for key, value in metrics_of(result).items()])

        def write(run_id: str) -> None:
            sizes = itertools.accumulate(map(len, waiting))
            count = max(1, sum(size <= NUMBERS_A_REQUEST for size in sizes))
            if not (batches := waiting[:count]):
                return
            try:
                self.client.log_batch(run_id, metrics=list(itertools.chain(*batches)))
            except Exception as error:
                if is_passing(error):  # they are sent again
                    raise
                del waiting[:count]
                raise
            del waiting[:count]

        self._send(trial_id, write)

    def end_trial(
        self,
        trial_id: str,
        outcome: Outcome,
        *,
        adapter: Path | None = None,
        error: str | None = None,
    ) -> None:
        """Queue the end of a trial's run: its best adapter (artifact `adapter`) and its outcome.

        Raises:
            StorageError: the adapter cannot be copied.
        """
        if adapter is not None:
            self._send_copy(trial_id, adapter, "adapter")
        tags = {"outcome": outcome.value} | ({"error": error} if error else {})
        end = int(time.time() * 1000)
        # The tag comes last: a run that has it is complete, for a driver that resumes the sweep.
        self._send(trial_id, self.client.set_terminated, outcome.run_status, end_time=end)
        self._send(trial_id, self.client.log_batch, tags=run_tags(tags))
        self._live.discard(trial_id)

    def end_sweep(self, outcome: Outcome) -> None:
        """Close the parent run, and wait a while for the writes in the queue."""
        if (run_id := self.sweep_run) is not None:
            end = int(time.time() * 1000)
            status = outcome.run_status
            self._retry_queue.send(
                partial(self.client.set_terminated, run_id, status, end_time=end)
            )
            self.tag(run_id, {"outcome": outcome.value})
        try:
            self.settle(PATIENCE_SECONDS / 2)
        except StorageError as error:
            warnings.warn(str(error), stacklevel=2)

    def close_all(self, outcome: Outcome, *, sweep: Outcome | None = None) -> None:
        """Close every open run of the sweep, and the sweep's own with the outcome `sweep`."""
        for trial_id in sorted(self._live):
            self.end_trial(trial_id, outcome)
        self.end_sweep(sweep or outcome)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Add tags, given without the project's prefix, to any run."""
        self._retry_queue.send(partial(self.client.log_batch, run_id, tags=run_tags(tags)))

    def heartbeat(self) -> None:
        """Tag the sweep's run with the time, every HEARTBEAT_SECONDS: a driver works on it."""
        now = time.time()
        if self.sweep_run is not None and now - self._heartbeat >= HEARTBEAT_SECONDS:
            self._heartbeat = now
            self.tag(self.sweep_run, {"heartbeat": f"{now:.0f}"})

    def log_folder(self, run_id: str, folder: Path, path: str) -> None:
        """Copy a folder's files to a run's artifacts under `path`.

        Raises:
            StorageError: the copy failed, e.g. for lack of space. It is not retried.
        """
        try:
            patiently(lambda: self._artifacts(run_id).log_artifacts(str(folder), path))
        except (MlflowException, OSError) as error:
            reason = first_line(error, self.uri)
            raise StorageError(
                f"the files of {folder} could not be kept in the MLflow store: {reason}"
            ) from None

    def _log_json(self, run_id: str, content: Mapping[str, Json], name: str) -> None:
        """Write a mapping as a JSON artifact of a run."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, name)
            file.write_text(json.dumps(content, indent=2), "utf-8")
            self._artifacts(run_id).log_artifact(str(file))

    def _send_copy(self, trial_id: str, folder: Path, path: str) -> None:
        """Send a small folder through the retry queue, from a copy: its owner may delete it."""
        spool = Path(tempfile.mkdtemp(prefix="tinyattn-"))
        try:
            shutil.copytree(folder, spool, dirs_exist_ok=True)
        except OSError as error:
            shutil.rmtree(spool, ignore_errors=True)
            raise StorageError(f"the files of {folder} could not be copied: {error}") from None

        def write(run_id: str) -> None:
            self._artifacts(run_id).log_artifacts(str(spool), path)
            shutil.rmtree(spool, ignore_errors=True)

        self._send(trial_id, write)

    def _send(
        self,
        trial_id: str,
        write: Callable[Concatenate[str, Words], object],
        *args: Words.args,
        **rest: Words.kwargs,
    ) -> None:
        """Queue `write(run id, ...)`; the run id is looked up then, when the run has been made."""
        self._retry_queue.send(lambda: write(self.runs_of_trials[trial_id], *args, **rest))

    def runs_with_tag(
        self, tag: str, value: str | None = None, experiments: list[str] | None = None
    ) -> list[RunRow]:
        """As in TrackingReader, once the writes in the queue are sent."""
        self._retry_queue.drain(PATIENCE_SECONDS)
        return super().runs_with_tag(tag, value, experiments)

    def _experiment_of(self, task: str, plm: str) -> str:
        """Return the id of the experiment of a task and PLM, creating it where needed.

        Its name has no slash, at which MLflow's pages would cut it. An experiment of an earlier
        version, whose name has one, is used if it exists.
        """
        earlier = self.client.get_experiment_by_name(f"{task}/{plm}")
        if earlier is not None and earlier.lifecycle_stage == "active":
            return earlier.experiment_id
        return self._experiment_id(f"{task} on {plm}", f"{task}-{plm}")

    def _experiment_id(self, name: str, folder: str) -> str:
        """Return the experiment's id, creating it where needed, with its artifacts in `folder`."""
        found = self.client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage != "active":
            raise UsageError(
                f"the MLflow experiment '{name}' was deleted; bring it back with "
                f"`mlflow experiments restore --experiment-id {found.experiment_id}`"
            )
        if found is not None:
            return found.experiment_id
        location = None
        if self._roots:
            location = (self._roots[-1] / folder).as_uri()
        try:
            return patiently(lambda: self.client.create_experiment(name, location, TRAINING))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another sweep was quicker
                raise
            return self._experiment_id(name, folder)

    def _create_run(self, name: str, tags: Mapping[str, str]) -> str:
        if self.experiment is None:
            raise RuntimeError("start_sweep or resume_sweep comes first")
        all_tags = {tag.key: tag.value for tag in run_tags(tags)}
        experiment, tried = self.experiment, False

        def create() -> str:
            nonlocal tried
            # Only the answer of the first try may have been lost: the name was free before it.
            found = [s.run_id for s in self.sweeps() if s.name == name] if tried else []
            tried = True
            if found:
                return found[0]
            made = self.client.create_run(experiment, tags=all_tags, run_name=name)
            return made.info.run_id

        try:
            return patiently(create)
        except MlflowException as error:
            reason = first_line(error, self.uri)
            raise StorageError(f"MLflow refused the run '{name}': {reason}") from None

    def _reopen(self, run_id: str, forget_outcome: bool = True) -> None:
        self.client.update_run(run_id, status="RUNNING")
        if forget_outcome and TAG + "outcome" in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, TAG + "outcome")


class _NewRun:
    """A write that makes a trial's run; a retry finds the run if only the answer was lost."""

    def __init__(self, tracker: TrackingWriter, trial_id: str, tags: Mapping[str, str]) -> None:
        self._tracker, self._trial_id, self._tried = tracker, trial_id, False
        assert tracker.experiment is not None
        assert tracker.sweep_run is not None
        self._experiment, self._parent = tracker.experiment, tracker.sweep_run
        self._tags = {tag.key: tag.value for tag in run_tags(tags)} | {PARENT_TAG: self._parent}

    def __call__(self) -> None:
        run_id = self._find() if self._tried else None
        self._tried = True
        if run_id is None:
            client = self._tracker.client
            made = client.create_run(self._experiment, tags=self._tags, run_name=self._trial_id)
            run_id = made.info.run_id
        self._tracker.runs_of_trials[self._trial_id] = run_id

    def _find(self) -> str | None:
        query = f'tags."{PARENT_TAG}" = \'{self._parent}\' AND tags."{TAG}trial" = '
        found = self._tracker.client.search_runs(
            [self._experiment], f"{query}'{self._trial_id}'", max_results=1
        )
        return found[0].info.run_id if found else None
