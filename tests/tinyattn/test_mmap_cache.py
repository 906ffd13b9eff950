"""Files that the processes of a machine map together: room for them, and what is left of them."""

from __future__ import annotations

import os
from pathlib import Path

import filelock
import pytest

from tinyattn.files import mmap_cache


def test_the_longest_unused_make_room(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for age, name in enumerate(("new", "old", "oldest")):
        (folder / f"{name}.bin").write_bytes(b"x" * 100)
        os.utime(folder / f"{name}.bin", (1000 - age, 1000 - age))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mmap_cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 900}))
        # 900 free and 300 taken: these files may take 300 in all.
        assert mmap_cache._make_room(folder, 150)
        assert [file.name for file in folder.iterdir()] == ["new.bin"]
        assert not mmap_cache._make_room(folder, 251)
    assert [file.name for file in folder.iterdir()] == ["new.bin"]


def test_what_a_killed_process_left_is_removed_unless_it_lives(tmp_path: Path) -> None:
    for name in ("dead", "alive"):
        (tmp_path / f"{name}.building").write_bytes(b"x")
    with filelock.FileLock(tmp_path / "alive.bin.lock"):
        assert mmap_cache._make_room(tmp_path, 1)
    assert [file.name for file in tmp_path.glob("*.building")] == ["alive.building"]


def test_what_main_memory_cannot_hold_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = type("Memory", (), {"available": 400})
    monkeypatch.setattr(mmap_cache.psutil, "virtual_memory", lambda: memory)
    assert mmap_cache._make_room(tmp_path, 100)
    assert not mmap_cache._make_room(tmp_path, 101)
