"""Sweeps through the real command line, in processes of their own where they are to be killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner, Result

from orchestrator.cli import main

TRIALS = 6


def sweep_words(tiny: str, runs: Path, **more: object) -> list[str]:
    settings = {
        "plm": tiny, "name": "s", "max_length": 32, "max_train_rows": 400, "batch_size": 16,
        "epochs": 6, "search.trials": TRIALS, "asha.grace": 2, "search.sampler": "random",
    } | more  # fmt: skip
    words = [f"{key}={value}" for key, value in settings.items()]
    return ["sweep", "run", "agreement", *words, "--runs", str(runs)]


def start(*words: object, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "orchestrator.cli", *map(str, words)]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)


def call(*words: object) -> Result:
    """The command line within this process, which has imported already what takes seconds."""
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


def lines_of(runs: Path) -> int:
    event_log = runs / "sweeps" / "s" / "search.jsonl"
    return event_log.read_bytes().count(b"\n") if event_log.exists() else 0


def wait_for(condition: object, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
