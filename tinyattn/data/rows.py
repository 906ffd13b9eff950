"""Checks of rows against their task: columns, texts and labels, vectorised over Arrow columns.

Messages name a row by its number, counted from 1 without a header line.
"""

from __future__ import annotations

from collections.abc import Iterable

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tinyattn.data.tokens import GROUPS
from tinyattn.errors import TaskError, did_you_mean
from tinyattn.tasks.base import Task

LABEL = "label"
"""Name of the label column of checked rows."""
INDEX = "idx"
"""Name of the column in which GLUE's files number their rows from 0."""
GROUP = "tinyattn:group"
"""Name of the group column of checked rows, where the task has one."""

_ROUNDED = 1e-3
"""Most by which a row's probabilities may miss the sum 1."""
_MISSING = ("", "-1", "-1.0")  # an unlabelled row: an empty CSV cell, or GLUE's -1


def check_rows(
    rows: datasets.Dataset, task: Task, source: str, *, labelled: bool, soft: bool = False
) -> datasets.Dataset:
    """Return the task's columns of `rows`: texts, `label`, and GROUP if the task has groups.

    Labels become class ids (int64) or scores (float32). Where labels are not required, the column
    is kept only if every row has one.

    Args:
        rows: rows as read; columns that the task does not name are dropped.
        task: the task: its columns and allowed labels.
        source: the file or split, the first part of each message.
        labelled: whether every row must have a label.
        soft: whether labels may be lists of probabilities, which stay so (float32).

    Raises:
        TaskError: no rows, a missing column, or a text or label that is not allowed.
    """
    check_columns(rows, task.text_columns + ((task.label_column,) if labelled else ()), source)
    columns = {name: text_column(rows, name, source) for name in task.text_columns}
    if task.label_column in rows.column_names:
        kind = rows.data.table.column(task.label_column).type
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        is_soft = soft and task.labels is not None and any(is_of(kind) for is_of in lists)
        read = _soft_labels if is_soft else _labels
        labels = read(rows, task, source, labelled)
        if labels is not None:
            columns[LABEL] = labels
    if task.group_column is not None and task.group_column in rows.column_names:
        columns[GROUP] = _group_names(rows, task.group_column, source)
    return datasets.Dataset(pa.table(columns))


def check_columns(rows: datasets.Dataset, needed: Iterable[str], source: str) -> None:
    """Raise TaskError unless there are rows and each needed column."""
    if not len(rows):
        raise TaskError(f"{source}: no rows came, needed is at least one")
    there = rows.column_names
    for column in needed:
        if column not in there:
            raise TaskError(
                f"{source}: no column '{column}'{did_you_mean(column, there)}; "
                f"its columns are {', '.join(there)}"
            )


def index_of(rows: datasets.Dataset, source: str) -> np.ndarray:
    """Return the number of each row by the column INDEX, [N] int64; without one, as rows stand.

    Raises:
        TaskError: a value is no whole number from 0, or an earlier row has it.
    """
    if INDEX not in rows.column_names:
        return np.arange(len(rows))
    column = rows.data.table.column(INDEX)
    needed = (
        "needed is a number from 0 that no other row has; without the column, rows are numbered "
        "as they stand"
    )
    try:
        index = np.asarray(column.cast(pa.int64()).fill_null(-1))
    except pa.ArrowException as error:
        came = str(error).splitlines()[0]
        raise TaskError(f"{source}: column '{INDEX}': {came:.200}; {needed}") from None
    wrong = np.ones(len(index), bool)
    wrong[np.unique(index, return_index=True)[1]] = False  # where each value stands first
    wrong |= index < 0
    if wrong.any():
        at = int(wrong.argmax())
        came = column[at].as_py()
        raise TaskError(f"{source}: row {at + 1}: column '{INDEX}' holds {came!r}; {needed}")
    return index


def with_groups(rows: datasets.Dataset, numbers: np.ndarray) -> datasets.Dataset:
    """Return checked rows with the column GROUPS added."""
    return datasets.Dataset(rows.data.table.append_column(GROUPS, pa.array(numbers, pa.int64())))


def named_groups(rows: datasets.Dataset) -> np.ndarray:
    """Number the groups named in the column GROUP, [N]; a row without a name is a group itself."""
    column = rows.data.table.column(GROUP)
    if _is_text(column.type):
        column = pc.if_else(pc.equal(column, ""), None, column)  # an empty CSV cell
    numbers = column.dictionary_encode().combine_chunks().indices
    nameless = np.asarray(numbers.is_null())
    own = len(nameless) + np.arange(len(nameless))
    return np.where(nameless, own, np.asarray(numbers.fill_null(0))).astype(np.int64)


