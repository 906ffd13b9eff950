"""Splits of a task: which rows train, select and judge under a protocol."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from tinyattn.data.cache import Stored, stored_splits
from tinyattn.data.carve import Carved
from tinyattn.data.files import read_file
from tinyattn.data.rows import check_rows
from tinyattn.data.sources import find_source
from tinyattn.data.tokenise import as_split, token_rules, tokenise
from tinyattn.data.tokens import Split, TaskData, carve_notes
from tinyattn.errors import ConfigError, StorageError, TaskError
from tinyattn.tasks.base import Task

__all__ = ["Split", "TaskData", "load_data", "read_rows", "tokenise"]

_SUBSET_SEED = 527  # of max_train_rows and max_select_rows: the same rows whatever a trial's seed


def load_data(
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    *,
    protocol: Literal["paper", "heldout"],
    max_length: int,
    max_train_rows: int | None,
    max_select_rows: int | None = None,
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
        max_length: tokens per row; in a pair that is too long, the longer text is cut first.
        max_train_rows: size of a fixed random subset of training rows, taken after carving; None:
            all.
        max_select_rows: size of a fixed random subset of the rows that `heldout` carves to select
            on; None: all. The others are not trained on.
        carve_version: see `tinyattn.data.carve`.
        token_version: see `tinyattn.data.tokenise`.
        types: whether the PLM has more than one token type; None: as the tokenizer says.
        data_dir: folder with `glue/<task>/<split>.jsonl` and so on, searched before TINYATTN_DATA.

    Raises:
        ConfigError: the protocol is unknown.
        TaskError: data are missing or do not fit the task.
        StorageError: the cache cannot be written.
    """
    if protocol not in ("paper", "heldout"):
        raise ConfigError(f"protocol '{protocol}' came, allowed are paper, heldout")
    rules = token_rules(tokenizer, len(task.text_columns), token_version, types)
    stored = stored_splits(task, tokenizer, max_length, rules, find_source(task, data_dir))
    carved = stored.carved[str(carve_version)]
    left, select, dev = _divide(task, stored, protocol, carved, max_select_rows)
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
    task: Task,
    stored: Stored,
    protocol: str,
    carved: Mapping[str, Carved],
    max_select_rows: int | None,
) -> tuple[np.ndarray, Split, Split]:
    """Return numbers of training rows, the selection rows, and dev (or rows carved for it)."""
    rows = stored.splits[task.splits.train].rows
    left = np.arange(len(rows))

    def take(name: str, most: int | None = None) -> Split:
        nonlocal left
        left = np.setdiff1d(left, np.concatenate([carved[name].rows, carved[name].unused]))
        return as_split(rows, name, _subset(carved[name].rows, most))

    validation = task.splits.validation
    dev = take("validation") if validation is None else stored.splits[validation]
    select = take("select", max_select_rows) if protocol == "heldout" else dev
    if not (len(left) and len(select) and len(dev)):
        raise TaskError(
            f"task '{task.name}': {len(rows)} training rows came, too few to carve others from"
        )
    return left, select, dev


def _subset(numbers: np.ndarray, wanted: int | None) -> np.ndarray:
    """Return a fixed random subset in row order; smaller subsets are parts of larger ones."""
    order = np.random.RandomState(_SUBSET_SEED).permutation(len(numbers))
    return numbers[np.sort(order[:wanted])]


def read_rows(path: Path, task: Task) -> datasets.Dataset:
    """Read and check a file to predict on: text columns, and `label` if every row has one.

    Raises:
        TaskError: the file is not there, damaged, empty, or does not fit the task.
        StorageError: there is no scratch space to read it.
    """
    try:
        with tempfile.TemporaryDirectory() as scratch:
            # The rows stay memory-mapped when the scratch file's name is gone.
            return check_rows(read_file(path, Path(scratch)), task, str(path), labelled=False)
    except OSError as error:
        raise StorageError(f"{path}: no scratch space to read it: {error}") from None
