"""Folders of this account on this machine's own disk, which no other account can enter."""

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
"""Bytes of a path that a Unix socket can have."""
_SOCKET = "/ray-0000abcdefgh/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path of Ray's below such a folder."""


def make_own(folder: Path) -> bool:
    """Make a folder in a place where all may write; False: others can change what is in it.

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
    """This account's folder below the temporary folder; whether it is its own is not known."""
    return Path(tempfile.gettempdir()) / f"tinyattn-{os.geteuid()}"


@contextlib.contextmanager
def session_folder() -> Iterator[Path]:
    """A folder for the sessions of one Ray; it is in use until the block ends.

    Ray opens whatever it makes to all accounts, its sockets too, and removes nothing. The folder
    above keeps others out, and what earlier Rays have left there goes when the next one starts:
    until then their logs can be read. Other machines may share the folder above, and their locks
    may not be seen here: each removes its own sessions alone.

    Raises:
        StorageError: there is no place for it, or none that can be locked.
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
    """Four letters that stand for this machine, as its name may be too long for a socket's path."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def _shut_folder() -> Path:
    """The first place for sessions that is this account's alone and has a short enough path."""
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
    """Hold the lock of a folder, which the system lets go of when this process dies."""
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