def _group_names(rows: datasets.Dataset, name: str, source: str) -> pa.ChunkedArray:
    column = rows.data.table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        column.slice(0, 1).dictionary_encode()
    except pa.ArrowException:
        raise TaskError(
            f"{source}: column '{name}' holds {column[0].as_py()!r:.200}, needed are texts or "
            "numbers that name each row's group, or nothing"
        ) from None
    return column


def text_column(rows: datasets.Dataset, name: str, source: str) -> pa.ChunkedArray:
    """Return a column of texts; TaskError if a row has none or something else."""
    column = rows.data.table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_text(column.type) and not column.null_count:
        return column
    values = rows[name][:]
    at = next((i for i, value in enumerate(values) if not isinstance(value, str)), None)
    if at is None:  # texts that stand in JSON beside values of other types, in rows that are gone
        return pa.chunked_array([pa.array(values, pa.string())])
    raise TaskError(
        f"{source}: row {at + 1}: column '{name}' holds {values[at]!r:.200}, needed is a text"
    )


def _labels(rows: datasets.Dataset, task: Task, source: str, labelled: bool) -> pa.Array | None:
    """Return class ids or scores; None if labels are not required and a row has none."""
    values = _as_text(rows, task.label_column)
    found = _scores(values, task) if task.labels is None else _class_ids(values, task)
    unknown = np.asarray(pc.is_null(found))
    if not unknown.any():
        return found
    missing = np.asarray(pc.is_in(values, value_set=pa.array([*_MISSING, None], pa.string())))
    wrong = unknown if labelled else unknown & ~missing
    if wrong.any():
        at = int(wrong.argmax())
        came = "no label" if missing[at] else f"label {values[at].as_py()!r:.200}"
        raise TaskError(f"{source}: row {at + 1}: {came} came, allowed {_allowed(task)}")
    return None


def _soft_labels(
    rows: datasets.Dataset, task: Task, source: str, labelled: bool
) -> pa.Array | None:
    """Return lists of probabilities, one for each label of the task."""
    names = task.labels or ()
    found = []
    for at, row in enumerate(rows[task.label_column][:]):
        given = row if isinstance(row, list) else []
        numbers = np.array([_number(str(value)) for value in given])
        sums_up = len(numbers) == len(names) > 0 and abs(numbers.sum() - 1) < _ROUNDED
        if not (sums_up and (numbers >= 0).all()):
            raise TaskError(
                f"{source}: row {at + 1}: label {row!r:.200} came, allowed are probabilities of "
                f"{', '.join(names)}, whose sum is 1"
            )
        found.append(numbers.tolist())
    return pa.array(found, pa.list_(pa.float32()))


def _class_ids(values: pa.ChunkedArray, task: Task) -> pa.ChunkedArray:
    """Map labels to class ids: names, or ids written as numbers if no name is a number itself."""
    names = list(task.labels or ())
    numeric = any(name.lstrip("-").isdigit() for name in names)
    words = names if numeric else names + [str(i) for i in range(len(names))]
    index = pc.index_in(values, value_set=pa.array(words)).cast(pa.int64())
    return pc.if_else(pc.less(index, len(names)), index, pc.subtract(index, len(names)))


def _scores(values: pa.ChunkedArray, task: Task) -> pa.Array:
    """Return scores as float32; null where a value is not a number or outside the range."""
    low, high = task.score_range or (-np.inf, np.inf)
    scores = np.array([_number(value) for value in values.to_pylist()])
    outside = ~((scores >= low) & (scores <= high))  # NaN is outside too
    return pa.array(scores, pa.float32(), mask=outside)


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def _as_text(rows: datasets.Dataset, name: str) -> pa.ChunkedArray:
    """Return a label column as text, so that 1, 1.0, "1" and a class name are looked up alike."""
    column = rows.data.table.column(name)
    if isinstance(column.type, pa.BaseExtensionType):  # JSON with values of several types
        return _spelt(rows, name)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        is_id = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**53))
        if pc.all(is_id).as_py():  # ids with gaps, made by pandas
            column = column.cast(pa.int64())
    try:
        return column.cast(pa.string())
    except pa.ArrowException:  # lists, or bytes that are no text
        return _spelt(rows, name)


def _spelt(rows: datasets.Dataset, name: str) -> pa.ChunkedArray:
    """Return a column as Python's str() of each value."""
    values = [None if value is None else str(value) for value in rows[name][:]]
    return pa.chunked_array([pa.array(values, pa.string())])


def _allowed(task: Task) -> str:
    if task.score_range is not None:
        return "is a score from {} to {}".format(*task.score_range)
    names = list(task.labels or ())
    shown = names[:20] + (["..."] if len(names) > 20 else [])
    return f"are {', '.join(shown)} or the ids 0 to {len(names) - 1}"


def _is_text(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
