"""Adapters as an MLflow pyfunc model: loaded by `mlflow.pyfunc` and `mlflow models serve`.

A model is one adapter folder (safetensors + JSON), or a folder of several, and the name of this
module, which MLflow imports to load it. Nothing is pickled. This project lies in it as a wheel,
which its requirements name, since it is on no index. The PLM is not part of the model: it is
found by the name that the adapters record.

Input: a table with the task's text columns. Output: `label` and a column `probability_<label>` for
each class, or `score` for a regression task. With several adapters, each row also names its
`adapter`; columns of another adapter's task may be empty.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from packaging.version import Version

from tinyattn.adapters.checkpoint import CONFIG_FILE, read_card
from tinyattn.errors import StorageError, UsageError
from tinyattn.files.wheel import write_wheel
from tinyattn.plms.loading import package_of
from tinyattn.predict import MixedPredictor, Predictor, load_predictor
from tinyattn.tasks import Task

REQUIREMENTS = ("torch", "transformers")
"""Packages of an index that answers depend on; what else is needed, tinyattn's wheel asks for."""


def save_model(
    adapter: Path,
    destination: Path,
    *,
    task: Task,
) -> None:
    """Write the MLflow model of an adapter folder to `destination`, which must not exist.

    Args:
        adapter: adapter folder; it is copied whole.
        destination: folder to make.
        task: its text columns and labels make the signature and the example.

    Raises:
        StorageError: the folder cannot be written. Nothing half-written stays.
    """
    row = {column: f"A {column} to classify." for column in task.text_columns}
    _save(adapter, destination, signature(task), pd.DataFrame([row]))


def _save(
    data: Path, destination: Path, columns: ModelSignature, example: pd.DataFrame | None = None
) -> None:
    cards = [read_card(path.parent) for path in sorted(data.rglob(CONFIG_FILE))]
    plm_packages = {name for card in cards if (name := package_of(card.plm.name)) is not None}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            wheel = write_wheel(Path(scratch))
            mlflow.pyfunc.save_model(
                str(destination),
                loader_module=__name__,
                data_path=str(data),
                code_paths=[str(wheel)],
                signature=columns,
                input_example=example,
                pip_requirements=[
                    f"code/{wheel.name}",  # relative to the model, where MLflow has pip begin
                    *(_pinned(name) for name in (*REQUIREMENTS, *sorted(plm_packages))),
                ],
            )
    except (OSError, MlflowException) as error:
        shutil.rmtree(destination, ignore_errors=True)
        raise StorageError(f"the model folder {destination} cannot be written: {error}") from None


def _pinned(package: str) -> str:
    """A package at its version here, without what only this machine's build has, as in `+cpu`."""
    return f"{package}=={Version(metadata.version(package)).public}"


def save_mixed_model(adapters: Mapping[str, Path], destination: Path) -> None:
    """Write one MLflow model of several adapters on one PLM, for rows that each name theirs.

    Args:
        adapters: adapter folders by name: letters, digits, `_`, `-` and `.`; they are copied whole.
        destination: folder to make.

    Raises:
        UsageError: a name is not allowed.
        StorageError: the folder cannot be written. Nothing half-written stays.
    """
    for name in adapters:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
            raise UsageError(f"adapter name '{name}' came, allowed are letters, digits, . _ and -")
    tasks = [read_card(folder).task for folder in adapters.values()]
    texts = dict.fromkeys(column for task in tasks if task for column in task.text_columns)
    inputs = [ColSpec(DataType.string, "adapter")]
    inputs += [ColSpec(DataType.string, column, required=False) for column in texts]
    with tempfile.TemporaryDirectory() as together:
        for name, folder in adapters.items():
            shutil.copytree(folder, Path(together, name))
        _save(Path(together), destination, ModelSignature(Schema([*inputs])))


def signature(task: Task) -> ModelSignature:
    """Return the model's signature: its input and output columns."""
    inputs = Schema([*(ColSpec(DataType.string, column) for column in task.text_columns)])
    if task.labels is None:
        return ModelSignature(inputs, Schema([ColSpec(DataType.double, "score")]))
    shares = (ColSpec(DataType.double, f"probability_{label}") for label in task.labels)
    return ModelSignature(inputs, Schema([ColSpec(DataType.string, "label"), *shares]))


class ServedModel:
    """The pyfunc object of a model with one adapter."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, data: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return one output row for each input row; TaskError if a text column holds no text."""
        rows = data.to_dict(orient="records")
        answers = self._predictor.predict([{str(k): v for k, v in row.items()} for row in rows])
        return pd.DataFrame([_flat(answer) for answer in answers], index=data.index)


def _flat(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return one prediction as a table row."""
    probabilities = answer.get("probabilities", {})
    row = {key: value for key, value in answer.items() if key != "probabilities"}
    return row | {f"probability_{label}": share for label, share in probabilities.items()}


class MixedServedModel:
    """The pyfunc object of a model with several adapters."""

    def __init__(self, predictor: MixedPredictor) -> None:
        self._predictor = predictor

    def predict(self, data: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return one output row for each input row; raise UsageError for an unknown adapter."""
        rows: list[Any] = data.to_dict(orient="records")
        answers = self._predictor.predict(rows, [str(row["adapter"]) for row in rows])
        return pd.DataFrame([_flat(answer) for answer in answers], index=data.index)


def _load_pyfunc(path: str) -> ServedModel | MixedServedModel:
    """Entry point that MLflow looks up by name in a loader module."""
    if Path(path, CONFIG_FILE).is_file():
        return ServedModel(load_predictor(Path(path)))
    return MixedServedModel(MixedPredictor({p.name: p for p in sorted(Path(path).iterdir())}))
