"""Rows of text become splits: found, tokenised once a machine, divided by protocol."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from tinyattn.errors import ConfigError, StorageError, TaskError
from tinyattn.tasks.base import Task
from tinyattn.tasks.cache import Stored, stored_splits
from tinyattn.tasks.carve import Carved
from tinyattn.tasks.files import read_file
from tinyattn.tasks.rows import check_rows
from tinyattn.tasks.sources import find_source
from tinyattn.tasks.tokenise import as_split, token_rules, tokenise
from tinyattn.tasks.tokens import Split, TaskData, carve_notes

__all__ = ["Split", "TaskData", "load_data", "read_rows", "tokenise"]

_SUBSET_SEED = 527  # of max_train_rows: the same rows for every trial, whatever its seed


def load_data(
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    protocol: Literal["paper", "heldout"],
    max_length: int,
    max_train_rows: int | None,
    carve_version: int = 2,
    token_version: int = 2,
    types: bool | None = None,
    data_dir: Path | None = None,
) -> TaskData:
    """Find, check, tokenise and split a task's rows.

    Args:
        task: from `find_task`.
        tokenizer: the PLM's.
        protocol: `paper` selects on the official dev rows; `heldout` on rows carved from train,
            and keeps dev for the report. Carved rows do not depend on any trial.
        max_length: tokens per row; of longer texts the longer one of a pair is cut first.
        max_train_rows: fixed random subset of the training rows, taken after carving; None: all.
        carve_version: see `tinyattn.tasks.carve`.
        token_version: see `tinyattn.tasks.tokenise`.
        types: whether the PLM has more than one type of token; None: as the tokenizer has it.
        data_dir: folder with `glue/<task>/<split>.jsonl` and so on, before TINYATTN_DATA.

    Raises:
        ConfigError: no such protocol.
        TaskError: data are missing or do not fit the task.
        StorageError: the cache cannot be written.
    """
    if protocol not in ("paper", "heldout"):
        raise ConfigError(f"protocol '{protocol}' came, allowed are paper, heldout")
    rules = token_rules(tokenizer, len(task.text_columns), token_version, types)
    stored = stored_splits(task, tokenizer, max_length, rules, find_source(task, data_dir))
    carved = stored.carved[str(carve_version)]
    left, select, dev = _divide(task, stored, protocol, carved)
    rows = stored.splits[task.splits.train].rows
    train = as_split(rows, "train", _subset(left, max_train_rows))
    extra = {name: stored.splits[split] for name, split in task.splits.extra.items()}
    heldout = dev if protocol == "heldout" else None
    theirs = [carved[name] for name in {select.name, dev.name} & carved.keys()]
    used = [train, select, *extra.values(), *([heldout] if heldout else [])]
    return TaskData(
        task=task,
        train=train,
        select=select,
        heldout=heldout,
        extra=extra,
        fingerprint=stored.fingerprint,
        truncated=sum(split.truncated for split in used),
        carve_notes=carve_notes(
            sum(one.parted for one in theirs),
            max((o.passed_over for o in theirs), default=0),
            len(rows),
        ),
        separator=rules.separator,
    )


def _divide(
    task: Task, stored: Stored, protocol: str, carved: Mapping[str, Carved]
) -> tuple[np.ndarray, Split, Split]:
    """Numbers of the training rows, the rows to select on, and dev or what is carved for it."""
    rows = stored.splits[task.splits.train].rows
    left = np.arange(len(rows))

    def take(name: str) -> Split:
        nonlocal left
        left = np.setdiff1d(left, np.concatenate([carved[name].rows, carved[name].unused]))
        return as_split(rows, name, carved[name].rows)

    validation = task.splits.validation
    dev = take("validation") if validation is None else stored.splits[validation]
    select = take("select") if protocol == "heldout" else dev
    if not (len(left) and len(select) and len(dev)):
        raise TaskError(
            f"task '{task.name}': {len(rows)} training rows came, too few to carve others from"
        )
    return left, select, dev


def _subset(numbers: np.ndarray, wanted: int | None) -> np.ndarray:
    """A fixed random subset in its order; a smaller one lies within a larger one."""
    order = np.random.RandomState(_SUBSET_SEED).permutation(len(numbers))
    return numbers[np.sort(order[:wanted])]


def read_rows(path: Path, task: Task) -> datasets.Dataset:
    """Read and check one file for prediction: its text columns, and `label` if every row has one.

    Raises:
        TaskError: the file is not there, damaged, empty, or does not fit the task.
        StorageError: no scratch space.
    """
    try:
        with tempfile.TemporaryDirectory() as scratch:
            # The rows stay memory-mapped when the scratch file's name is gone.
            return check_rows(read_file(path, Path(scratch)), task, str(path), labelled=False)
    except OSError as error:
        raise StorageError(f"{path}: no scratch space to read it: {error}") from None
