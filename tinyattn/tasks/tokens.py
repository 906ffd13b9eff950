"""Tokenised rows, as training and evaluation read them.

Nothing here or in what it imports reads text, so a process that is given token ids needs neither
datasets nor pyarrow. `tokenise.py` makes these rows from text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from tinyattn.tasks.base import Task

if TYPE_CHECKING:
    import datasets

GROUPS = "tinyattn:groups"
"""Name of the column with each row's group as a number; texts may stand in one named `groups`."""
_MOST_PASSED_OVER = 0.05
"""Of all rows, before it is said."""


@dataclass(frozen=True)
class FlatRows:
    """Token ids of many rows one after the other, and where each row begins."""

    columns: Mapping[str, np.ndarray]
    """What the PLM takes by token, each [all tokens]: `input_ids`, perhaps `token_type_ids`."""
    offsets: np.ndarray
    """[N + 1]: where each row's tokens begin in `columns`, and where the last row's end."""
    labels: np.ndarray
    """[N] class ids (int64) or scores (float32); empty where rows have none."""
    groups: np.ndarray
    """[N] int64: rows with the same number belong together (`tasks/groups.py`), as those of one
    premise or a minimal pair; each row has its own number where that was not looked for."""


class Rows(Protocol):
    """Tokenised rows of one split, wherever they are kept."""

    @property
    def name(self) -> str:
        """Which rows they are, e.g. `train` or `validation_matched`."""

    @property
    def truncated(self) -> int:
        """Rows whose text was cut."""

    def __len__(self) -> int: ...

    def __hash__(self) -> int: ...

    def flat(self) -> FlatRows:
        """Return the rows as arrays."""


@dataclass(frozen=True)
class Split:
    """Tokenised rows of one split as a `datasets.Dataset`, memory-mapped where they have a file."""

    rows: datasets.Dataset
    """Columns `input_ids`, `token_type_ids` where the tokenizer has them, `length` (tokens),
    `truncated` (bool), where every row has one `label` (class id or score), and `groups` in the
    splits of a task."""
    name: str
    """Name of the split, e.g. `train` or `validation_matched`."""
    truncated: int
    """Rows whose text was cut."""

    def __len__(self) -> int:
        return len(self.rows)

    def flat(self) -> FlatRows:
        """Return the rows as arrays, those of Arrow's own memory where they lie in one piece."""
        table = self.rows.with_format("arrow")[:]
        names = [name for name in ("input_ids", "token_type_ids") if name in table.column_names]
        lists = {name: table[name].combine_chunks() for name in names}
        return FlatRows(
            columns={name: values.values.to_numpy() for name, values in lists.items()},
            offsets=lists["input_ids"].offsets.to_numpy(),
            labels=table["label"].to_numpy() if "label" in table.column_names else np.empty(0),
            groups=(
                table[GROUPS].to_numpy() if GROUPS in table.column_names else np.arange(len(self))
            ),
        )


@dataclass(frozen=True)
class TaskData:
    """All labelled splits of one task under one protocol."""

    task: Task
    """The task."""
    train: Rows
    """Rows to train on."""
    select: Rows
    """Rows whose score picks evaluations and trials."""
    heldout: Rows | None
    """Rows that choose no evaluation and no trial; None under the protocol `paper`."""
    extra: Mapping[str, Rows]
    """More rows to report on, e.g. `mismatched`."""
    fingerprint: str
    """16 hex digits of the rows' texts and labels: equal for the same rows in any file format."""
    truncated: int
    """Rows in these splits whose text was cut to max_length."""
    carve_notes: tuple[str, ...] = ()
    """What a reader of scores on carved rows must know."""
    separator: str | None = None
    """Text that was put between those of a pair."""


def carve_notes(parted: int, passed_over: int, rows: int) -> tuple[str, ...]:
    """Say what carved rows do not tell.

    Args:
        parted: carved rows that have their like in training.
        passed_over: rows that were not asked for.
        rows: all that there were to carve from.
    """
    notes = []
    if parted:
        notes.append(
            f"{parted:,} carved rows are like rows to train on, so their scores reward memory: too "
            "few rows are unlike all others"
        )
    if passed_over > rows * _MOST_PASSED_OVER:
        notes.append(
            f"{passed_over:,} of {rows:,} rows are like too many others to be carved, so scores on "
            "carved rows say nothing of their kind"
        )
    return tuple(notes)


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id that fills short rows: the pad token's, else the end token's, else 0."""
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token_id is not None:
            return token_id
    return 0
