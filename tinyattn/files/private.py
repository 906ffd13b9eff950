"""Files and folders of this account alone, such as those of tokens and passwords."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_own(folder: Path) -> bool:
    """Make a private folder, perhaps where all accounts may write; return whether it is private.

    It must be: compiled code in it is executed, and Ray's sockets give access to its processes.
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


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can ever read, in place of any other."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
