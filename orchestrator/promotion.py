"""Promote an adapter and use the champion: where registry, adapter files and task data meet."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.baseline import train_alone
from orchestrator.champions import champion
from orchestrator.home import Home
from orchestrator.provenance import refuse_other_data
from orchestrator.registry import Benchmark, HeldOut, Promotion, ahead_of_candidate, promote
from orchestrator.store import TrialRecord
from tinyattn.batches import groups_of, labels_of
from tinyattn.checkpoint import CONFIG_FILE, TaskCard, read_card
from tinyattn.config import TrainConfig, build, set_dotted, stored_config
from tinyattn.data import read_rows
from tinyattn.errors import AdapterError, UsageError
from tinyattn.predict import MixedPredictor, Predictor
from tinyattn.tasks import Task
from tinyattn.tasks.files import read_file
from tinyattn.tasks.tokens import Rows, TaskData
from tinyattn.workshop import Workshop


def promote_adapter(
    home: Home, name: str, force: bool, say: Callable[[str], None] = lambda line: None
) -> Promotion:
    """Register a run's adapter (a sweep's winner, or a run by id) and move the alias if better.

    Args:
        home: where sweeps are kept.
        name: the sweep, or the run's id.
        force: move the alias whatever the test says.
        say: told which trials were passed over, and how the classifier alone is trained, where one
            is needed.
    """
    workshop, tracker = Workshop(home.data_dir), home.tracker()
    for line in ahead_of_candidate(tracker, name):
        say(f"note: {line}")

    def train(trial: TrialRecord, config: TrainConfig) -> None:
        train_alone(home, tracker, trial, config, workshop, say)

    return promote(tracker, name, _benchmark_of(workshop, train), force=force, say=say)


def _benchmark_of(
    workshop: Workshop, train: Callable[[TrialRecord, TrainConfig], None]
) -> Callable[[TrialRecord], Benchmark]:
    def benchmark_of(trial: TrialRecord) -> Benchmark:
        config = config_of(trial)
        data = workshop.data(config)
        refuse_other_data(f"run {trial.run_id}", trial.tags, data.fingerprint)
        split = data.heldout
        if split is None:
            return Benchmark(data.task, None)

        def outputs_of(folder: Path) -> np.ndarray:
            predictor = Predictor(folder, workshop, config.plm)
            try:
                return predictor.outputs(_heldout_for(_task_card(folder), config, workshop))
            finally:
                predictor.close()

        held = HeldOut(
            labels=labels_of(split),
            outputs_of=outputs_of,
            groups=groups_of(split),
            fingerprint=fingerprint_of(data, config),
            objection=lambda folder: _objection(_task_card(folder), data.task, config),
        )
        return Benchmark(data.task, held, lambda: train(trial, config))

    return benchmark_of


def _heldout_for(card: TaskCard, config: TrainConfig, workshop: Workshop) -> Rows:
    """The held-out rows of `config` in the tokens that an adapter takes when it predicts."""
    own = {"token_version": card.token_version, "max_length": card.max_length}
    rows = workshop.data(config.with_overrides(own)).heldout
    assert rows is not None
    return rows


def _objection(card: TaskCard, task: Task, config: TrainConfig) -> str:
    """Say why an adapter may not be judged on the held-out rows of `config`; empty: it may."""
    theirs, ours = card.carve_version, config.carve_version
    if task.splits.validation is not None or theirs == ours:
        return ""
    return (
        f"the champion was trained on rows of carve {theirs}, this run's held-out rows are of "
        f"carve {ours}, so the champion may have been trained on them; run the new sweep with "
        f"carve_version={theirs}"
    )


def _task_card(folder: Path) -> TaskCard:
    card = read_card(folder).task
    if card is None:
        raise AdapterError(f"{folder}: this adapter has no task, so it cannot be compared")
    return card


def fingerprint_of(data: TaskData, config: TrainConfig) -> str:
    """Name the held-out rows: 16 hex digits of the task's texts and of which of them they are.

    Tokens have no part in it, so that a budget that a reign has spent stays spent whatever
    `max_length`, `token_version` and `max_train_rows` are. The texts are those of all the task's
    files: other rows to train on are a new budget too, though the held-out ones are the same.
    """
    assert data.heldout is not None
    carve = config.carve_version if data.task.splits.validation is None else None
    content = [data.fingerprint, data.heldout.name, carve]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def config_of(trial: TrialRecord) -> TrainConfig:
    """The resolved configuration of a trial, from its MLflow run."""
    raw: dict[str, Any] = {}
    for key, value in trial.config.items():
        set_dotted(raw, key, value)
    return build(TrainConfig, stored_config(raw), f"run {trial.run_id}")


def predict_mixed(
    home: Home, tasks: Sequence[str], plm: str | None, file: Path
) -> list[dict[str, Any]]:
    """Use several tasks' champions, or adapters' folders, on a file whose rows each name theirs in
    the column `adapter`.

    Raises:
        UsageError: there is no champion, a row names none of these tasks or lacks its text.
        AdapterError: the champions were trained on different PLMs.
    """
    with tempfile.TemporaryDirectory() as scratch:
        rows = read_file(file, Path(scratch)).to_list()
        names = [_named(row, tasks, file) for row in rows]
        folders = {
            task: _folder_of(home, task, plm, Path(scratch)) for task in dict.fromkeys(tasks)
        }
        own = all(folder == Path(task) for task, folder in folders.items())
        predictor = MixedPredictor(folders, plm=plm if own else None)
        try:
            return predictor.predict(rows, names)
        finally:
            predictor.close()


def _named(row: Mapping[str, Any], tasks: Sequence[str], file: Path) -> str:
    if not isinstance(name := row.get("adapter"), str):
        raise UsageError(
            f"{file}: a row has no text 'adapter' that names one of {', '.join(tasks)}; each needs "
            "one where several tasks are given"
        )
    return name


def _folder_of(home: Home, task: str, plm: str | None, scratch: Path) -> Path:
    """An adapter's folder, if this is one, or that of a task's champion, fetched to `scratch`."""
    folder = Path(task)
    if (folder / CONFIG_FILE).is_file():
        return folder
    try:
        store = home.store()
        run_id = champion(store, task, plm).run_id
    except UsageError as error:
        if (folder / "adapter" / CONFIG_FILE).is_file():
            hint = f"of the folder '{task}', '{folder / 'adapter'}' is the adapter"
            raise UsageError(f"{error}; {hint}") from None
        raise
    return store.download(run_id, "adapter", Path(tempfile.mkdtemp(dir=scratch)))


def predict_file(
    home: Home, task: str, plm: str | None, file: Path
) -> tuple[list[dict[str, Any]], int]:
    """Use a task's champion, or an adapter's folder, on a file.

    Returns:
        An answer a row, and how many rows were cut.

    Raises:
        UsageError: there is no champion, or the file does not fit the task.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = _folder_of(home, task, plm, Path(scratch))
        predictor = Predictor(folder, plm=plm if folder == Path(task) else None)
        try:
            split = predictor.split(read_rows(file, predictor.task))
            return predictor.predict_split(split), split.truncated
        finally:
            predictor.close()
