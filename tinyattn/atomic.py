"""Atomic writes: a file or a folder is written as a whole or not at all.

It imports no torch, which takes seconds: commands that only ask start without.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tinyattn.errors import StorageError


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a fresh folder that takes the place of `folder` when the block ends without error.

    Raises:
        StorageError: it cannot be written; `folder` is then as it was.
    """
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        fresh, aside = work / "new", work / "old"
        try:
            fresh.mkdir()
            yield fresh
            _take_place(fresh, folder, aside)
        finally:
            if folder.is_dir() or not aside.exists():  # never the only copy
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot be written: {error.strerror or error}; free space or choose "
            "another place"
        ) from None


def _take_place(fresh: Path, folder: Path, aside: Path) -> None:
    """Rename `fresh` to `folder`; what was there goes aside, and comes back if that fails."""
    if not folder.is_dir():
        os.replace(fresh, folder)
        return
    os.replace(folder, aside)
    try:
        os.replace(fresh, folder)
    except OSError:
        os.replace(aside, folder)
        raise


def _to_disk(path: Path) -> None:
    """Have the system write a file, or a folder's names, to its disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole or not at all, also where power is lost.

    Raises:
        StorageError: it cannot be written.
    """
    path = path.absolute()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        _to_disk(fresh)  # a rename may reach the disk before what it names
        os.replace(fresh, path)
        with contextlib.suppress(OSError):  # not every file system knows this of folders
            _to_disk(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise StorageError(
            f"{path}: cannot be written: {error.strerror}; free space or choose another place"
        ) from None
