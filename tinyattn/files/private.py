"""Files and folders of this account alone, such as those of tokens and passwords."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder that only this account can enter, or close its own folder to others.

    Raises:
        OSError: it cannot be made, or is a link, a file or another account's.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder of this account")
    folder.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can ever read, in place of any other.

    It is in UTF-8 whatever the locale; bytes of paths that are none come out as they were.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)
