"""Verbs on what sweeps left: rank, finalize, promote, use, look."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from orchestrator.cli.common import (
    echo,
    home_of,
    next_command,
    place_options,
    ray_of,
    show_leaderboard,
)
from tinyattn.config import parse_overrides


@click.command()
@click.argument("task", required=False)
@click.option("--sweep", "sweep_name", help="Only this sweep.")
@click.option("--top", type=click.IntRange(1), help="Rows of each task; else about a page.")
@click.option("--suite", is_flag=True, help="Best of each GLUE task and their average.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV instead of a table.")
@place_options
def leaderboard(
    task: str | None,
    sweep_name: str | None,
    top: int | None,
    suite: bool,
    as_json: bool,
    as_csv: bool,
    **places: Any,
) -> None:
    """Rank the trials of a task, a sweep, or everything."""
    from orchestrator import leaderboard as board

    home = home_of(**places)
    sweeps = [sweep_name] if sweep_name else []
    if not (as_json or as_csv):
        show_leaderboard(home, sweeps, task, suite, top)
        return
    rows = board.leaderboard(home.store(), task, sweeps)
    if top is not None:
        rows = board.top(rows, top)
    click.echo(board.to_json(rows) if as_json else board.to_csv(rows), nl=as_json)


@click.command()
@click.argument("name")
@click.argument("overrides", nargs=-1)
@place_options
def finalize(name: str, overrides: tuple[str, ...], **places: Any) -> None:
    """Re-run a sweep's best on fresh seeds, grow heads, collapse them, and choose the winner.

    Overrides change the sweep's finalize section: finalize.finalists=2 finalize.heads=8
    """
    from orchestrator.finalizer import finalize as run_finalizer
    from orchestrator.sweep import sweep_as_it_ran
    from orchestrator.verdict import render

    home = home_of(**places)
    sweep = sweep_as_it_ran(home.tracker(), name, parse_overrides(overrides))
    with ray_of(places["on"]):
        verdict = run_finalizer(sweep, home, echo)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for part in render(verdict):
        console.print(part)
    echo(f"next: {next_command(f'tinyattn promote {name}')}")


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Move the alias whatever the test says.")
@place_options
def promote(name: str, force: bool, **places: Any) -> None:
    """Register the winner of a sweep (or a run, by id) and make it champion if it is better."""
    from orchestrator.promotion import promote_adapter
    from orchestrator.registry import is_finalized
    from orchestrator.reign import budget_words

    home = home_of(**places)
    promotion = promote_adapter(home, name, force, echo)
    state = "is the champion" if promotion.moved else "is registered; the alias did not move"
    click.echo(f"{promotion.model} version {promotion.version} {state}: {promotion.reason}")
    if promotion.challenge is not None:
        click.echo(budget_words(promotion.challenge, promotion.moved))
    if not is_finalized(home.store(), name):
        click.echo(
            "note: the best of many trials is partly luck, and no fresh seeds have tried this one: "
            + next_command(f"tinyattn finalize {name}")
        )


@click.command()
@click.argument("task")
@click.option("--plm", help="PLM, where several have a champion of this task.")
@place_options
def rollback(task: str, plm: str | None, **places: Any) -> None:
    """Give the alias champion back to the version that had it before."""
    from orchestrator import champions

    store = home_of(**places).tracker()
    model = champions.champion(store, task, plm).model
    now = champions.rollback(store, model)
    click.echo(f"{now.model} version {now.version} is the champion again")


@click.command()
@click.argument("task")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--plm", help="PLM, where several have a champion; for folders: where their PLM is.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="JSONL file; or -: stdout.")
@place_options
def predict(task: str, file: Path, plm: str | None, output: Path | None, **places: Any) -> None:
    """Use a task's champion on a JSONL, CSV or parquet file; write JSONL with probabilities.

    TASK may be several, as in sst2,cola: then each row names its own in a column `adapter`, and
    rows of all go through the PLM together. Any of them may be an adapter's folder, as `train`
    leaves it.
    """
    from orchestrator.promotion import predict_file, predict_mixed
    from tinyattn.atomic import refuse_folder, write_output

    prints = output is None or str(output) == "-"
    if output is not None and not prints:
        refuse_folder(output)
    home, truncated = home_of(**places), 0
    if "," in task:
        answers = predict_mixed(home, [name.strip() for name in task.split(",")], plm, file)
    else:
        answers, truncated = predict_file(home, task, plm, file)
    text = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
    if truncated:
        click.echo(
            f"note: {truncated} rows were longer than the model reads and were cut", err=True
        )
    if output is None or prints:
        click.echo(text, nl=False)
    else:
        write_output(output, text)
        click.echo(f"{len(answers)} predictions are in {output}", err=True)


@click.command()
@click.argument("name")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder; runs/sweeps/NAME/report."
)
@place_options
def report(name: str, output: Path | None, **places: Any) -> None:
    """Write a sweep's report: one HTML file, its figures as PNG, both also in MLflow where that
    may be written."""
    from orchestrator.report import write_report

    home = home_of(**places)
    store = home.tracker() if home.may_be_written() else home.store()
    store.find_sweep(name)  # a wrong name must not get a folder
    folder = output or home.sweep_folder(name) / "report"
    click.echo(f"the report is {write_report(store, name, folder)}")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5000, show_default=True, type=int)
@place_options
def ui(host: str, port: int, **places: Any) -> None:
    """Serve MLflow's web pages on the sweeps' store."""
    from orchestrator.ui import serve

    serve(home_of(**places), host, port, click.echo)


VERBS = (leaderboard, finalize, promote, rollback, predict, report, ui)
