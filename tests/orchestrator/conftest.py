"""A real MLflow store on SQLite for each test, copied from one that is made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow_sweeps import Sweeps

from orchestrator.tracking.writer import TrackingWriter


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with MLflow's tables; making them takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    TrackingWriter.open(folder)
    return folder / "mlflow.db"


@pytest.fixture
def tracker(empty_database: Path, tmp_path: Path) -> TrackingWriter:
    """A tracker on a store of its own."""
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(empty_database, runs / "mlflow.db")
    return TrackingWriter.open(runs)


@pytest.fixture
def sweeps(tracker: TrackingWriter, tmp_path: Path) -> Sweeps:
    return Sweeps(tracker, tmp_path)
