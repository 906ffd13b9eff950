"""The services that a node's agent keeps."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from cluster.node import Kept
from cluster.services import Service


def number_in(file: Path) -> int:
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(file.read_text())


def runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_ends(number: int) -> None:
    deadline = time.monotonic() + 5
    while runs(number):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_service_starts_while_it_ends_ends_too(tmp_path: Path) -> None:
    """As a raylet may start a worker when it has been told to end."""
    ready, late = tmp_path / "ready", tmp_path / "late"
    script = (
        f"trap 'sleep 300 & echo $! > {late}; exit' TERM\n"
        f"echo $$ > {ready}\n"
        "while :; do sleep 0.05; done\n"
    )
    kept = Kept(Service("Ray", ["sh", "-c", script]))
    kept.look_after()
    number_in(ready)
    kept.end()
    orphan = number_in(late)
    assert_ends(orphan)


def test_what_a_service_leaves_when_it_dies_does_not_stand_in_the_next_ones_way(
    tmp_path: Path,
) -> None:
    """As MLflow's server processes hold its port when the first one was killed for its memory."""
    left = tmp_path / "left"
    kept = Kept(Service("MLflow", ["sh", "-c", f"sleep 300 & echo $! > {left}; kill -9 $$"]))
    kept.look_after()
    orphan = number_in(left)
    deadline = time.monotonic() + 20
    while not kept.is_failing:
        assert time.monotonic() < deadline
        kept.look_after()
    assert_ends(orphan)
    kept.end()
