"""Verbs on sweeps: list, check, simulate, run, resume, extend, status, stop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import (
    Places,
    Verb,
    capacity_of,
    cluster_of,
    echo,
    import_option,
    imported,
    next_command,
    place_options,
    ray_of,
    show_leaderboard,
    show_pages,
    workspace_of,
)
from tinyattn.collector import imports_uncollected
from tinyattn.config import parse_overrides
from tinyattn.errors import UsageError

if TYPE_CHECKING:  # these take seconds to import
    from orchestrator.spec.config import Sweep
    from orchestrator.spec.values import Json
    from orchestrator.state.definition import Origin
    from orchestrator.state.workspace import Workspace


@click.group()
def sweep() -> None:
    """Check or run a sweep: a short name such as glue/rte, or a YAML file."""


@sweep.command("list")
def list_sweeps() -> None:
    """List the sweeps and suites that ship with the package, a line each."""
    import search_spaces
    from orchestrator.spec.config import load_sweep

    for name in search_spaces.names():
        sweep = load_sweep(name, {})
        click.echo(
            f"{name:20}  {sweep.train.task} on {sweep.train.plm}, {sweep.search.trials} trials by "
            f"{sweep.search.sampler}: {', '.join(key.rpartition('.')[2] for key in sweep.space)}"
        )
    for name, members in search_spaces.SUITES.items():
        click.echo(f"{name:20}  suite of {', '.join(members)}")


@sweep.command("check")
@click.argument("name")
@click.argument("overrides", nargs=-1)
@import_option
@place_options
def check_sweep(name: str, overrides: tuple[str, ...], places: Places) -> None:
    """Say what a sweep would do and cost, and what is missing; start nothing."""
    sweeps = _sweeps(name, overrides)

    with imports_uncollected():
        from orchestrator.planning.plan import duration, plan_of

    workspace, capacity = workspace_of(places), capacity_of(places.on)
    plans = [plan_of(sweep, workspace, capacity) for sweep, _ in sweeps]
    echo("\n\n".join(map(str, plans)))
    hours = sum(plan.hours_there or 0 for plan in plans)
    if capacity is not None and hours and len(plans) > 1:
        click.echo(f"\nall {len(plans)} sweeps: {duration(hours)} on {capacity.name}")
    if any(plan.missing or plan.name_taken or plan.lacking for plan in plans):
        sys.exit(1)


def _number(flag: str, default: float, most: int, text: str) -> Callable[[Verb], Verb]:
    """Return an option for a positive number of at most `most`."""
    kind = click.IntRange if isinstance(default, int) else click.FloatRange
    least = 0 if default == 0 else 1
    return click.option(flag, default=default, show_default=True, type=kind(least, most), help=text)


@sweep.command("simulate")
@click.argument("name")
@click.argument("overrides", nargs=-1)
@_number("--nodes", 1, 10_000, "Virtual machines.")
@_number("--slots", 1, 1000, "Trials at once on a node.")
@_number("--losses", 0, 100_000, "Times that a node is lost.")
@_number("--seconds", 60.0, 10**9, "From evaluation to evaluation.")
@_number("--rows", 1000, 10**9, "Selection rows: few are noisy.")
@click.option("--like", help="Use the recorded curves of this sweep.")
@import_option
@place_options
def simulate(
    name: str, overrides: tuple[str, ...], nodes: int, slots: int, losses: int, seconds: float,
    rows: int, like: str | None, places: Places,
) -> None:  # fmt: skip
    """Replay a sweep on a virtual cluster: schedule, cost and losses, before any GPU is spent."""
    sweeps = _sweeps(name, overrides)

    from orchestrator.planning.curves import Curves, Recorded, Synthetic
    from orchestrator.planning.plan import assumed_rows
    from orchestrator.planning.preflight import max_evaluations
    from orchestrator.planning.simulation import VirtualCluster, simulate

    cluster = VirtualCluster(nodes, slots, seconds, losses)
    for sweep, _ in sweeps:
        evaluations = max_evaluations(sweep, assumed_rows(sweep))
        curves: Curves = Synthetic(sweep.space, evaluations, rows, seed=sweep.search.seed)
        if like is not None:
            curves = Recorded.of_sweep(workspace_of(places).store(), like, sweep.space)
        click.echo(
            f"sweep    {sweep.name}, on {nodes} virtual nodes with {slots} trials at once each\n"
            f"assumed  {evaluations} evaluations a trial, {seconds:g} s apart, "
            + (f"curves of {like}" if like else f"made-up curves with the noise of {rows} rows")
        )
        click.echo(str(simulate(sweep, curves, cluster, evaluations)))


@sweep.command("run")
@click.argument("name")
@click.argument("overrides", nargs=-1)
@import_option
@place_options
def run(name: str, overrides: tuple[str, ...], places: Places) -> None:
    """Run a sweep, or a suite such as glue: one sweep for each task."""
    sweeps = _sweeps(name, overrides)

    with imports_uncollected():
        from orchestrator.planning.cores import Cores
        from orchestrator.planning.remarks import remarks
        from orchestrator.sweep import prepare, run_sweep

    workspace = workspace_of(places)
    facts = prepare([sweep for sweep, _ in sweeps], workspace)
    if cluster_of(places.on) is None and (slow := Cores().slow_bf16(sweeps[0][0])):
        echo(f"note: {slow}")
    for (sweep, _), met in zip(sweeps, facts, strict=True):
        for remark in remarks(sweep, met.fewest_rows, met.absent_labels):
            echo(f"note: {remark}")
    with ray_of(places.on):
        for (sweep, origin), met in zip(sweeps, facts, strict=True):
            run_sweep(sweep, met, workspace, origin)
    _say_done(workspace, [sweep.name for sweep, _ in sweeps])


def _say_done(workspace: Workspace, names: list[str]) -> None:
    show_leaderboard(workspace, names, suite=len(names) > 1)
    show_pages(workspace, names)
    for name in names:
        echo(f"sweep {name} is done; next: {next_command(f'tinyattn finalize {name}')}")


@sweep.command("resume")
@click.argument("name")
@click.option("--as-it-ran", is_flag=True, help="Also if the sweep's file has changed since.")
@place_options
def resume(name: str, as_it_ran: bool, places: Places) -> None:
    """Resume a sweep, whatever ended it."""
    _go_on(name, {}, as_it_ran, places)


@sweep.command("extend")
@click.argument("name")
@click.argument("overrides", nargs=-1, required=True)
@click.option("--as-it-ran", is_flag=True, help="Also if the sweep's file has changed since.")
@place_options
def extend(name: str, overrides: tuple[str, ...], as_it_ran: bool, places: Places) -> None:
    """Add trials to a sweep: `tinyattn sweep extend NAME trials=40` makes them 40 in all."""
    for word in overrides:
        if "=" not in word:
            number = word if word.isdecimal() else "40"
            raise UsageError(
                f"{word!r} came, allowed is the number of trials in all: type "
                f"`tinyattn sweep extend {name} trials={number}`"
            )
    chosen = parse_overrides(overrides)
    trials = chosen.pop("trials", chosen.pop("search.trials", None))
    if chosen or not isinstance(trials, int):
        raise UsageError(
            f"{' '.join(overrides)} came, allowed is the number of trials in all, as in trials=40; "
            "whatever else is to change needs a sweep of its own"
        )
    _go_on(name, {"search.trials": trials}, as_it_ran, places)


def _go_on(name: str, changes: dict[str, int], as_it_ran: bool, places: Places) -> None:
    with imports_uncollected():
        from orchestrator.sweep import resumable, resume_sweep

    workspace = workspace_of(places)
    workspace.require_writable(name)
    definition = resumable(name, workspace, changes, as_it_ran=as_it_ran)
    with ray_of(places.on):
        resume_sweep(definition, workspace, echo)
    _say_done(workspace, [name])


@sweep.command("status")
@click.argument("name", required=False)
@place_options
def show_status(name: str | None, places: Places) -> None:
    """Show the status of a sweep; without a name a line for each sweep of the store."""
    from orchestrator.reporting.status import status, statuses

    workspace = workspace_of(places)
    if name is not None:
        echo(str(status(workspace, name)))
        return
    for line in statuses(workspace) or [f"the store {workspace.place} has no sweep yet"]:
        echo(line)


@sweep.command("stop")
@click.argument("name")
@click.option("--trial", help="Only this trial: its name, or its number, as in 4.")
@place_options
def stop(name: str, trial: str | None, places: Places) -> None:
    """End a sweep that runs on this machine, or one of its trials."""
    from orchestrator.state.requests import request_stop

    request_stop(workspace_of(places), name, trial, echo)


def _sweeps(name: str, overrides: tuple[str, ...]) -> list[tuple[Sweep, Origin]]:
    """Return the sweep of a name, or the sweeps of a suite, with their origins."""
    import search_spaces
    from orchestrator.spec.config import load_sweep

    def load(member: str, chosen: dict[str, Json]) -> tuple[Sweep, Origin]:
        sweep = load_sweep(member, chosen).with_imports(imported())

        from orchestrator.state.definition import Origin  # imports torch: after the file's mistakes

        path = Path(member)
        file = str(path.absolute()) if path.is_file() else member
        return sweep, Origin(file=file, overrides=chosen)

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
