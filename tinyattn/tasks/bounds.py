"""Files of rows, looked through before a parser sees them: what breaks parsers is told by line.

pyarrow's JSON reader ends the process at deep nesting and at a line `null`; a few bytes of gzip or
of a parquet dictionary can stand for gigabytes; text in another encoding shows only where a row is
used. One pass in small pieces finds all of that.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tinyattn.outside import DEPTH, UnfitError, decode, open_file, parse_json

MOST_LINE = 2**24
"""Bytes of a line: thousands of times what a PLM reads of a text."""
MOST_COLUMNS = 1000
"""Columns, keys in columns included."""
_FREE = 2**24
_TIMES = 30
"""A file may hold `_FREE` bytes and `_TIMES` its size when unpacked; text has 3 to 15 times."""
_BLOCK = 2**20
_ROWS = 1000


def look_through(path: Path) -> None:
    """Look through a file of rows.

    Raises:
        UnfitError: it is no ordinary file, is damaged, or holds what no parser should see.
        OSError: it cannot be read.
    """
    with open_file(path) as file:
        if path.suffix == ".parquet":
            _look_at_parquet(file)
            return
        look = _look_at_jsonl if ".jsonl" in path.suffixes else _look_at_csv
        try:
            look(_texts(file, is_packed=path.suffix == ".gz"))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UnfitError(str(error)) from None


def _texts(file: BinaryIO, is_packed: bool) -> Iterator[tuple[int, str]]:
    """Yield a file in blocks of whole lines, each with the number of its first line.

    Raises:
        UnfitError: a line is too long or no UTF-8, or the file unpacks to too much.
    """
    inside: Any = gzip.GzipFile(fileobj=file) if is_packed else file
    number, size, rest = 1, 0, b""
    while block := inside.read(_BLOCK):
        size += len(block)
        refuse_bomb(size, file.tell())
        rest += block
        if (end := rest.rfind(b"\n") + 1) == 0 and len(rest) > MOST_LINE:
            raise UnfitError(f"line {number} has more than the {MOST_LINE:,} bytes that may be")
        if end:
            yield number, decode(rest[:end], number)
            number, rest = number + rest.count(b"\n", 0, end), rest[end:]
    yield number, decode(rest, number)


def refuse_bomb(unpacked: int, read: int) -> None:
    """Raise UnfitError where so many bytes come of so few that no text can be in them."""
    if unpacked > _FREE + _TIMES * read:
        raise UnfitError(
            f"{read:,} of its bytes unpack to {unpacked:,} or more, allowed are {_TIMES} times as "
            "many; if it is what it should be, unpack it first"
        )


def _look_at_jsonl(texts: Iterator[tuple[int, str]]) -> None:
    keys: set[str] = set()
    for first, text in texts:
        for number, line in enumerate(text.split("\n"), first):
            if line and not line.isspace():
                try:
                    _note_keys(_parse_row(line.strip()), keys)
                except UnfitError as error:
                    raise UnfitError(f"line {number}: {error}") from None
    if not keys:
        raise UnfitError("no row with a column came")


def _note_keys(row: dict[str, Any], keys: set[str]) -> None:
    """Add a row's keys to those that came, with the keys in its values."""
    keys.update(row)
    for value in row.values():
        if isinstance(value, dict | list):
            keys.update(_inner_keys(value))
    if len(keys) > MOST_COLUMNS:
        raise UnfitError(f"more than {MOST_COLUMNS:,} columns came, which are allowed")


def _parse_row(text: str) -> dict[str, Any]:
    """One line as a mapping; the slow look at its depth only where it could be deep."""
    if text.count("[") + text.count("{") > DEPTH:
        row = parse_json(text, nan=True)
    else:
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise UnfitError(error.msg) from None
        except ValueError as error:  # a number of thousands of digits
            raise UnfitError(str(error).split(";")[0]) from None
    if not isinstance(row, dict):
        raise UnfitError(f"{text[:40]!r} came, needed is a row: {{column: value, ...}}")
    return row


def _inner_keys(value: Any) -> Iterator[str]:
    parts = value
    if isinstance(value, dict):
        yield from value
        parts = value.values()
    for part in parts:
        if isinstance(part, dict | list):
            yield from _inner_keys(part)


def _look_at_csv(texts: Iterator[tuple[int, str]]) -> None:
    for number, text in texts:
        if number == 1 and text.partition("\n")[0].count(",") >= MOST_COLUMNS:
            raise UnfitError(f"more than {MOST_COLUMNS:,} columns came, which are allowed")


def _look_at_parquet(file: BinaryIO) -> None:
    """Decode a parquet file in small pieces, its texts as dictionaries, and add up their sizes."""
    about, on_disk = pq.ParquetFile(file).metadata, file.seek(0, 2)
    if about.num_columns > MOST_COLUMNS:
        raise UnfitError(f"{about.num_columns:,} columns came, allowed are {MOST_COLUMNS:,}")
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    refuse_bomb(max(about.num_rows, *(group.total_byte_size for group in groups), 0), on_disk)
    names = [about.schema.column(i).path for i in range(about.num_columns)]
    size = 0
    for batch in pq.ParquetFile(file, read_dictionary=names).iter_batches(_ROWS):
        batch.validate(full=True)  # texts may be no UTF-8
        size += sum(_size(column) for column in batch.columns)
        refuse_bomb(size, on_disk)


def _size(column: pa.Array) -> int:
    """Bytes of a column when its dictionary is written out."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return int(pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0)
