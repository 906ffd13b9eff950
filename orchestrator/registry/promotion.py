"""`promote` and `predict` with their files: adapters from the store, rows of the task.

The rule of promotion is in `versions.py`.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import numpy as np

from orchestrator.registry.champions import champion
from orchestrator.registry.versions import (
    Benchmark,
    HeldOut,
    Promotion,
    ahead_of_candidate,
    promote,
)
from orchestrator.selection.baseline import train_alone
from orchestrator.spec.values import Json
from orchestrator.state.workspace import Workspace
from orchestrator.tracking.provenance import refuse_other_data
from orchestrator.tracking.reader import TrialRun
from tinyattn.adapters.checkpoint import CONFIG_FILE, TaskCard, read_card
from tinyattn.batching.batches import groups_of, labels_of
from tinyattn.config import TrainConfig, build, set_dotted, stored_config
from tinyattn.data.files import read_file
from tinyattn.data.splits import read_rows
from tinyattn.data.tokens import Rows, TaskData
from tinyattn.errors import AdapterError, UsageError
from tinyattn.predict import MixedPredictor, Predictor
from tinyattn.tasks import Task
from tinyattn.training.model_cache import ModelCache

Prediction: TypeAlias = dict[str, Json]
"""The answer for a row."""
ID_COLUMNS = ("id", "idx")
"""Columns of a file that identify its rows; predictions keep them."""


def promote_adapter(
    workspace: Workspace, name: str, force: bool, say: Callable[[str], None] = lambda line: None
) -> Promotion:
    """Register a run's adapter, and move the alias to it if it is better than the champion.

    Args:
        workspace: where sweeps are kept.
        name: a sweep, whose winner is promoted, or the id of a run.
        force: move the alias whatever the result of the test.
        say: called with progress messages: trials that were passed over, training of the
            classifier alone.

    Raises:
        UsageError, AdapterError: as `promote` of versions.py.
    """
    model_cache, tracker = ModelCache(workspace.data_dir), workspace.tracker()
    for line in ahead_of_candidate(tracker, name):
        say(f"note: {line}")

    def train(trial: TrialRun, config: TrainConfig) -> None:
        train_alone(workspace, tracker, trial, config, model_cache, say)

    return promote(tracker, name, benchmarks(model_cache, train), force=force, say=say)


def benchmarks(
    model_cache: ModelCache, train: Callable[[TrialRun, TrainConfig], None]
) -> Callable[[TrialRun], Benchmark]:
    """Return what makes the benchmark of a trial: the rows on which its adapter is judged.

    Args:
        model_cache: source of PLM and data.
        train: trains the classifier alone for a trial that is to be promoted.
    """

    def benchmark_of(trial: TrialRun) -> Benchmark:
        config = config_of(trial)
        data = model_cache.data(config)
        refuse_other_data(f"run {trial.run_id}", trial.tags, data.fingerprint)
        split = data.heldout
        if split is None:
            return Benchmark(data.task, None)

        def outputs_of(folder: Path) -> np.ndarray:
            predictor = Predictor(folder, model_cache, config.plm)
            try:
                return predictor.outputs(heldout_for(_task_card(folder), config, model_cache))
            finally:
                predictor.close()

        held = HeldOut(
            labels=labels_of(split),
            outputs_of=outputs_of,
            groups=groups_of(split),
            fingerprint=fingerprint_of(data, config),
            objection=lambda folder: objection_to(_task_card(folder), data.task, config),
        )
        return Benchmark(data.task, held, lambda: train(trial, config))

    return benchmark_of


def heldout_for(card: TaskCard, config: TrainConfig, model_cache: ModelCache) -> Rows:
    """Return the held-out rows of `config`, tokenised as for the adapter's predictions."""
    own = {"token_version": card.token_version, "max_length": card.max_length}
    rows = model_cache.data(config.with_overrides(own)).heldout
    assert rows is not None
    return rows


