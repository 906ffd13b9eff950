"""Rows for sequence labelling: the words of a text, and a tag for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import pyarrow as pa

from tinyattn.data.rows import check_columns
from tinyattn.errors import TaskError, did_you_mean

WORDS = "tinyattn:words"
"""Name of the column of lists of words."""
TAGS = "tinyattn:tags"
"""Name of the column of lists of tags, as their ids."""
_SHOWN = 20


def check_tagged_rows(
    rows: datasets.Dataset,
    words: str,
    tags: str,
    labels: Sequence[str],
    source: str,
    *,
    labelled: bool,
) -> datasets.Dataset:
    """Return the columns WORDS and TAGS of rows, one row for each of them.

    A list, or a text whose parts stand between blanks as in CSV files, has a row's words and its
    tags. Tags are names, or ids if no name is a number. Where tags are not required, TAGS is there
    only if every row has some.

    Args:
        rows: rows as read.
        words: column of the words.
        tags: column of the tags.
        labels: names of the tags by id.
        source: the file or split, the first part of each message.
        labelled: whether every row must have tags.

    Raises:
        TaskError: no rows, a missing column, a row without words, a tag that is unknown, or tags of
            another number than words.
    """
    check_columns(rows, (words, tags) if labelled else (words,), source)
    texts = [_words(value, i, words, source) for i, value in enumerate(rows[words][:])]
    columns = {WORDS: pa.array(texts, pa.list_(pa.string()))}
    given = rows[tags][:] if tags in rows.column_names else [None] * len(texts)
    if labelled or all(given):
        ids = _ids_by_name(labels)
        names = {"words": words, "tags": tags}
        found = [
            _tags(value, len(texts[i]), ids, f"{source}: row {i + 1}", names)
            for i, value in enumerate(given)
        ]
        columns[TAGS] = pa.array(found, pa.list_(pa.int32()))
    return datasets.Dataset(pa.table(columns))


def _parts(value: Any) -> list[Any] | None:
    """Return the parts of a list or text; None: it is something else, or there are none."""
    found = value.split() if isinstance(value, str) else value
    return found if isinstance(found, list) and found else None


def _words(value: Any, row: int, column: str, source: str) -> list[str]:
    found = _parts(value)
    if found is None or not all(isinstance(word, str) and word for word in found):
        raise TaskError(
            f"{source}: row {row + 1}: column '{column}' holds {value!r:.200}, needed is a list of "
            "words, or a text of words between blanks, with at least one"
        )
    return found


def _tags(
    value: Any, words: int, ids: dict[str, int], row: str, names: dict[str, str]
) -> list[int]:
    found = _parts(value)
    if found is None:
        raise TaskError(
            f"{row}: column '{names['tags']}' holds {value!r:.200}, needed is a list of tags, or a "
            "text of tags between blanks"
        )
    if len(found) != words:
        raise TaskError(
            f"{row}: column '{names['tags']}' holds {len(found)} tags and column "
            f"'{names['words']}' {words} words, needed is a tag for each word"
        )
    odd = next((tag for tag in found if str(tag) not in ids), None)
    if odd is not None:
        labels = [name for name in ids if not name.isdigit()] or list(ids)
        shown = [*labels[:_SHOWN], *(["..."] if len(labels) > _SHOWN else [])]
        raise TaskError(
            f"{row}: tag {odd!r:.80} came{did_you_mean(str(odd), labels)}, allowed are "
            f"{', '.join(shown)} or their ids from 0"
        )
    return [ids[str(tag)] for tag in found]


def _ids_by_name(labels: Sequence[str]) -> dict[str, int]:
    """Return tag or id as text → id; names that are numbers are names alone."""
    names = {name: i for i, name in enumerate(labels)}
    if any(name.isdigit() for name in labels):
        return names
    return {str(i): i for i in range(len(labels))} | names
