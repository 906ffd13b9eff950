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
from collections.abc import Iterator, Sequence
from pathlib import Path

from tinyattn.errors import StorageError

LONGEST = 107
"""Longest path of a Unix socket, in bytes."""
RAY_SOCKET = "/ray-0000abcdefgh/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path that Ray makes below a session folder."""


def make_own(folder: Path) -> bool:
    """Make a private folder, perhaps where all accounts may write; return whether it is private.

    It must be: compiled code in it is executed, and Ray's sockets give access to its processes.
    `files.private.make_private` is for places that this account has chosen, as its folder of runs,
    which with a umask of 002 its group may write to; here such a place is passed over.
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

    Ray makes its files and sockets accessible to all accounts, and removes none. So the parent
    folder is private, and sessions of earlier Rays are removed when the next one starts; until then
    their logs can be read. Machines may share the parent folder without seeing each other's locks,
    so each machine removes only its own sessions.

    Raises:
        StorageError: there is no private folder, or it cannot be locked.
    """
    above, mine = first_private(private_places()), f"ray-{_host()}"
    with _locked(above):  # else another process could remove the new folder before it is locked
        for left in above.glob(f"{mine}*"):
            with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_NB):
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=mine, dir=above))
        in_use = contextlib.ExitStack()
        in_use.enter_context(_locked(folder))
    with in_use:
        yield folder


def _host() -> str:
    """Return four hex digits for this machine: its name may be too long for a socket's path."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def first_private(places: Sequence[Path]) -> Path:
    """Return the first of these folders that is private and short enough for Ray's sockets.

    Raises:
        StorageError: none is.
    """
    most = LONGEST - len(RAY_SOCKET)
    for place in places:
        if len(os.fsencode(place)) <= most and make_own(place):
            return place
    raise StorageError(
        f"no folder for Ray's sockets is this account's alone and has a path of at most {most} "
        f"bytes: tried {', '.join(map(str, places))}; set TMPDIR to a folder of your own with "
        "a short path"
    )


def private_places() -> list[Path]:
    """Return the folders that may be private to this account, in the order they are tried."""
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
