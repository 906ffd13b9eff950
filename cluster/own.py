"""Private folders: on this machine's own disk, and closed to all other accounts."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tinyattn.errors import StorageError

LONGEST = 107
"""Longest path of a Unix socket, in bytes."""
_SOCKET = "/ray-0000abcdefgh/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path that Ray makes below a session folder."""


def make_own(folder: Path) -> bool:
    """Make a private folder in a place where all may write; False if others can change it.

    Compiled code that lies there is executed, and Ray's sockets give access to its processes.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True)
    try:
        found, above = folder.lstat(), folder.parent.stat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    may_be_renamed = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
    if not is_own or found.st_mode & 0o022 or may_be_renamed:
        return False
    folder.chmod(0o700)
    return True


def temporary_folder() -> Path:
    """Return the path of this account's folder below the temporary one; it is not verified."""
    return Path(tempfile.gettempdir()) / f"tinyattn-{os.geteuid()}"


@contextlib.contextmanager
def session_folder() -> Iterator[Path]:
    """Yield a folder for the sessions of one Ray, locked until the block ends.

    Ray opens all its files, sockets too, to all accounts, and removes nothing. So the parent folder
    is private, and sessions of earlier Rays are removed when the next one starts; until then their
    logs can be read. Machines may share the parent folder without seeing each other's locks, so
    each machine removes only its own sessions.

    Raises:
        StorageError: there is no private folder, or it cannot be locked.
    """
    above, mine = _shut_folder(), f"ray-{_host()}"
    with _locked(above):  # no other may take a folder for left before it is locked
        for left in above.glob(f"{mine}*"):
            with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_NB):
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=mine, dir=above))
        in_use = contextlib.ExitStack()
        in_use.enter_context(_locked(folder))
    with in_use:
        yield folder


def _host() -> str:
    """Return four letters that stand for this machine: its name may be too long for a socket."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def _shut_folder() -> Path:
    """Return the first private folder whose path is short enough for Ray's sockets."""
    most = LONGEST - len(_SOCKET)
    for place in _places():
        if len(os.fsencode(place)) <= most and make_own(place):
            return place
    raise StorageError(
        f"no folder for Ray's sockets is this account's alone and has a path of at most {most} "
        f"bytes: tried {', '.join(map(str, _places()))}; set TMPDIR to a folder of your own with "
        "a short path"
    )


def _places() -> list[Path]:
    own = temporary_folder()
    return [own, Path("/tmp") / own.name, Path.home() / ".cache" / "tinyattn"]


@contextlib.contextmanager
def _locked(folder: Path, mode: int = 0) -> Iterator[None]:
    """Hold a folder's lock within the block; the system releases it if this process dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | mode)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StorageError(
                f"{folder}: cannot be locked: {error.strerror}; set TMPDIR to a folder on this "
                "machine's own disk"
            ) from None
        yield
    finally:
        os.close(descriptor)
