"""Processes of the Ray that a process has started; others may run tests beside it."""

from __future__ import annotations

import psutil

TRIAL = ("ray::SweepTrainable",)
SHARED = ("ray::SharedWorker",)
RANK = ("ray::RankActor",)


def ray_processes(kinds: tuple[str, ...], of: int | None = None) -> list[psutil.Process]:
    """Ray's processes of some kinds below one, which is this one where none is named."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if process.name().startswith(kinds):
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found
