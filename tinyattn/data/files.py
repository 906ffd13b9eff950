"""Reader of data files: JSONL, CSV or parquet; JSONL and CSV may be gzipped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.csv

from tinyattn.data.bounds import look_through
from tinyattn.errors import StorageError, TaskError
from tinyattn.files.outside import UnfitError
from tinyattn.tasks.base import ENDINGS


def read_file(path: Path, scratch: Path) -> datasets.Dataset:
    """Read all columns of one file, in the file's order.

    Columns of a CSV file are text, whatever they look like; an empty cell is an empty text.

    Args:
        path: the file; its ending tells its format.
        scratch: folder for the Arrow file that the rows are memory-mapped from.

    Raises:
        TaskError: the file is not there, empty, damaged, or of another format.
        StorageError: the file may not be read.
        OSError: `scratch` cannot be written.
    """
    if not path.name.endswith(ENDINGS):
        raise TaskError(f"{path}: this ending came, allowed are {', '.join(ENDINGS)}")
    if not path.exists():
        raise TaskError(f"{path}: there is no such file; paths start at {Path.cwd()}")
    _look_through(path)
    try:
        with quiet_datasets():
            return _parse(path, scratch)
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno is not None:  # no space for scratch files
            raise cause from None
        raise _damaged(path, cause) from None


def _look_through(path: Path) -> None:
    """Check a file by `bounds.look_through`; raise TaskError or StorageError for its faults."""
    try:
        if not path.stat().st_size and path.is_file():
            raise TaskError(f"{path}: the file is empty, needed are rows")
        look_through(path)
    except (UnfitError, pa.ArrowException) as error:
        raise _damaged(path, error) from None
    except OSError as error:
        if error.errno is None:  # pyarrow's, of a file that is no parquet
            raise _damaged(path, error) from None
        raise StorageError(f"{path}: cannot be read: {error}") from None


def _damaged(path: Path, error: BaseException) -> TaskError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    if "straddling" in reason:  # pyarrow's word for it
        reason = "a row has more than a million bytes, or a quote has no end"
    shown = "".join(letter if letter.isprintable() else "?" for letter in reason[:500])
    return TaskError(f"{path}: damaged or not what its ending says: {shown}")


def _parse(path: Path, scratch: Path) -> datasets.Dataset:
    if ".csv" in path.suffixes:
        return datasets.Dataset(_read_csv(path))
    if path.suffix == ".parquet":
        options = {"cache_dir": str(scratch), "batch_size": 1000}
        return datasets.Dataset.from_parquet(str(path), **options)
    return datasets.Dataset.from_json(str(path), cache_dir=str(scratch))


def _read_csv(path: Path) -> pa.Table:
    """Read all columns as text; pandas, which datasets uses, turns 'NA' into null, '01' into 1."""
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    with pyarrow.csv.open_csv(path, parse_options=parse) as reader:
        names = reader.schema.names
    convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Switch off the progress bars and log lines of `datasets` within the block."""
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
