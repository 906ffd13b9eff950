"""A cache of files that all processes of a machine map into memory, so that they share one copy.

Its content can always be computed again. A file is there as a whole or not at all, and ends with a
digest of its content, which is verified when it is opened. The format is not safetensors, which is
mapped as well: its writer takes whole tensors, but activations are written as they are computed, in
any order, and their digest is known only then.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import psutil
import torch
from torch import Tensor

CACHE_VARIABLE = "TINYATTN_CACHE"
_SHARE = 4
"""The cache takes at most 1/4 of the disk space that is free without it, and a file at most 1/4 of
the available main memory."""
_DIGEST_BYTES = 16
"""Bytes of the digest at the end of a file."""


def cache_folder() -> Path:
    """Return the folder of all caches: TINYATTN_CACHE, by default `~/.cache/tinyattn`."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/tinyattn").expanduser()


def kept_file(name: str, size: int, write: Callable[[BinaryIO], None]) -> Tensor | None:
    """Map a cached file into memory, writing it first if it is missing or damaged.

    Args:
        name: the file's name; other content must have another name.
        size: bytes of the content.
        write: writes `size` bytes to an open file, in any order. The machine's other processes
            wait for it.

    Returns:
        The content, [size] uint8, read-only; None if disk or main memory have too little room.

    Raises:
        OSError: the folder cannot be used, or the disk is full.
    """
    # Machines that share a home each have their own: what one maps, another must not remove.
    folder = cache_folder() / "mapped" / socket.gethostname()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.bin"
    with filelock.FileLock(f"{path}.lock"):
        found = _mapped(path, size)
        if found is None and _make_room(folder, size):
            _write(path, size, write)
            found = _mapped(path, size)
    return found


def _mapped(path: Path, size: int) -> Tensor | None:
    """Map a file; None if it is missing or damaged."""
    try:
        if path.stat().st_size != size + _DIGEST_BYTES:
            return None
        content = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        with path.open("rb") as file:
            file.seek(-_DIGEST_BYTES, os.SEEK_END)
            wanted = file.read()
        os.utime(path)  # the longest unused one goes first
    except (FileNotFoundError, RuntimeError):  # another process made room meanwhile
        return None
    return content if _blake2b(content.numpy().data).digest() == wanted else None


def _blake2b(content: Any = b"") -> Any:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES)


def _make_room(folder: Path, size: int) -> bool:
    """Make room for a file of `size` bytes by removing the least recently used; False: no room.

    The file must fit into main memory too: reading it from disk at every step saves no time.
    """
    for left in folder.glob("*.building"):  # by a process that was killed
        lock = filelock.FileLock(left.with_suffix(".bin.lock"), timeout=0)
        with contextlib.suppress(filelock.Timeout), lock:
            left.unlink(missing_ok=True)
    files: list[tuple[os.stat_result, Path]] = []
    for file in folder.glob("*.bin"):
        with contextlib.suppress(FileNotFoundError):
            files.append((file.stat(), file))
    files.sort(key=lambda found: found[0].st_mtime)
    taken = sum(about.st_size for about, _ in files)
    room = (shutil.disk_usage(folder).free + taken) // _SHARE
    if size > min(room, psutil.virtual_memory().available // _SHARE):
        return False
    for about, file in files:
        if taken + size <= room:
            break
        taken -= about.st_size
        file.unlink(missing_ok=True)  # who has mapped it keeps it
    return True


def _write(path: Path, size: int, write: Callable[[BinaryIO], None]) -> None:
    """Write a file and its digest, then rename it; unlike in a mapping, a full disk raises."""
    building = path.with_suffix(".building")
    try:
        with building.open("w+b") as file:
            write(file)
            file.seek(0)
            digest = hashlib.file_digest(file, _blake2b).digest()  # the file is at its end now
            if file.tell() != size:
                raise OSError(f"{building}: {file.tell()} bytes were written, not {size}")
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)