def objection_to(card: TaskCard, task: Task, config: TrainConfig) -> str:
    """Return why an adapter may not be judged on the held-out rows of `config`; empty if it may."""
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
    """Return a hash of the held-out rows, 16 hex digits, made from all texts of the task.

    It decides whether a reign's budget is renewed. It does not depend on tokens, so `max_length`,
    `token_version` and `max_train_rows` cannot renew the budget. Other training rows do, even if
    the held-out rows are the same.
    """
    assert data.heldout is not None
    carve = config.carve_version if data.task.splits.validation is None else None
    content = [data.fingerprint, data.heldout.name, carve]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def config_of(trial: TrialRun) -> TrainConfig:
    """Return the resolved config of a trial, from its MLflow run."""
    raw: dict[str, Any] = {}
    for key, value in trial.config.items():
        set_dotted(raw, key, value)
    return build(TrainConfig, stored_config(raw), f"run {trial.run_id}")


def predict_mixed(
    workspace: Workspace, tasks: Sequence[str], plm: str | None, file: Path
) -> list[Prediction]:
    """Predict a file by several adapters in shared passes; column `adapter` names each row's.

    Args:
        workspace: where sweeps are kept.
        tasks: tasks with champions, or adapter folders.
        plm: name of the PLM; None: the only one with a champion.
        file: the rows.

    Returns:
        An answer for each row.

    Raises:
        UsageError: a task has no champion, a row's `adapter` is none of `tasks`, or its text is
            missing.
        AdapterError: the adapters were trained on different PLMs.
    """
    with tempfile.TemporaryDirectory() as scratch:
        table = read_file(file, Path(scratch))
        rows = table.to_list()
        names = [_named(row, tasks, file) for row in rows]
        folders = {
            task: _folder_of(workspace, task, plm, Path(scratch)) for task in dict.fromkeys(tasks)
        }
        own = all(folder == Path(task) for task, folder in folders.items())
        predictor = MixedPredictor(folders, plm=plm if own else None)
        try:
            return _with_ids(predictor.predict(rows, names), table)
        finally:
            predictor.close()


def _with_ids(answers: list[Prediction], table: datasets.Dataset) -> list[Prediction]:
    """Put ID_COLUMNS of the input, if it has them, before the answers."""
    names = [name for name in ID_COLUMNS if name in table.column_names]
    ids = [{} for _ in answers] if not names else table.select_columns(names).to_list()
    return [{**own, **answer} for own, answer in zip(ids, answers, strict=True)]


def _named(row: Mapping[str, object], tasks: Sequence[str], file: Path) -> str:
    if not isinstance(name := row.get("adapter"), str):
        raise UsageError(
            f"{file}: a row has no text in the column 'adapter'; with several tasks each row needs "
            f"one of {', '.join(tasks)} there"
        )
    return name


def _folder_of(workspace: Workspace, task: str, plm: str | None, scratch: Path) -> Path:
    """Return an adapter folder: `task` itself if it is one, else that of the task's champion."""
    folder = Path(task)
    if (folder / CONFIG_FILE).is_file():
        return folder
    try:
        store = workspace.store()
        run_id = champion(store, task, plm).run_id
    except UsageError as error:
        if (folder / "adapter" / CONFIG_FILE).is_file():
            hint = f"of the folder '{task}', '{folder / 'adapter'}' is the adapter"
            raise UsageError(f"{error}; {hint}") from None
        raise
    return store.download(run_id, "adapter", Path(tempfile.mkdtemp(dir=scratch)))


def predict_file(
    workspace: Workspace, task: str, plm: str | None, file: Path
) -> tuple[list[Prediction], int]:
    """Predict a file by the champion of a task, or by the adapter in a folder.

    Returns:
        An answer for each row, and the number of rows that were truncated.

    Raises:
        UsageError: the task has no champion, or the file does not fit the task.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = _folder_of(workspace, task, plm, Path(scratch))
        predictor = Predictor(folder, plm=plm if folder == Path(task) else None)
        try:
            split = predictor.split(read_rows(file, predictor.task))
            answers = predictor.predict_split(split)
            return _with_ids(answers, read_file(file, Path(scratch))), split.truncated
        finally:
            predictor.close()
