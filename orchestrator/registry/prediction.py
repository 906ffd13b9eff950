"""`predict` with its files: a champion, or several, on the rows of a file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import datasets

from orchestrator.registry.champions import champion
from orchestrator.spec.values import Json
from orchestrator.state.workspace import Workspace
from tinyattn.adapters.checkpoint import CONFIG_FILE
from tinyattn.data.reading import read_file, values_of
from tinyattn.data.splits import read_rows
from tinyattn.errors import UsageError
from tinyattn.predict import MixedPredictor, Predictor

Prediction: TypeAlias = dict[str, Json]
"""The answer for a row."""
ID_COLUMNS = ("id", "idx")
"""Columns of a file that identify its rows; predictions keep them."""


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


def lines_of(answers: Sequence[Prediction]) -> str:
    """Return answers as JSONL; what JSON has no type for, such as a date as `id`, is a text."""
    lines = (json.dumps(answer, ensure_ascii=False, default=_as_text) for answer in answers)
    return "".join(f"{line}\n" for line in lines)


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _with_ids(answers: list[Prediction], table: datasets.Dataset) -> list[Prediction]:
    """Put ID_COLUMNS of the input, if it has them, before the answers."""
    names = [name for name in ID_COLUMNS if name in table.column_names]
    columns = [values_of(table, name, literal=True) for name in names]
    ids = [dict(zip(names, own, strict=True)) for own in zip(*columns, strict=True)]
    ids = ids or [{} for _ in answers]
    return [{**_known(own), **answer} for own, answer in zip(ids, answers, strict=True)]


def _known(ids: Prediction) -> Prediction:
    """Return ids with null for NaN, by which files of numbers say that one is missing."""
    return {name: None if value != value else value for name, value in ids.items()}


def _named(row: Mapping[str, object], tasks: Sequence[str], file: Path) -> str:
    if not isinstance(name := row.get("adapter"), str):
        raise UsageError(
            f"{file}: a row has no text in the column 'adapter'; with several tasks each row needs "
            f"one of {', '.join(tasks)} there"
        )
    return name


def _folder_of(workspace: Workspace, task: str, plm: str | None, scratch: Path) -> Path:
    """Return an adapter folder: `task` itself if it is one, else that of the task's champion.

    Raises:
        UsageError: neither is there.
    """
    folder = Path(task)
    if (folder / CONFIG_FILE).is_file():
        return folder
    if "/" in task and not folder.is_dir():  # no task's name has one
        raise UsageError(
            f"'{task}' {'is a file' if folder.exists() else 'is not there'}; name the folder of an "
            "adapter, or a task for its champion"
        )
    try:
        store = workspace.store()
        run_id = champion(store, task, plm).run_id
    except UsageError as error:
        if (folder / "adapter" / CONFIG_FILE).is_file():
            hint = f"of the folder '{task}', '{folder / 'adapter'}' is the adapter"
            raise UsageError(f"{error}; {hint}") from None
        if folder.is_dir():
            of_folder = (
                f"the folder '{task}' holds no adapter: it has no {CONFIG_FILE}; name the folder "
                "of one, such as OUTPUT/adapter of `tinyattn train --output OUTPUT`"
            )
            is_path = os.sep in task
            said = f"{of_folder}. As a task: {error}" if is_path else f"{error}; and {of_folder}"
            raise UsageError(said) from None
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
