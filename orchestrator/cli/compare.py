"""The verb `compare`: which small method is best for a task, at equal parameters and equal care."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console

from orchestrator.cli.common import (
    Places,
    capacity_of,
    echo,
    import_option,
    imported,
    next_command,
    place_options,
    ray_of,
    workspace_of,
)
from tinyattn.collector import imports_uncollected
from tinyattn.config import parse_overrides
from tinyattn.errors import UsageError

if TYPE_CHECKING:  # these take seconds to import
    from orchestrator.comparison.methods import Sized
    from orchestrator.comparison.run import Searching, Wanted
    from orchestrator.comparison.steps import Wish
    from orchestrator.comparison.suite import Budget
    from orchestrator.comparison.units import Looked
    from orchestrator.state.workspace import Workspace


@click.command()
@click.argument("task")
@click.argument("overrides", nargs=-1)
@click.option("--plm", default="minilm", show_default=True, help="Name or folder of the PLM.")
@click.option(
    "--methods",
    default="tiny,lora,bottleneck,ia3,ln,classifier",
    show_default=True,
    help="What is compared, by commas: names, and YAML files of methods.",
)
@click.option(
    "--params", type=click.IntRange(1), help="Parameters of each, without the classifier; 4 H L."
)
@click.option("--trials", type=click.IntRange(1), help="Of each, in all its searches; 9 without.")
@click.option(
    "--searches",
    type=click.IntRange(1),
    help="Times that each is tuned anew; 3, or 4 from 16 trials.",
)
@click.option("--name", help="Name of the comparison; `compare-TASK` without.")
@click.option(
    "--detect",
    type=click.FloatRange(0, min_open=True),
    metavar="POINTS",
    help="Search on until this difference is shown, or cannot be; 3 to 6 searches of each.",
)
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    help="Hours that trials may take: as many searches as fit.",
)
@click.option("--plan", "planned", is_flag=True, help="Say what it takes; start nothing.")
@import_option
@place_options
def compare(
    task: str,
    overrides: tuple[str, ...],
    plm: str,
    methods: str,
    params: int | None,
    trials: int | None,
    searches: int | None,
    name: str | None,
    detect: float | None,
    hours: float | None,
    planned: bool,
    places: Places,
) -> None:
    """Compare small methods on a task: equal parameters, each tuned several times.

    The same command goes on where it was interrupted; more --searches are added to those that there
    are, and more --methods join. Overrides are for all methods alike: epochs=2 max_train_rows=2000
    """
    chosen = parse_overrides(overrides)
    with imports_uncollected():
        from orchestrator.comparison.methods import one_head_size, sized_methods
        from orchestrator.comparison.run import Searching, Wanted, budgets_of
        from orchestrator.comparison.steps import Wish
        from orchestrator.comparison.suite import budget_of, comparison_name

    size = params or one_head_size(plm)
    sized = sized_methods(plm, [word.strip() for word in methods.split(",")], size)
    if len(sized) < 2:
        raise UsageError(
            f"--methods: got {methods} alone; a comparison takes two or more, as in tiny,lora"
        )
    name = name or comparison_name(task)
    _say_sizes(sized, size)
    workspace = workspace_of(places)
    wish = Wish(None if detect is None else detect / 100, hours)
    there = budgets_of(name, workspace).values()
    begun = max(there, key=lambda one: one.searches, default=None)
    budget = budget_of(trials, searches, begun, in_steps=wish.is_set)
    words = [task, *overrides, "--methods", methods, "--plm", plm, "--name", name]
    words += ["--trials", str(budget.total)]
    words += [] if wish.is_set else ["--searches", str(budget.searches)]
    words += ["--params", str(params)] if params else []
    words += ["--detect", f"{detect:g}"] if detect else []
    words += ["--hours", f"{hours:g}"] if hours else []
    words += [word for module in imported() for word in ("--import", module)]
    go_on = shlex.join(["compare", *words])
    wanted = Wanted(name, task, plm, sized, chosen, imported(), go_on)
    echo(
        f"{budget.searches} searches of {budget.trials} trials each: {budget.total} trials a "
        f"method, and {budget.searches} runs on fresh seeds"
    )
    if planned or wish.is_set:
        _plan(wanted, budget, wish, workspace, places, planned)
    if planned:
        return
    searching = Searching(wanted, budget.trials, workspace, echo)
    searching.prepare(budget.searches)
    with ray_of(places.on):
        looks = _search(searching, wanted, budget, wish, workspace)
    _show(searching, wanted, size, looks, workspace)


def _say_sizes(sized: Sequence[Sized], size: int) -> None:
    """Print the parameters of each method."""
    width = max(12, *(len(method.name) for method in sized))
    for method in sized:
        share = "a reference" if method.is_reference else f"{method.parameters / size - 1:+.1%}"
        own = f"; a space of its own: {', '.join(method.space)}" if method.space else ""
        more = f" ({method.trained:,} in training)" if method.trained > method.parameters else ""
        echo(f"{method.name:{width}} {method.parameters:>12,} parameters{more}, {share}{own}")


def _plan(
    wanted: Wanted,
    budget: Budget,
    wish: Wish,
    workspace: Workspace,
    places: Places,
    planned: bool,
) -> None:
    """Print what a comparison takes, and refuse what it cannot show or do in its time."""
    from orchestrator.comparison.plan import comparison_plan

    capacity = capacity_of(places.on)
    suite = wanted.suite(budget)
    plan = comparison_plan(suite, budget, len(wanted.references), workspace, capacity)
    if planned:
        echo(str(plan))
    plan.refuse_hopeless(wish)


def _search(
    searching: Searching, wanted: Wanted, budget: Budget, wish: Wish, workspace: Workspace
) -> list[Looked] | None:
    """Search at a stated number of searches, or in steps; return how each pair stands then."""
    from orchestrator.comparison.judging import Units
    from orchestrator.comparison.steps import hours_of_trials, run_in_steps
    from orchestrator.execution.nodes import concurrency

    names = [one.name for one in wanted.methods]
    if not wish.is_set:
        searching.bring(names, budget.searches)
        return None
    at_once = concurrency(wanted.suite(budget).sweeps[0].resources)
    match = [name for name in names if name not in wanted.references]
    return run_in_steps(
        wish,
        names,
        match,
        searching.bring,
        Units(workspace, echo),
        hours_of_trials(workspace, at_once),
        echo,
    )


def _show(
    searching: Searching,
    wanted: Wanted,
    size: int,
    looks: list[Looked] | None,
    workspace: Workspace,
) -> None:
    """Judge, print the table and what it shows, and keep and publish the page."""
    from orchestrator.comparison.judging import Units, judge
    from orchestrator.comparison.page import keep, publish
    from orchestrator.comparison.table import render
    from orchestrator.state.suite_definition import note_command

    name, sweeps = wanted.name, searching.sweeps()
    found = judge(sweeps, wanted.references, Units(workspace, echo), workspace, looks)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for part in render(found, size):
        console.print(part)
    files = keep(found, name, size, workspace.path_of(name))
    echo(f"kept: {files[0]}, and {', '.join(file.name for file in files[1:])} beside it")
    publish(found, name, size, files, workspace.tracker())
    note_command(workspace, name, wanted.go_on, is_judged=True)
    echo(f"next: {next_command(f'tinyattn report {name}')}")
