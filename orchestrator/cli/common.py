"""What verbs share: options of place, the leaderboard's table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tinyattn.errors import UsageError, did_you_mean


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of all verbs that read or write sweeps."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--data", type=path, help="Folder with task files. [env: TINYATTN_DATA]"),
        click.option("--tracking-uri", help="MLflow store. [env: MLFLOW_TRACKING_URI]"),
        click.option(
            "--runs", type=path, help="Where sweeps are kept; ./runs. [env: TINYATTN_RUNS]"
        ),
    ):
        command = option(command)
    return command


def home_of(runs: Path | None, tracking_uri: str | None, data: Path | None) -> Any:
    from orchestrator.home import Home

    return Home.find(runs, tracking_uri, data)


def show_leaderboard(
    home: Any, sweeps: list[str], task: str | None = None, suite: bool = False
) -> None:
    from orchestrator import leaderboard as board

    store = home.tracker()
    rows = board.leaderboard(store, task, sweeps)
    if not rows:
        tasks = {sweep.task for sweep in store.sweeps()}
        raise UsageError(
            f"the store {home.place} has no trials of {task or 'any task'}"
            f"{did_you_mean(task or '', tasks)}; it has sweeps of: {', '.join(sorted(tasks))}"
            if tasks
            else f"the store {home.place} has no trials; run a sweep first"
        )
    console = Console(width=None if sys.stdout.isatty() else 140)
    if not suite:
        console.print(board.render(rows, " ".join(sweeps) or task or "Leaderboard"))
        return
    suites = board.suites(rows)
    if not suites:
        raise UsageError(f"the store {home.place} has no ranked trial of a GLUE task")
    for found in suites:
        console.print(board.render_suite(found))
