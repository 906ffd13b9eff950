"""The SQLite file of a runs folder: whether it may be written, its copy, its addresses.

MLflow writes the absolute address of every run's files into its database. A runs folder that was
moved or copied names the place where it was before, so that place is replaced by this one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tinyattn.outside import open_file

ARTIFACTS = "artifacts"
"""Folder of all artifacts in a runs folder, and of a run's own in its folder."""
_TABLES = {"alembic_version", "experiments", "runs", "tags", "params", "metrics", "latest_metrics"}
BUSY_SECONDS = 5.0
"""How long another process may keep the file to itself."""


def file_of(uri: str) -> Path | None:
    """Return the file of an SQLite address; None: it is the address of another kind of store."""
    scheme, mark, rest = uri.partition(":///")
    if not mark or scheme.partition("+")[0] != "sqlite":
        return None
    return Path(rest.partition("?")[0])


def may_be_written(file: Path) -> bool:
    """Return whether this account may change an SQLite file, which has a journal beside it."""
    return os.access(file, os.W_OK) and os.access(file.absolute().parent, os.W_OK)


def require_database(file: Path) -> None:
    """Refuse a file that is none of MLflow's databases.

    Raises:
        sqlite3.Error, OSError: it is none, or does not answer.
        UnfitError: it is no ordinary file; a pipe would have us wait.
    """
    if not file.is_file():
        open_file(file).close()
    with closing(_opened(file)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        missing = _TABLES - {name for (name,) in found}
    if missing:  # MLflow would make them, in whatever file, and show an empty store
        raise sqlite3.DatabaseError(
            f"it has no table {min(missing)}, so it is empty, damaged or another program's; "
            "restore a copy, or move it away to begin a new store"
        )


def copy_to(folder: Path, file: Path) -> Path:
    """Copy an SQLite file that others may be writing; return the copy.

    Raises:
        sqlite3.Error, OSError: it cannot be read.
    """
    copy = folder / file.name
    try:
        with closing(_opened(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.OperationalError:
        # A writer died in the middle: its journal must be undone, which takes a copy of both.
        for part in (file, file.with_name(f"{file.name}-journal")):
            if part.exists():
                shutil.copyfile(part, folder / part.name)
    return copy


def _opened(file: Path) -> sqlite3.Connection:
    mode = "rw" if may_be_written(file) else "ro"  # neither makes a file
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", BUSY_SECONDS, uri=True)


# ---- addresses of artifacts ----


def address_here(address: str, roots: Sequence[Path]) -> str:
    """Return where the artifacts of a run, or of an experiment, are now.

    Args:
        address: what MLflow wrote down when the run was made: `…/artifacts/EXPERIMENT` or
            `…/artifacts/EXPERIMENT/RUN/artifacts`.
        roots: folders `artifacts` that this store may have, the likeliest first.

    Returns:
        The address below the first root that has the experiment, else as it is where its files are
        there, else below the last root. An address of another form stays as it is.
    """
    before = _path_of(address)
    above = 1 if before is not None and before.parent.name == ARTIFACTS else 3
    if before is None or len(before.parts) <= above + 1 or before.parts[-above - 1] != ARTIFACTS:
        return address
    tail = before.parts[-above:]
    for root in roots:
        if (root / tail[0]).is_dir():
            return root.joinpath(*tail).as_uri()
    there = before if above == 1 else before.parents[1]
    return address if there.is_dir() else roots[-1].joinpath(*tail).as_uri()


def put_addresses_right(file: Path, roots: Sequence[Path]) -> None:
    """Have the database name the places where artifacts are now, for MLflow's own pages.

    Raises:
        sqlite3.Error: the database cannot be read or written.
    """
    with closing(sqlite3.connect(file, BUSY_SECONDS)) as connection, connection:
        found = connection.execute("SELECT artifact_location FROM experiments").fetchall()
        for (before,) in found:
            here = address_here(before or "", roots)
            if here != (before or ""):
                _replace(connection, before, here)


def _replace(connection: sqlite3.Connection, before: str, here: str) -> None:
    for table, column in (
        ("runs", "artifact_uri"),
        ("model_versions", "storage_location"),
        ("model_versions", "source"),
        ("logged_models", "artifact_location"),
        ("experiments", "artifact_location"),
    ):
        connection.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
            f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
            (here, len(before) + 1, before, len(before) + 1, f"{before}/"),
        )


def _path_of(address: str) -> Path | None:
    parts = urlsplit(address)
    if parts.scheme not in ("", "file") or not parts.path.startswith("/"):
        return None
    return Path(unquote(parts.path) if parts.scheme else address)
