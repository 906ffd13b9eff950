"""Folders that no other account can enter, and what becomes of those that Rays have left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import own
from tinyattn.errors import StorageError


@pytest.fixture
def places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short temporary folder; a home with a longer path, where sockets cannot be."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("HOME", str(folder / ("h" * 60)))
    monkeypatch.setattr(own, "LONGEST", len(str(folder)) + 107)
    return folder


def test_sessions_lie_in_a_folder_of_this_account_alone(places: Path) -> None:
    with own.session_folder() as sessions:
        (above,) = places.iterdir()
        assert sessions.parent == above
        assert above.stat().st_mode & 0o777 == 0o700
        above.chmod(0o755)  # as by a careless hand: nobody could have changed anything
    with own.session_folder():
        assert above.stat().st_mode & 0o777 == 0o700


def test_what_ended_rays_left_goes_and_what_is_in_use_stays(places: Path) -> None:
    with own.session_folder() as ended:
        (ended / "log").touch()
    assert (ended / "log").exists(), "it can be read until the next one starts"
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]; from cluster import own;"
        "own.LONGEST = 1000; place = own.session_folder(); print(place.__enter__(), flush=True);"
        "sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(places)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert other.stdout is not None
    used = Path(other.stdout.readline().strip())
    assert not ended.exists()
    with own.session_folder():
        assert used.is_dir()
    other.kill()  # as by kill -9 of a driver
    other.communicate()
    with own.session_folder():
        assert not used.exists()


def test_another_machines_sessions_stay_though_their_locks_are_not_seen(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own.fcntl, "flock", lambda *_: None)  # as if each had locks of its own
    with monkeypatch.context() as there:
        there.setattr(own.socket, "gethostname", lambda: "node2." + "x" * 200)
        other = own.session_folder()
        live = other.__enter__()
        (live / "socket").touch()
    with own.session_folder() as mine:
        assert (live / "socket").exists()
    with own.session_folder():
        assert not mine.exists()
    other.__exit__(None, None, None)
    longest = len(own.RAY_SOCKET.split("/")[1])
    assert len(mine.name) == len(live.name) == longest, "the limit of a socket's path counts on it"


def test_a_folder_that_cannot_be_locked_is_one_message(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(own.fcntl, "flock", without_locks)
    with pytest.raises(StorageError, match="No locks available; set TMPDIR to a folder on this"):
        own.session_folder().__enter__()


def refused(places: Path) -> str:
    with pytest.raises(StorageError, match="set TMPDIR to a folder of your own") as error:
        own.first_private([own.temporary_folder()])
    assert str(places) in str(error.value)
    return str(error.value)


def test_a_folder_that_others_can_change_is_not_used(places: Path) -> None:
    folder = own.temporary_folder()
    elsewhere = places / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    refused(places)
    assert list(elsewhere.iterdir()) == []
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    refused(places)
    folder.chmod(0o700)
    places.chmod(0o777)  # others could move it away and put theirs there
    refused(places)
    places.chmod(0o1777)  # as /tmp
    assert own.first_private([folder]) == folder
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        refused(places)


def test_a_long_temporary_folder_leaves_the_sockets_in_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("t" * 60)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert own.first_private(own.private_places()) == Path("/tmp") / f"tinyattn-{os.geteuid()}"
    assert list(long.iterdir()) == []
