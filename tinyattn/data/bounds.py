"""Bounds checks on data files, made before a parser reads them; faults are reported by line.

pyarrow's JSON reader ends the process at deep nesting and at a line `null`; a few bytes of gzip or
of a parquet dictionary can unpack to gigabytes; a wrong encoding would show only where a row is
used. One pass over the file, in small pieces, finds all of that.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tinyattn.files.outside import DEPTH, UnfitError, decode, open_file, parse_json

MOST_LINE = 2**24
"""Longest line, in bytes: thousands of times what a PLM reads of a text."""
MOST_COLUMNS = 1000
"""Most columns, counting keys of nested columns."""
_FREE = 2**24
_TIMES = 30
"""A file may unpack to `_FREE` bytes plus `_TIMES` its size; text unpacks to 3 to 15 times."""
_BLOCK = 2**20
_ROWS = 1000


def look_through(path: Path) -> None:
    """Check a file of rows: encoding, nesting, line lengths, columns and unpacked size.

    Raises:
        UnfitError: it is not an ordinary file, is damaged, or exceeds a bound.
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
        UnfitError: a line is too long or not UTF-8, or the file unpacks to too much.
    """
    inside: Any = gzip.GzipFile(fileobj=file) if is_packed else file
    number, size, rest = 1, 0, b""
    while block := inside.read(_BLOCK):
        size += len(block)
        refuse_bomb(size, file.tell(), "unpack it first")
        rest += block
        if (end := rest.rfind(b"\n") + 1) == 0 and len(rest) > MOST_LINE:
            raise UnfitError(f"line {number} has more than the {MOST_LINE:,} bytes that may be")
        if end:
            yield number, decode(rest[:end], number)
            number, rest = number + rest.count(b"\n", 0, end), rest[end:]
    yield number, decode(rest, number)


def refuse_bomb(unpacked: int, read: int, advice: str) -> None:
    """Raise UnfitError where `read` bytes unpack to more than any text would."""
    if unpacked > _FREE + _TIMES * read:
        raise UnfitError(
            f"{read:,} of its bytes unpack to {unpacked:,} or more, allowed are {_TIMES} times as "
            f"many; if it is what it should be, {advice}"
        )


def _look_at_jsonl(texts: Iterator[tuple[int, str]]) -> None:
    columns: set[Any] = set()
    mappings = size = 0
    for first, text in texts:
        size += len(text)
        for number, line in enumerate(text.split("\n"), first):
            if line and not line.isspace():
                try:
                    mappings += _note_columns(_parse_row(line.strip()), columns)
                    _refuse_thin(mappings * len(columns), size)
                except UnfitError as error:
                    raise UnfitError(f"line {number}: {error}") from None
    if not columns:
        raise UnfitError("no row with a column came")


def _note_columns(value: Any, columns: set[Any], above: Any = None) -> int:
    """Add the paths of all keys in a value to `columns`; return how many mappings it holds."""
    if isinstance(value, list):
        nested = (part for part in value if isinstance(part, dict | list))
        return sum(_note_columns(part, columns, above) for part in nested)
    columns.update(value if above is None else [(above, key) for key in value])
    if len(columns) > MOST_COLUMNS:
        raise UnfitError(f"more than {MOST_COLUMNS:,} columns came, allowed are {MOST_COLUMNS:,}")
    count = 1
    for key, part in value.items():
        if isinstance(part, dict | list):
            count += _note_columns(part, columns, key if above is None else (above, key))
    return count


def _refuse_thin(cells: int, size: int) -> None:
    """Raise UnfitError where most cells are empty: a table takes memory for every cell."""
    if cells > _FREE + size:
        raise UnfitError(
            f"the rows until here have {cells:,} cells, most of them empty, allowed are {_FREE:,} "
            "and one for each letter; leave out columns that few rows have"
        )


def _parse_row(text: str) -> dict[str, Any]:
    """Parse one line as a mapping; its depth is checked only if it has many brackets."""
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


def _look_at_csv(texts: Iterator[tuple[int, str]]) -> None:
    """Check the number of columns in the first non-empty row, which may span several lines."""
    lines = (line for _, text in texts for line in io.StringIO(text, newline=""))
    try:
        header = next(filter(None, csv.reader(lines)), [])
    except csv.Error as error:
        raise UnfitError(f"the names of columns cannot be read: {error}") from None
    if len(header) > MOST_COLUMNS:
        raise UnfitError(f"{len(header):,} columns came, allowed are {MOST_COLUMNS:,}")
    for _ in texts:  # the rest is looked through as it comes
        pass


def _look_at_parquet(file: BinaryIO) -> None:
    """Decode a parquet file in small pieces, texts kept as dictionaries, and check their size."""
    about, on_disk = pq.ParquetFile(file).metadata, file.seek(0, 2)
    if about.num_columns > MOST_COLUMNS:
        raise UnfitError(f"{about.num_columns:,} columns came, allowed are {MOST_COLUMNS:,}")
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    _refuse_dense(max(about.num_rows, *(group.total_byte_size for group in groups), 0), on_disk)
    names = [about.schema.column(i).path for i in range(about.num_columns)]
    size = 0
    for batch in pq.ParquetFile(file, read_dictionary=names).iter_batches(_ROWS):
        batch.validate(full=True)  # texts may be no UTF-8
        size += sum(_size(column) for column in batch.columns)
        _refuse_dense(size, on_disk)


def _refuse_dense(unpacked: int, on_disk: int) -> None:
    refuse_bomb(unpacked, on_disk, "save it as .jsonl")


def _size(column: pa.Array) -> int:
    """Return the bytes of a column with its dictionaries, also nested ones, written out."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        texts = pc.binary_length(column.dictionary).take(column.indices)
        return 4 * len(column) + int(pc.sum(texts).as_py() or 0)
    if pa.types.is_struct(kind):
        return len(column) + sum(_size(part) for part in column.flatten())
    if pa.types.is_map(kind):  # which cannot be flattened
        return 4 * len(column) + _size(column.keys) + _size(column.items)
    if pa.types.is_nested(kind):
        return 4 * len(column) + _size(column.flatten())
    return int(column.nbytes)
