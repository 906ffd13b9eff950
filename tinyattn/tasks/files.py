"""Read one file of rows: JSONL, CSV or parquet, gzipped or not."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.csv

from tinyattn.errors import StorageError, TaskError
from tinyattn.tasks.base import ENDINGS


def read_file(path: Path, scratch: Path) -> datasets.Dataset:
    """Read all columns of one file, in the file's order.

    Columns of a CSV file are text, whatever they look like; an empty cell is an empty text.

    Args:
        path: the file; its ending says its format.
        scratch: folder for the Arrow file that the rows are memory-mapped from.

    Raises:
        TaskError: it is not there, empty, damaged, or of another format.
        StorageError: it may not be read.
        OSError: `scratch` cannot be written.
    """
    if not path.name.endswith(ENDINGS):
        raise TaskError(f"{path}: this ending came, allowed are {', '.join(ENDINGS)}")
    if not path.is_file():
        raise TaskError(f"{path}: there is no such file; paths start at {Path.cwd()}")
    try:
        path.open("rb").close()
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}") from None
    try:
        with quiet_datasets():
            return _parse(path, scratch)
    except StopIteration:  # what datasets raises for a file without any bytes
        raise TaskError(f"{path}: the file is empty, needed are rows") from None
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno is not None:  # no space for scratch files
            raise cause from None
        reason = _bad_line(path) or (str(cause) or type(cause).__name__).splitlines()[0]
        raise TaskError(f"{path}: damaged or not what its ending says: {reason}") from None


def _bad_line(path: Path) -> str | None:
    """The first line of a JSONL file that is no JSON, counted as editors do; None: all are."""
    if ".jsonl" not in path.suffixes:
        return None
    opened = gzip.open if path.suffix == ".gz" else open
    with (
        # Not JSON's fault: a file that is cut, is not gzip or UTF-8; numbers of 5,000 digits.
        contextlib.suppress(OSError, EOFError, zlib.error, ValueError, RecursionError),
        opened(path, "rt", encoding="utf-8-sig") as file,
    ):
        for number, line in enumerate(file, start=1):
            try:
                json.loads(line.strip() or "null")
            except json.JSONDecodeError as error:
                return f"line {number}: {error.msg}"
    return None


def _parse(path: Path, scratch: Path) -> datasets.Dataset:
    if ".csv" in path.suffixes:
        return datasets.Dataset(_read_csv(path))
    read = (
        datasets.Dataset.from_parquet if path.suffix == ".parquet" else datasets.Dataset.from_json
    )
    return read(str(path), cache_dir=str(scratch))


def _read_csv(path: Path) -> pa.Table:
    """All columns as text: pandas, which datasets uses, turns 'NA' into a null and '01' into 1."""
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    with pyarrow.csv.open_csv(path, parse_options=parse) as reader:
        names = reader.schema.names
    convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Keep the progress bars and log lines of `datasets` off, for the time of this context."""
    had_bars = not datasets.are_progress_bars_disabled()
    verbosity = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if had_bars:
            datasets.enable_progress_bars()
