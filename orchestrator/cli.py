"""The command line: verbs, nothing else.

Exit codes: 0 done, 1 failed, 2 wrong use.
"""

from __future__ import annotations

import json
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from tinyattn.config import TrainConfig, build, parse_overrides, set_dotted
from tinyattn.errors import TinyAttnError, UsageError

# What costs seconds to import (torch, ray, mlflow) is imported by the verb that needs it.


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Group(click.Group):
    """Turns errors into one message and an exit code, warnings into lines, SIGTERM into Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        signal.signal(signal.SIGTERM, _interrupt)
        warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
        try:
            return super().invoke(ctx)
        except TinyAttnError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted; what had finished before is kept", err=True)
            ctx.exit(1)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of a pipe has gone: nothing to say to it
            ctx.exit(0)
        except Exception as error:
            if not type(error).__module__.startswith("mlflow"):  # it takes seconds to import
                raise
            from orchestrator.store import first_line

            message = f"the MLflow store failed: {first_line(error)}; see that it runs, try again"
            click.echo(f"error: {message}", err=True)
            ctx.exit(1)


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
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


def _home(runs: Path | None, tracking_uri: str | None, data: Path | None) -> Any:
    from orchestrator.home import Home

    return Home.find(runs, tracking_uri, data)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tinyattn")
def main() -> None:
    """Sweep tiny-attention adapters over a frozen language model.

    Configuration is given as key=value, as in: optimizer.lr=3e-4 plm=roberta-base
    """


@main.command()
@click.option("--data", type=click.Path(path_type=Path), help="Folder with task files.")
def doctor(data: Path | None) -> None:
    """Say what this machine has, what it lacks, and how to get it."""
    from orchestrator.doctor import examine

    findings = examine(data)
    for finding in findings:
        click.echo(str(finding))
    if any(finding.is_missing for finding in findings):
        sys.exit(1)


@main.command()
@click.argument("overrides", nargs=-1)
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the best adapter.")
@click.option("--resume", is_flag=True, help="Go on with the interrupted training in --output.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder with task files.")
def train(overrides: tuple[str, ...], output: Path | None, resume: bool, data: Path | None) -> None:
    """Train one adapter: tinyattn train task=rte plm=roberta-base optimizer.lr=2e-3"""
    raw: dict[str, Any] = {}
    for key, value in parse_overrides(overrides).items():
        set_dotted(raw, key, value)
    config = build(TrainConfig, raw, "train")

    from orchestrator.solo import train_alone

    train_alone(config, output, resume, data, click.echo)


@main.group()
def sweep() -> None:
    """Check or run a sweep: a short name such as glue/rte, or a YAML file."""


@sweep.command("list")
def list_sweeps() -> None:
    """List the sweeps and suites that ship with the package."""
    import search_spaces

    click.echo("\n".join(search_spaces.names()))
    for name, members in search_spaces.SUITES.items():
        click.echo(f"{name}: {', '.join(members)}")


@sweep.command("check")
@click.argument("name")
@click.argument("overrides", nargs=-1)
@_place_options
def check_sweep(name: str, overrides: tuple[str, ...], **places: Any) -> None:
    """Say what a sweep would do and cost, and what is missing; start nothing."""
    sweeps = _sweeps(name, overrides)

    from orchestrator.plan import plan_of

    complete = True
    for sweep, _ in sweeps:
        plan = plan_of(sweep, _home(**places))
        click.echo(str(plan))
        complete = complete and not (plan.missing or plan.name_taken)
    if not complete:
        sys.exit(1)


@sweep.command("simulate")
@click.argument("name")
@click.argument("overrides", nargs=-1)
@click.option("--nodes", default=1, show_default=True, type=click.IntRange(1, 10_000))
@click.option(
    "--slots",
    default=1,
    show_default=True,
    help="Trials at once on a node.",
    type=click.IntRange(1, 1000),
)
@click.option(
    "--losses",
    default=0,
    show_default=True,
    help="Times that a node is lost.",
    type=click.IntRange(0, 100_000),
)
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    help="From evaluation to evaluation.",
    type=click.FloatRange(0.001),
)
@click.option(
    "--evaluations",
    default=40,
    show_default=True,
    help="Of a whole trial.",
    type=click.IntRange(1, 100_000),
)
@click.option(
    "--rows",
    default=1000,
    show_default=True,
    help="Selection rows: few are noisy.",
    type=click.IntRange(1),
)
@click.option("--like", help="Use the recorded curves of this sweep.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@_place_options
def simulate(
    name: str, overrides: tuple[str, ...], evaluations: int, rows: int, like: str | None,
    nodes: int, slots: int, losses: int, seconds: float, seed: int, **places: Any,
) -> None:  # fmt: skip
    """Replay a sweep on a virtual cluster: schedule, cost and losses, before any GPU is spent."""
    sweeps = _sweeps(name, overrides)

    from orchestrator.curves import Curves, Recorded, Synthetic
    from orchestrator.simulate import VirtualCluster, simulate

    cluster = VirtualCluster(nodes, slots, seconds, losses, seed=seed)
    for sweep, _ in sweeps:
        curves: Curves = Synthetic(sweep.space, evaluations, rows, seed=seed)
        if like is not None:
            curves = Recorded.of_sweep(_home(**places).tracker(), like, sweep.space)
        click.echo(
            f"sweep    {sweep.name}, on {nodes} virtual nodes with {slots} trials at once each\n"
            f"assumed  {evaluations} evaluations a trial, {seconds:g} s apart, "
            + (f"curves of {like}" if like else f"made-up curves with the noise of {rows} rows")
        )
        click.echo(str(simulate(sweep, curves, cluster, evaluations)))


@sweep.command("run")
@click.argument("name")
@click.argument("overrides", nargs=-1)
@_place_options
def run(name: str, overrides: tuple[str, ...], **places: Any) -> None:
    """Run a sweep, or a suite such as glue: a sweep a task."""
    sweeps = _sweeps(name, overrides)

    from cluster.local import this_machine
    from orchestrator.sweep import prepare, run_sweep

    home = _home(**places)
    facts = prepare([sweep for sweep, _ in sweeps], home)
    with this_machine():
        for (sweep, origin), met in zip(sweeps, facts, strict=True):
            run_sweep(sweep, met, home, origin)
    _say_done(home, [sweep.name for sweep, _ in sweeps])


def _say_done(home: Any, names: list[str]) -> None:
    _show_leaderboard(home, names, suite=len(names) > 1)
    for name in names:
        click.echo(f"sweep {name} is done; next: tinyattn finalize {name}")


@sweep.command("resume")
@click.argument("name")
@click.option("--as-it-ran", is_flag=True, help="Also if the sweep's file has changed since.")
@_place_options
def resume(name: str, as_it_ran: bool, **places: Any) -> None:
    """Go on with a sweep, whatever ended it."""
    _go_on(name, {}, as_it_ran, **places)


@sweep.command("extend")
@click.argument("name")
@click.argument("overrides", nargs=-1, required=True)
@click.option("--as-it-ran", is_flag=True, help="Also if the sweep's file has changed since.")
@_place_options
def extend(name: str, overrides: tuple[str, ...], as_it_ran: bool, **places: Any) -> None:
    """Give a sweep more trials, 40 in all: tinyattn sweep extend NAME trials=40"""
    chosen = parse_overrides(overrides)
    trials = chosen.pop("trials", chosen.pop("search.trials", None))
    if chosen or not isinstance(trials, int):
        raise UsageError(
            f"{' '.join(overrides)} came, allowed is the number of trials in all, as in trials=40; "
            "whatever else is to change needs a sweep of its own"
        )
    _go_on(name, {"search.trials": trials}, as_it_ran, **places)


def _go_on(name: str, changes: dict[str, Any], as_it_ran: bool, **places: Any) -> None:
    from cluster.local import this_machine
    from orchestrator.sweep import resumable, resume_sweep

    home = _home(**places)
    definition = resumable(name, home, changes, as_it_ran=as_it_ran)
    with this_machine():
        resume_sweep(definition, home)
    _say_done(home, [name])


@sweep.command("status")
@click.argument("name")
@_place_options
def show_status(name: str, **places: Any) -> None:
    """Say how a sweep stands."""
    from orchestrator.control import status

    click.echo(str(status(_home(**places), name)))


@sweep.command("stop")
@click.argument("name")
@click.option("--trial", help="Only this trial: its number, as in 4.")
@_place_options
def stop(name: str, trial: str | None, **places: Any) -> None:
    """End a sweep that runs on this machine, or one of its trials."""
    from orchestrator import control

    control.stop(_home(**places), name, trial, click.echo)


def _sweeps(name: str, overrides: tuple[str, ...]) -> list[tuple[Any, Any]]:
    """The sweeps of a name with their origins: one, or those of a suite."""
    import search_spaces
    from orchestrator.config import load_sweep

    def load(member: str, chosen: dict[str, Any]) -> tuple[Any, Any]:
        sweep = load_sweep(member, chosen)

        from orchestrator.definition import Origin  # imports torch: after the file's mistakes

        return sweep, Origin(file=member, overrides=chosen)

    chosen = parse_overrides(overrides)
    if name not in search_spaces.SUITES:
        return [load(name, chosen)]
    suite = chosen.pop("name", None)
    sweeps = []
    for member in search_spaces.suite(name):
        task = member.rsplit("/", 1)[-1]
        named = {} if suite is None else {"name": f"{suite}-{task}"}
        sweeps.append(load(member, {**chosen, **named}))
    return sweeps


@main.command()
@click.argument("task", required=False)
@click.option("--sweep", "sweep_name", help="Only this sweep.")
@click.option("--suite", is_flag=True, help="Best of each GLUE task and their average.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV instead of a table.")
@_place_options
def leaderboard(
    task: str | None,
    sweep_name: str | None,
    suite: bool,
    as_json: bool,
    as_csv: bool,
    **places: Any,
) -> None:
    """Rank the trials of a task, a sweep, or everything."""
    from orchestrator import leaderboard as board

    home = _home(**places)
    sweeps = [sweep_name] if sweep_name else []
    if not (as_json or as_csv):
        _show_leaderboard(home, sweeps, task, suite)
        return
    rows = board.leaderboard(home.tracker(), task, sweeps)
    click.echo(board.to_json(rows) if as_json else board.to_csv(rows), nl=as_json)


def _show_leaderboard(
    home: Any, sweeps: list[str], task: str | None = None, suite: bool = False
) -> None:
    from orchestrator import leaderboard as board

    rows = board.leaderboard(home.tracker(), task, sweeps)
    if not rows:
        raise UsageError(f"the store {home.place} has no such trials; run a sweep first")
    console = Console(width=None if sys.stdout.isatty() else 140)
    if not suite:
        console.print(board.render(rows, " ".join(sweeps) or task or "Leaderboard"))
        return
    suites = board.suites(rows)
    if not suites:
        raise UsageError(f"the store {home.place} has no ranked trial of a GLUE task")
    for found in suites:
        console.print(board.render_suite(found))


@main.command()
@click.argument("name")
@click.argument("overrides", nargs=-1)
@_place_options
def finalize(name: str, overrides: tuple[str, ...], **places: Any) -> None:
    """Re-run a sweep's best on fresh seeds, grow heads, collapse them, and choose the winner.

    Overrides change the sweep's finalize section: finalize.finalists=2 finalize.heads=8
    """
    from cluster.local import this_machine
    from orchestrator.finalizer import finalize as run_finalizer
    from orchestrator.sweep import sweep_as_it_ran
    from orchestrator.verdict import render

    home = _home(**places)
    sweep = sweep_as_it_ran(home.tracker(), name, parse_overrides(overrides))
    with this_machine():
        verdict = run_finalizer(sweep, home)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for part in render(verdict):
        console.print(part)
    click.echo(f"next: tinyattn promote {name}")


@main.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Move the alias whatever the test says.")
@_place_options
def promote(name: str, force: bool, **places: Any) -> None:
    """Register the winner of a sweep (or a run, by id) and make it champion if it is better."""
    from orchestrator.promotion import promote_adapter

    promotion = promote_adapter(_home(**places), name, force)
    state = "is the champion" if promotion.moved else "is registered; the alias did not move"
    click.echo(f"{promotion.model} version {promotion.version} {state}: {promotion.reason}")


@main.command()
@click.argument("task")
@click.option("--plm", help="PLM, where several have a champion of this task.")
@_place_options
def rollback(task: str, plm: str | None, **places: Any) -> None:
    """Give the alias champion back to the version that had it before."""
    from orchestrator import champions

    store = _home(**places).tracker()
    model = champions.champion(store, task, plm).model
    now = champions.rollback(store, model)
    click.echo(f"{now.model} version {now.version} is the champion again")


@main.command()
@click.argument("task")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--plm", help="PLM, where several have a champion of this task.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="JSONL file; else stdout.")
@_place_options
def predict(task: str, file: Path, plm: str | None, output: Path | None, **places: Any) -> None:
    """Use a task's champion on a JSONL, CSV or parquet file; write JSONL with probabilities."""
    from orchestrator.promotion import predict_file
    from tinyattn.checkpoint import write_text

    answers, truncated = predict_file(_home(**places), task, plm, file)
    text = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
    if truncated:
        click.echo(
            f"note: {truncated} rows were longer than the model reads and were cut", err=True
        )
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
        click.echo(f"{len(answers)} predictions are in {output}", err=True)


@main.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder; runs/sweeps/NAME.")
@_place_options
def report(name: str, output: Path | None, **places: Any) -> None:
    """Write a sweep's report: one HTML file, its figures as PNG, both also in MLflow."""
    from orchestrator.report import write_report

    home = _home(**places)
    tracker = home.tracker()
    tracker.find_sweep(name)  # a wrong name must not get a folder
    folder = output or home.sweep_folder(name) / "report"
    click.echo(f"the report is {write_report(tracker, name, folder)}")


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5000, show_default=True, type=int)
@_place_options
def ui(host: str, port: int, **places: Any) -> None:
    """Serve MLflow's web pages on the sweeps' store."""
    from orchestrator.ui import serve

    serve(_home(**places), host, port, click.echo)


if __name__ == "__main__":
    main()
