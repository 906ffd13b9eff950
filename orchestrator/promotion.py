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
from orchestrator.registry import Benchmark, HeldOut, Promotion, promote
from orchestrator.store import TrialRecord
from tinyattn.batches import groups_of, labels_of
from tinyattn.checkpoint import CONFIG_FILE
from tinyattn.config import TrainConfig, build, set_dotted, stored_config
from tinyattn.data import read_rows
from tinyattn.errors import UsageError
from tinyattn.predict import MixedPredictor, Predictor
from tinyattn.tasks.files import read_file
from tinyattn.tasks.tokens import Rows
from tinyattn.workshop import Workshop

_HEAD = 4
"""Tokens of a row that no max_length cuts off: the shortest is 8, for two texts."""


def promote_adapter(
    home: Home, name: str, force: bool, say: Callable[[str], None] = lambda line: None
) -> Promotion:
    """Register a run's adapter (a sweep's winner, or a run by id) and move the alias if better.

    Args:
        home: where sweeps are kept.
        name: the sweep, or the run's id.
        force: move the alias whatever the test says.
        say: told how the classifier alone is trained, where one is needed.
    """
    workshop, tracker = Workshop(home.data_dir), home.tracker()

    def train(trial: TrialRecord, config: TrainConfig) -> None:
        train_alone(home, tracker, trial, config, workshop, say)

    return promote(tracker, name, _benchmark_of(workshop, train), force=force)


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
                return predictor.outputs(_heldout_for(predictor, config, workshop))
            finally:
                predictor.close()

        held = HeldOut(labels_of(split), outputs_of, groups_of(split), fingerprint_of(split))
        return Benchmark(data.task, held, lambda: train(trial, config))

    return benchmark_of


def _heldout_for(predictor: Predictor, config: TrainConfig, workshop: Workshop) -> Rows:
    """The held-out rows of `config` in the tokens that an adapter was trained on.

    Raises:
        UsageError: another carve made the dev rows, so it was trained on some of them.
    """
    card = predictor.card.task
    assert card is not None
    data = workshop.data(config.with_overrides({"token_version": card.token_version}))
    if data.task.splits.validation is None and card.carve_version != config.carve_version:
        raise UsageError(
            f"an adapter was trained on rows of carve {card.carve_version}, the other's held-out "
            f"rows are of carve {config.carve_version}, so one may have been trained on them; run "
            f"the new sweep with carve_version={card.carve_version}"
        )
    assert data.heldout is not None
    return data.heldout


def fingerprint_of(rows: Rows) -> str:
    """Name rows by their labels and first words: 16 hex digits, whatever their order and cut.

    It is the same for any `max_length`: a budget that a reign has spent on these rows stays spent.
    """
    flat = rows.flat()
    tokens = flat.columns["input_ids"]
    begins = zip(flat.offsets, flat.offsets[1:], strict=False)
    heads = [tokens[a : min(a + _HEAD, b)].tolist() for a, b in begins]
    content = sorted(zip(flat.labels.tolist(), heads, strict=True))
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
