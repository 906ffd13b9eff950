"""An adapter as an MLflow pyfunc model: loaded by `mlflow.pyfunc` and `mlflow models serve`.

The model is the adapter folder (safetensors + JSON) and the name of this module, which MLflow
imports to load it. Nothing is pickled. It needs the PLM that the adapter names, found as always.

Input: a table with the task's text columns. Output: `label` and one column
`probability_<label>` a class, or `score` for a regression task.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema

from tinyattn.errors import StorageError
from tinyattn.predict import Predictor, load_predictor
from tinyattn.tasks import Task

REQUIREMENTS = ("tinyattn", "torch", "transformers")
"""What a machine that serves the model installs."""


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
    try:
        mlflow.pyfunc.save_model(
            str(destination),
            loader_module=__name__,
            data_path=str(adapter),
            signature=signature(task),
            input_example=pd.DataFrame([row]),
            pip_requirements=[f"{name}=={metadata.version(name)}" for name in REQUIREMENTS],
        )
    except (OSError, MlflowException) as error:
        shutil.rmtree(destination, ignore_errors=True)
        raise StorageError(f"the model folder {destination} cannot be written: {error}") from None


def signature(task: Task) -> ModelSignature:
    """Return the columns that the served model takes and gives."""
    inputs = Schema([*(ColSpec(DataType.string, column) for column in task.text_columns)])
    if task.labels is None:
        return ModelSignature(inputs, Schema([ColSpec(DataType.double, "score")]))
    shares = (ColSpec(DataType.double, f"probability_{label}") for label in task.labels)
    return ModelSignature(inputs, Schema([ColSpec(DataType.string, "label"), *shares]))


class ServedModel:
    """The object that MLflow calls."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, data: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return one output row for each input row; raise TaskError for what is no text."""
        rows = data.to_dict(orient="records")
        answers = self._predictor.predict([{str(k): v for k, v in row.items()} for row in rows])
        return pd.DataFrame([_flat(answer) for answer in answers], index=data.index)


def _flat(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return one prediction as a table row."""
    probabilities = answer.get("probabilities", {})
    row = {key: value for key, value in answer.items() if key != "probabilities"}
    return row | {f"probability_{label}": share for label, share in probabilities.items()}


def _load_pyfunc(path: str) -> ServedModel:
    """Entry point that MLflow looks up by name in a loader module."""
    return ServedModel(load_predictor(Path(path)))
