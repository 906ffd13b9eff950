"""Reader of splits that are folders: a folder a class with a file a text, or a saved Dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import pyarrow as pa

from tinyattn.data.reading.bounds import blocks_of
from tinyattn.errors import TaskError
from tinyattn.files.outside import UnfitError
from tinyattn.tasks.base import FileForm

SAVED = "state.json"
"""File by which a folder that `datasets.Dataset.save_to_disk` wrote is known."""
TEXT, LABEL, ID = "text", "label", "id"
"""Columns of the rows of a folder a class; an id is the path of the row's file."""
MOST_FILES = 1_000_000


def read_folder(path: Path, form: FileForm) -> datasets.Dataset:
    """Return the rows of a folder.

    Raises:
        TaskError: it holds neither a saved Dataset nor folders of .txt files.
        UnfitError: a file is not text of the form's encoding.
        OSError: a file cannot be read.
    """
    if (path / SAVED).is_file():
        return loaded(lambda: datasets.Dataset.load_from_disk(str(path)))
    texts, labels, ids = [], [], []
    for file in files_of(path):
        texts.append("".join(text for _, text in blocks_of(file, form.encoding)))
        labels.append(file.parent.name)
        ids.append(str(file.relative_to(path)))
    if not texts:
        raise TaskError(
            f"{path}: got a folder without rows; expected a folder for each class with .txt files "
            "in it, or one that datasets' save_to_disk wrote"
        )
    return datasets.Dataset(pa.table({TEXT: texts, LABEL: labels, ID: ids}))


def loaded(load: Callable[[], datasets.Dataset]) -> datasets.Dataset:
    """Return a Dataset that is memory-mapped from Arrow files, whose every cell was looked at.

    Raises:
        UnfitError: they are damaged.
    """
    try:
        rows = load()
        rows.data.table.validate(full=True)
    except Exception as error:  # datasets', pyarrow's, or a key that its notes lack
        said = str(error).splitlines() or [type(error).__name__]
        raise UnfitError(f"no Arrow file of datasets: {said[0]}") from None
    return rows


def files_of(path: Path) -> Iterator[Path]:
    """Yield the files of a split that is a folder, in the order of their names."""
    if (path / SAVED).is_file():
        yield from sorted(file for file in path.iterdir() if file.is_file())
        return
    found = sorted(path.glob("*/*.txt"))
    if len(found) > MOST_FILES:
        raise UnfitError(f"{len(found):,} files came, allowed are {MOST_FILES:,}")
    yield from found


def digest_folder(path: Path) -> str:
    """Return the SHA-256 of the names and bytes of a folder's files."""
    digest = hashlib.sha256()
    for file in files_of(path):
        digest.update(f"{file.relative_to(path)}\n".encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
