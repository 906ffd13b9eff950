"""The table of a comparison, and sentences on what it shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.table import Table

from orchestrator.comparison.judging import LEVEL, Comparison, Judged
from orchestrator.spec.values import Json

HEAD = (
    "method", "parameters", "of wanted", "score", "± seeds", "selection", "time", "memory", "a row",
)  # fmt: skip
ABOUT = (
    "score: mean over fresh seeds. time: of a seed's training, beside other trials. memory: of a "
    "training step, beside the PLM. a row: a prediction."
)


def render(found: Comparison, params: int) -> list[Table | str]:
    """Return what `tinyattn compare` prints.

    Args:
        found: the comparison.
        params: the wanted number of parameters.
    """
    table = Table(title=title(found), title_justify="left", header_style="bold", pad_edge=False)
    for name in HEAD:
        table.add_column(name, justify="left" if name == "method" else "right")
    match, references = lines(found, params)
    for line in match:
        table.add_row(*line)
    if references:
        table.add_section()
    for line in references:
        table.add_row(*line)
    return [table, ABOUT, *sentences(found)]


def title(found: Comparison) -> str:
    """Return the title of the table: metric and rows."""
    return f"{found.metric} on {found.rows:,} {found.judges} rows"


def lines(found: Comparison, params: int) -> tuple[list[list[str]], list[list[str]]]:
    """Return the cells of the methods of the match and of the references, the best first."""
    ranked = sorted(found.methods, key=lambda one: -one.mean)
    match = [_cells(one, params) for one in ranked if not one.is_reference]
    return match, [_cells(one, None) for one in ranked if one.is_reference]


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
        "–" if one.step_bytes is None else f"{one.step_bytes / 1e6:,.1f} MB",
        f"{1000 * one.row_seconds:.2f} ms",
    ]


def sentences(found: Comparison) -> Iterator[str]:
    """Yield what the tests show, in plain words."""
    if found.left_out:
        named = ", ".join(map(str, found.left_out))
        yield f"note: seeds {named} did not complete for all methods and are left out of all."
    if found.judges == "selection":
        yield (
            "note: the rows that judge also chose each method's settings and evaluation: what "
            "leads on them is no evidence for other rows; protocol=heldout has rows for that."
        )
    match = [one for one in found.methods if not one.is_reference]
    if len(match) > 1:
        yield from _of_match(found, match)
    if references := [one.name for one in found.methods if one.is_reference]:
        yield f"Reference rows ({', '.join(references)}) are not tested: their sizes differ."


def _of_match(found: Comparison, match: Sequence[Judged]) -> Iterator[str]:
    """Yield what the tests of two or more methods show."""
    seeds = len(match[0].seeds)
    if seeds < 2:
        yield "note: one seed says nothing of others; p is for these trained adapters alone."
    yield (
        f"With {found.rows:,} rows and {seeds} seeds a difference of about "
        f"{100 * found.shows:.1f} points between two methods usually shows; smaller ones are "
        "mostly missed."
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


def content(found: Comparison, params: int) -> dict[str, Json]:
    """Return what comparison.json holds."""
    return {
        "metric": found.metric,
        "rows": found.rows,
        "judges": found.judges,
        "wanted_parameters": params,
        "shows": found.shows,
        "seeds_left_out": [*found.left_out],
        "methods": [
            {
                "name": one.name,
                "sweep": one.sweep,
                "parameters": one.parameters,
                "is_reference": one.is_reference,
                "settings": {**one.settings},
                "seeds": [*one.seeds],
                "scores": [*one.heldout],
                "select": [*one.select],
                "seconds": one.seconds,
                "step_bytes": one.step_bytes,
                "row_seconds": one.row_seconds,
                "trials": one.trials,
                "evaluations": one.evaluations,
            }
            for one in found.methods
        ],
        "pairs": [{**vars(pair)} for pair in found.pairs],
    }
