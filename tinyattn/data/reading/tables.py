"""Reader of tables of text (CSV, TSV, and others with a separator), all of whose cells are texts.

pandas, which `datasets` uses, turns 'NA' into nothing and '01' into 1; here a cell stays as it is.
"""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from tinyattn.data.reading.bounds import blocks_of, look_at_table, refuse_names
from tinyattn.tasks.base import FileForm

SEPARATORS = (",", "\t", ";", "|")
"""Signs between cells that are looked for, the likeliest first."""
_LOOKED_AT = 50
"""Rows that are looked at to find the separator."""


def read_table(path: Path, form: FileForm) -> pa.Table:
    """Return the rows of a table of text; a column without a name is called by its number.

    Raises:
        UnfitError: the file exceeds a bound, or is of another encoding.
        pa.ArrowException: a row has another number of cells than the first.
        OSError: the file cannot be read.
    """
    separator = form.separator or separator_of(path, form)
    look_at_table(blocks_of(path, form.encoding), separator)
    parse = pyarrow.csv.ParseOptions(
        delimiter=separator, newlines_in_values=True, quote_char='"' if form.quotes else False
    )
    options = pyarrow.csv.ReadOptions(encoding=form.encoding, column_names=form.columns)
    with pyarrow.csv.open_csv(path, read_options=options, parse_options=parse) as reader:
        given = reader.schema.names
    names = [name or f"column{at}" for at, name in enumerate(given, 1)]
    refuse_names(names)
    # A blank line of a table of one column is an empty cell; of a wider one it is none.
    parse.ignore_empty_lines = len(names) > 1
    found = pyarrow.csv.read_csv(
        path,
        read_options=options,
        parse_options=parse,
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(given, pa.string())),
    )
    return found.rename_columns(names)


def separator_of(path: Path, form: FileForm) -> str:
    """Return the sign that stands equally often in each of the first rows; a comma if none does.

    Raises:
        UnfitError, OSError: as `blocks_of`.
    """
    if ".tsv" in path.suffixes:
        return "\t"
    text = next(blocks_of(path, form.encoding))[1]
    widths = {separator: _width(text, separator, form) for separator in SEPARATORS}
    return max(SEPARATORS, key=lambda separator: widths[separator])


def _width(text: str, separator: str, form: FileForm) -> int:
    """Return how many cells each of the first rows has; 0 if not all have as many, or one has one.

    The last row that is looked at may be cut off, and is left out.
    """
    lines = text.splitlines(keepends=True)
    if form.quotes:
        reader = csv.reader(lines, delimiter=separator)
    else:
        reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
    try:
        rows = [row for row in itertools.islice(reader, _LOOKED_AT) if row]
    except csv.Error:
        return 0
    widths = {len(row) for row in rows}
    width = min(widths, default=0)
    return width if len(widths) == 1 and width > 1 else 0
