"""The only writer of MLflow runs: a parent run a sweep, a child run a trial.

A sweep must not die because a database is locked for a moment or a server restarts. What only
informs (metrics, tags, ends of runs) therefore goes through an outbox: writes keep their order,
wait in memory while the store is away, and are sent with the next write that gets through.
What the caller needs an answer for (creating a run) is tried again for a while instead.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from orchestrator.outbox import PATIENCE_SECONDS, Outbox, patiently
from orchestrator.outcome import Outcome
from orchestrator.provenance import code_tags, slug
from orchestrator.store import PARENT_TAG, TAG, Store
from tinyattn.config import TrainConfig
from tinyattn.errors import NameTakenError, StorageError, UsageError

EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""MLflow's pages show such an experiment as training runs, not as traces of a chat."""
TAG_LENGTH = 5000
"""Longest tag that every MLflow server of today takes."""


class Tracker(Store):
    """Writes one sweep into MLflow, and reads what is there."""

    def __init__(self, tracking_uri: str, artifacts: Path | None = None) -> None:
        """Open a store.

        Args:
            tracking_uri: `sqlite:///…/mlflow.db`, or a server's or database's address.
            artifacts: folder for artifacts of new experiments; None: the server decides.

        Raises:
            StorageError: the store cannot be reached or opened.
        """
        super().__init__(tracking_uri)
        self._artifacts = artifacts
        self._outbox = Outbox()
        self._forget_sweep()

    def _forget_sweep(self) -> None:
        """Drop what belongs to one sweep: trials of the next one may have the same names."""
        self._sweep_tags: dict[str, str] = {}
        self._sweep_run: str | None = None
        self._experiment: str | None = None
        self._runs_of_trials: dict[str, str] = {}
        self._live: set[str] = set()
        self._logged: dict[str, int] = {}

    @classmethod
    def open(cls, runs_dir: Path, tracking_uri: str | None = None) -> Tracker:
        """Open the store at `tracking_uri`, or SQLite with its artifacts under `runs_dir`."""
        if tracking_uri is not None and not tracking_uri.startswith("sqlite:"):
            return cls(tracking_uri)
        folder = runs_dir.resolve()
        return cls(tracking_uri or f"sqlite:///{folder}/mlflow.db", folder / "artifacts")

    def start_sweep(
        self,
        *,
        name: str,
        task: str,
        plm: str,
        protocol: str,
        config: Mapping[str, Any],
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
        self._experiment = self._experiment_id(f"{slug(task)}/{slug(plm)}")
        self._sweep_tags = {"sweep": name, "task": task, "plm": plm, "protocol": protocol}
        own = {**self._sweep_tags, **code_tags(), **tags, "kind": "sweep"}
        self._sweep_run = self._create_run(name, own)
        self._outbox.send(
            partial(self.client.log_dict, self._sweep_run, dict(config), "sweep.json")
        )
        return self._sweep_run

    def resume_sweep(self, name: str) -> str:
        """Reopen a sweep's parent run; close what a process that died left open in it."""
        sweep = self.find_sweep(name)
        self._forget_sweep()
        self._experiment, self._sweep_run = sweep.experiment_id, sweep.run_id
        self._sweep_tags = {
            "sweep": name, "task": sweep.task, "plm": sweep.plm, "protocol": sweep.protocol,
        }  # fmt: skip
        for trial in self.trials_of(sweep):
            self._runs_of_trials[trial.trial_id] = trial.run_id
            self._logged[trial.trial_id] = trial.evaluations
            if trial.outcome is None:  # left open by a process that died
                self.end_trial(trial.trial_id, Outcome.INTERRUPTED)
        self._reopen(sweep.run_id)
        return sweep.run_id

    def start_trial(
        self,
        trial_id: str,
        *,
        config: TrainConfig,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        kind: str = "trial",
    ) -> str:
        """Open a trial's run, or reopen the one it had before a failure; return the run id.

        Args:
            trial_id: the scheduler's name of the trial, unique in the sweep.
            config: the resolved configuration.
            params: what the searcher chose, by dotted key.
            tags: identity, fingerprints and counts, without the project's prefix.
            kind: trial, finalist, expert or collapsed.
        """
        if trial_id in self._runs_of_trials:
            self._live.add(trial_id)
            self._reopen(self._runs_of_trials[trial_id])
            return self._runs_of_trials[trial_id]
        own = {**self._sweep_tags, "protocol": config.protocol, **code_tags(), **tags}
        own |= {"trial": trial_id, "kind": kind, "searched": json.dumps(dict(params))}
        run_id = self._create_run(trial_id, own, parent=self._sweep_run)
        self._runs_of_trials[trial_id] = run_id
        self._live.add(trial_id)
        self._logged[trial_id] = 0
        resolved = config.model_dump(mode="json")
        flat = [Param(key, text) for key, text in flatten(resolved).items()]
        self._outbox.send(partial(self.client.log_batch, run_id, params=flat))
        self._outbox.send(partial(self.client.log_dict, run_id, resolved, "config.json"))
        return run_id

    def run_of(self, trial_id: str) -> str:
        """Return the run id of a trial of this sweep."""
        return self._runs_of_trials[trial_id]

    def log_evaluation(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Write one evaluation's numbers in one request, at step = evaluation.

        An evaluation that a restarted trial repeats is in the store already and is left alone.
        """
        step = int(result["evaluation"])
        if step <= self._logged[trial_id]:
            return
        self._logged[trial_id] = step
        now = int(time.time() * 1000)
        batch = [Metric(key, value, now, step) for key, value in metrics_of(result).items()]
        run_id = self._runs_of_trials[trial_id]
        self._outbox.send(partial(self.client.log_batch, run_id, metrics=batch))

    def end_trial(
        self,
        trial_id: str,
        outcome: Outcome,
        *,
        adapter: Path | None = None,
        error: str | None = None,
    ) -> None:
        """Close a trial's run with its outcome, and keep its best adapter as artifact `adapter`."""
        run_id = self._runs_of_trials[trial_id]
        if adapter is not None:
            self._send_copy(run_id, adapter, "adapter")
        self._end(run_id, outcome, error)
        self._live.discard(trial_id)

    def end_sweep(self, outcome: Outcome) -> None:
        """Close the parent run; wait for what the store has not taken yet."""
        if self._sweep_run is not None:
            self._end(self._sweep_run, outcome, None)
        self._outbox.drain(PATIENCE_SECONDS / 2)

    def close_all(self, outcome: Outcome, *, sweep: Outcome | None = None) -> None:
        """Close every run of the sweep that is still open, and the sweep's own (as `sweep`)."""
        for trial_id in sorted(self._live):
            self.end_trial(trial_id, outcome)
        self.end_sweep(sweep or outcome)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Add tags, given without the project's prefix, to any run."""
        self._outbox.send(partial(self.client.log_batch, run_id, tags=_run_tags(tags)))

    def log_folder(self, run_id: str, folder: Path, path: str) -> None:
        """Copy a folder's files to a run's artifacts under `path`.

        Raises:
            StorageError: the copy failed, e.g. for lack of space. It does not wait in the outbox.
        """
        try:
            patiently(partial(self.client.log_artifacts, run_id, str(folder), path))
        except (MlflowException, OSError) as error:
            raise StorageError(
                f"the files of {folder} could not be kept in the MLflow store: {error}"
            ) from None

    def _send_copy(self, run_id: str, folder: Path, path: str) -> None:
        """Send a small folder through the outbox, from a copy: its owner may delete it."""
        spool = Path(tempfile.mkdtemp(prefix="tinyattn-"))
        try:
            shutil.copytree(folder, spool, dirs_exist_ok=True)
        except OSError as error:
            shutil.rmtree(spool, ignore_errors=True)
            raise StorageError(f"the files of {folder} could not be copied: {error}") from None

        def write() -> None:
            self.client.log_artifacts(run_id, str(spool), path)
            shutil.rmtree(spool, ignore_errors=True)

        self._outbox.send(write)

    def _experiment_id(self, name: str) -> str:
        """Return the experiment's id, creating it where needed."""
        found = self.client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage != "active":
            raise UsageError(
                f"the MLflow experiment '{name}' was deleted; bring it back with "
                f"`mlflow experiments restore --experiment-id {found.experiment_id}`"
            )
        if found is not None:
            return found.experiment_id
        location = None
        if self._artifacts is not None:
            location = (self._artifacts / name.replace("/", "-")).resolve().as_uri()
        try:
            return patiently(lambda: self.client.create_experiment(name, location, EXPERIMENT_TAGS))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another sweep was quicker
                raise
            return self._experiment_id(name)

    def _create_run(self, name: str, tags: Mapping[str, str], parent: str | None = None) -> str:
        if self._experiment is None:
            raise RuntimeError("start_sweep or resume_sweep comes first")
        all_tags = {tag.key: tag.value for tag in _run_tags(tags)}
        if parent is not None:
            all_tags[PARENT_TAG] = parent
        experiment = self._experiment
        create = partial(self.client.create_run, experiment, tags=all_tags, run_name=name)
        try:
            return patiently(create).info.run_id
        except MlflowException as error:
            first = str(error).strip().splitlines()[0]
            raise StorageError(f"MLflow refused the run '{name}': {first}") from None

    def _reopen(self, run_id: str) -> None:
        self._outbox.send(partial(self.client.update_run, run_id, status="RUNNING"))
        self._outbox.send(partial(self._drop_tag, run_id, TAG + "outcome"))

    def _drop_tag(self, run_id: str, key: str) -> None:
        if key in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, key)

    def _end(self, run_id: str, outcome: Outcome, error: str | None) -> None:
        tags = {"outcome": outcome.value} | ({"error": error} if error else {})
        self.tag(run_id, tags)
        end = int(time.time() * 1000)
        self._outbox.send(
            partial(self.client.set_terminated, run_id, outcome.run_status, end_time=end)
        )


def metrics_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of one evaluation under their MLflow names.

    Nested `metrics` become `select/<name>`, nested `heldout` becomes `heldout/<name>`.
    """
    found: dict[str, float] = {}
    for key, value in result.items():
        if key in ("metrics", "heldout"):
            prefix = "select" if key == "metrics" else "heldout"
            found |= {f"{prefix}/{name}": float(number) for name, number in (value or {}).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[key] = float(value)
    # MLflow stores an infinity as the largest double, which reads as a real loss.
    return {key: math.nan if math.isinf(value) else value for key, value in found.items()}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested config as dotted keys; text stays text, other values become JSON."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _run_tags(tags: Mapping[str, str]) -> list[RunTag]:
    return [RunTag(TAG + key, str(value)[:TAG_LENGTH]) for key, value in tags.items()]
