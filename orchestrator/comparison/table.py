"""What a comparison prints and keeps: a table, a sentence on what it shows, JSON, and a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from orchestrator.comparison.judging import LEVEL, Comparison, Judged
from orchestrator.comparison.methods import REFERENCES
from tinyattn.files.atomic import write_text

HEAD = ("method", "parameters", "of wanted", "score", "± seeds", "selection", "time", "a row")


def render(found: Comparison, params: int) -> list[Table | str]:
    """Return what `tinyattn compare` prints.

    Args:
        found: the comparison.
        params: the wanted number of parameters.
    """
    title = f"{found.metric} on {found.rows:,} {found.judges} rows"
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False)
    for name in HEAD:
        table.add_column(name, justify="left" if name == "method" else "right")
    match = [one for one in found.methods if one.name not in REFERENCES]
    for one in sorted(match, key=lambda one: -one.mean):
        table.add_row(*_cells(one, params))
    references = [one for one in found.methods if one.name in REFERENCES]
    if references:
        table.add_section()
    for one in sorted(references, key=lambda one: -one.mean):
        table.add_row(*_cells(one, None))
    return [table, *sentences(found)]


def _cells(one: Judged, params: int | None) -> list[str]:
    share = "reference" if params is None else f"{one.parameters / params - 1:+.1%}"
    select = sum(one.select) / len(one.select)
    return [
        one.name,
        f"{one.parameters:,}",
        share,
        f"{100 * one.mean:.2f}",
        "–" if math.isnan(one.std) else f"{100 * one.std:.2f}",
        f"{100 * select:.2f}",
        f"{one.seconds:,.0f} s",
        f"{1000 * one.row_seconds:.2f} ms",
    ]


def sentences(found: Comparison) -> Iterator[str]:
    """Yield what the tests show, in plain words."""
    match = [one for one in found.methods if one.name not in REFERENCES]
    if len(match) < 2:
        return
    seeds = len(match[0].seeds)
    if found.left_out:
        named = ", ".join(map(str, found.left_out))
        yield f"note: seeds {named} did not complete for all methods and are left out of all."
    if found.judges == "selection":
        yield (
            "note: the rows that judge also chose each method's settings and evaluation: what "
            "leads on them is no evidence for other rows; protocol=heldout has rows for that."
        )
    if seeds < 2:
        yield "note: one seed says nothing of others; p is for these trained adapters alone."
    yield (
        f"{found.rows:,} rows and {seeds} seeds show a difference of about "
        f"{100 * found.shows:.1f} points or more; smaller ones are mostly missed."
    )
    judging = found.judges != "selection"
    shown = [pair for pair in found.pairs if judging and pair.corrected < LEVEL]
    for pair in sorted(shown, key=lambda pair: pair.corrected):
        yield (
            f"{pair.better} is better than {pair.worse} by {100 * pair.lead:.2f} points "
            f"(p = {pair.corrected:.3g}, corrected for {len(found.pairs)} pairs)."
        )
    if not shown and judging:
        best = max(match, key=lambda one: one.mean)
        least = min((pair.corrected for pair in found.pairs), default=1.0)
        yield (
            f"No difference between methods of this size is shown (least corrected p = "
            f"{least:.2g}): that {best.name} leads may be luck."
        )
    elif shown and len(shown) < len(found.pairs):
        yield f"The other {len(found.pairs) - len(shown)} pairs do not differ visibly."


def keep(found: Comparison, params: int, folder: Path) -> list[Path]:
    """Write comparison.json and comparison.svg into a folder; return their paths."""
    content = {
        "metric": found.metric,
        "rows": found.rows,
        "judges": found.judges,
        "wanted_parameters": params,
        "shows": found.shows,
        "seeds_left_out": found.left_out,
        "methods": [
            {
                "name": one.name,
                "parameters": one.parameters,
                "is_reference": one.name in REFERENCES,
                "seeds": one.seeds,
                "scores": one.heldout,
                "select": one.select,
                "seconds": one.seconds,
                "row_seconds": one.row_seconds,
                "trials": one.trials,
                "evaluations": one.evaluations,
            }
            for one in found.methods
        ],
        "pairs": [vars(pair) for pair in found.pairs],
    }
    data, plot = folder / "comparison.json", folder / "comparison.svg"
    write_text(data, json.dumps(content, indent=1) + "\n")
    write_text(plot, _plot(found))
    return [data, plot]


def _plot(found: Comparison) -> str:
    """Return the score of each method against its parameters, as the paper's figure 1."""
    import io

    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for one in found.methods:
        size = max(1, one.parameters)
        spread = 0.0 if math.isnan(one.std) else 100 * one.std
        axes.errorbar(size, 100 * one.mean, spread, fmt="o", capsize=3)
        axes.annotate(one.name, (size, 100 * one.mean), (6, 4), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlabel("parameters without classifier")
    axes.set_ylabel(f"{found.metric}, {found.judges} rows")
    file = io.StringIO()
    FigureCanvasSVG(figure).print_svg(file)
    return file.getvalue()
