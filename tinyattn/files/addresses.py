"""Addresses of files: a path as an SQLite or file URL, and the path that such a URL opens.

SQLAlchemy and MLflow decode `%2F` in an address and end its path at a `?`. A path that holds either
is percent-encoded; every other path is written as it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tinyattn.errors import UsageError

_SQLITE = re.compile(r"sqlite(\+\w+)?:(?P<rest>.*)", re.DOTALL)
_SPECIAL = ("%", "?")
_DRIVER = "sqlite+pysqlite:///"
"""How encoded addresses begin. Of those that begin with `sqlite:///` MLflow makes the folder
without decoding it, so that an empty `really%3F` would lie beside `really?`."""
_OPTIONS = {"timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"}
"""Options of an SQLite address that Python's driver takes."""
_FORM = "sqlite:///runs/mlflow.db, or sqlite:////home/me/runs/mlflow.db"


def sqlite_address(file: Path) -> str:
    """Return the address by which SQLAlchemy and MLflow open exactly this SQLite file."""
    path = str(file)
    if not any(mark in path for mark in _SPECIAL):
        return f"sqlite:///{path}"
    return _DRIVER + quote(path)


def sqlite_file(address: str) -> Path | None:
    """Return the file that an SQLite address opens; None for the address of another kind of store.

    Raises:
        UsageError: it is SQLite's and opens no file, or not the one that was meant.
    """
    found = _SQLITE.fullmatch(address)
    if found is None:
        return None
    path, _, options = found["rest"].partition("?")
    if not path.startswith("///") or path[3:] in ("", ":memory:"):
        raise UsageError(f"got the store {address}, which is no file; expected {_FORM}")
    path = path[3:]
    if any(key not in _OPTIONS for key, _ in parse_qsl(options, keep_blank_values=True)):
        whole = Path(f"{path}?{options}")
        raise UsageError(
            f"got the store {address}, where options begin at the '?'; expected one of "
            f"{', '.join(sorted(_OPTIONS))}, or for a '?' in a folder's name "
            f"{sqlite_address(whole)}"
        )
    file, literal = Path(unquote(path)), Path(path)
    if file != literal and literal.parent.is_dir() and not file.parent.is_dir():
        raise UsageError(
            f"got the store {address}, which is the file {file}; expected for {literal} the "
            f"address {sqlite_address(literal)}"
        )
    return file


def with_file(address: str, file: Path) -> str:
    """Return an SQLite address with its options, of another file."""
    _, mark, options = address.partition("?")
    return f"{sqlite_address(file)}{mark}{options}"


def local_path(address: str) -> Path | None:
    """Return the path that MLflow opens for an artifact address; None: it is on no file system.

    MLflow decodes paths without a scheme too.
    """
    try:
        parts = urlsplit(address)
    except ValueError:  # an open bracket in the host
        return None
    if parts.scheme not in ("", "file"):  # in small letters, as urlsplit gives it
        return None
    return Path(unquote(parts.path if parts.scheme == "file" else address))


def require_name(path: Path, option: str) -> None:
    """Raise UsageError for a folder that no address can name: its name is not UTF-8.

    Args:
        path: the folder.
        option: how another is chosen, as in `--runs or TINYATTN_RUNS`.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise UsageError(
            f"got the folder {shown}, whose name is not UTF-8, so that MLflow and Ray cannot open "
            f"it; rename it, or name another with {option}"
        ) from None
