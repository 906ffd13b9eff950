"""The verb `compare`: which small method is best for a task, at equal parameters and equal care."""

from __future__ import annotations

import shlex
import sys

import click
from rich.console import Console

from orchestrator.cli.common import (
    Places,
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
    places: Places,
) -> None:
    """Compare small methods on a task: equal parameters, each tuned several times.

    The same command goes on where it was interrupted; more --searches are added to those that there
    are, and more --methods join. Overrides are for all methods alike: epochs=2 max_train_rows=2000
    """
    chosen = parse_overrides(overrides)

    with imports_uncollected():
        from orchestrator.comparison.judging import judge
        from orchestrator.comparison.methods import one_head_size, sized_methods
        from orchestrator.comparison.page import keep, publish
        from orchestrator.comparison.peft_results import peft_results
        from orchestrator.comparison.run import (
            begun_budget,
            prepare_comparison,
            search_and_repeat,
        )
        from orchestrator.comparison.suite import budget_of, comparison_name, comparison_suite
        from orchestrator.comparison.table import render
        from orchestrator.state.suite_definition import note_command

    size = params or one_head_size(plm)
    sized = sized_methods(plm, [word.strip() for word in methods.split(",")], size)
    if len(sized) < 2:
        raise UsageError(
            f"--methods: {methods} alone came; a comparison takes two or more, as in tiny,lora"
        )
    name = name or comparison_name(task)
    workspace = workspace_of(places)
    budget = budget_of(trials, searches, begun_budget(name, workspace))
    suite = comparison_suite(name, task, plm, sized, chosen, budget)
    suite = suite.with_imports(imported())
    width = max(12, *(len(method.name) for method in sized))
    for method in sized:
        share = "a reference" if method.is_reference else f"{method.parameters / size - 1:+.1%}"
        own = f"; a space of its own: {', '.join(method.space)}" if method.space else ""
        more = f" ({method.trained:,} in training)" if method.trained > method.parameters else ""
        echo(f"{method.name:{width}} {method.parameters:>12,} parameters{more}, {share}{own}")
    echo(
        f"{budget.searches} searches of {budget.trials} trials each: {budget.total} trials a "
        f"method, and {budget.searches} runs on fresh seeds"
    )
    words = [task, *overrides, "--methods", methods, "--plm", plm, "--name", name]
    words += [
        "--searches",
        str(budget.searches),
        "--trials",
        str(budget.total),
        *(["--params", str(params)] if params else []),
    ]
    words += [word for module in imported() for word in ("--import", module)]
    go_on = shlex.join(["compare", *words])
    prepared = prepare_comparison(suite, workspace)
    with ray_of(places.on):
        repeats = search_and_repeat(prepared, workspace, echo, go_on)
    sweeps = {member.name: member.sweep for member in suite.members}
    references = {method.name for method in sized if method.is_reference}
    found = judge(sweeps, repeats, references, workspace, echo, go_on)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for part in render(found, size):
        console.print(part)
    results = peft_results(found, name, sweeps, repeats, workspace)
    files = keep(found, name, size, workspace.path_of(name), results)
    echo(f"kept: {files[0]}, and {files[1].name}, figures and results beside it")
    publish(found, name, size, files, workspace.tracker())
    note_command(workspace, name, go_on, is_judged=True)
    echo(f"next: {next_command(f'tinyattn report {name}')}")
