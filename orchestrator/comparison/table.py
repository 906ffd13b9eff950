"""The table of a comparison, and sentences on what it shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.table import Table

from orchestrator.comparison.judging import Comparison, Judged, Tuned
from orchestrator.spec.config import RATE
from orchestrator.spec.values import Json

HEAD = (
    "method", "parameters", "of wanted", "score", "± tuned again", "one class", "selection",
    "rates found", "time", "memory", "a row",
)  # fmt: skip
ABOUT = (
    "score: mean over searches, whose winners ran again on fresh seeds; ±: how much it differs "
    "from search to search. one class: runs that answer all rows alike. time: of such a run, "
    "beside others. memory: of a training step, beside the PLM. a row: a prediction."
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
    select = sum(unit.select for unit in one.units) / len(one.units)
    dull = one.answers_one_class
    return [
        one.name,
        f"{one.parameters:,}",
        share,
        f"{100 * one.mean:.2f}",
        "–" if math.isnan(one.std) else f"{100 * one.std:.2f}",
        f"{dull} of {len(one.units)}" if dull else "",
        f"{100 * select:.2f}",
        rates_found(one),
        f"{one.seconds:,.0f} s",
        "–" if one.step_bytes is None else f"{one.step_bytes / 1e6:,.1f} MB",
        f"{1000 * one.row_seconds:.2f} ms",
    ]


def rates_found(one: Judged) -> str:
    """Return the learning rates that a method's searches found, as in `1.2e-3 to 4.0e-3`."""
    rates = sorted({found_rate(unit) for unit in one.units})
    return " to ".join(rate_word(rate) for rate in (rates[0], rates[-1])[: len(rates)])


def rate_word(rate: float) -> str:
    """Return a learning rate as in `1.2e-3`."""
    number, exponent = f"{rate:.1e}".split("e")
    return f"{number}e{int(exponent)}"


def found_rate(unit: Tuned) -> float:
    """Return the learning rate that a search found."""
    return float(str(unit.settings[RATE]))


def sentences(found: Comparison) -> Iterator[str]:
    """Yield what is shown, what is not and why, in plain words."""
    if found.judges == "selection":
        yield (
            "note: the rows that judge also chose each method's settings and evaluation: what "
            "leads on them is no evidence for other rows; protocol=heldout has rows for that."
        )
    yield from remarks(found)
    match = [one for one in found.methods if not one.is_reference]
    if len(match) > 1:
        yield from _of_match(found, match)
    if references := [one.name for one in found.methods if one.is_reference]:
        yield f"Reference rows ({', '.join(references)}) are not tested: their sizes differ."


def remarks(found: Comparison) -> Iterator[str]:
    """Yield what makes a comparison doubtful: searches or training that were too short."""
    for one in found.methods:
        lost = found.searches - len({unit.search for unit in one.units})
        if lost > 0:
            yield f"note: {one.name}: {lost} of its searches have no score and are left out."
        if one.answers_one_class:
            yield (
                f"note: {one.name} answers one class in {one.answers_one_class} of "
                f"{len(one.units)} runs; its score there says no more than that."
            )
        if (edge := edge_words(one)) is not None:
            yield f"note: {one.name}: {edge}"
    if all(one.answers_one_class == len(one.units) for one in found.methods):
        yield "note: no method learned anything: more rows or epochs, or larger rates, are needed."
    if gap := _gap(found):
        yield (
            f"note: the {found.trials} learning rates of a search are {gap:.1f} decades apart: "
            "a method that learns in less than that may be missed; more --trials mend it."
        )
    late = [
        one.name for one in found.methods if 2 * sum(u.at_end for u in one.units) > len(one.units)
    ]
    if late:
        yield (
            f"note: {', '.join(late)}: the best evaluation is the last one in most runs: longer "
            "training may change the order."
        )


def edge_words(one: Judged) -> str | None:
    """Return what is said of a best learning rate at an edge of its range; None: it is at none."""
    if one.edge is None or one.range is None or one.best_rate is None:
        return None
    low, high = map(rate_word, one.range)
    return (
        f"its best learning rate, {rate_word(one.best_rate)}, is the {_EDGES[one.edge]} of those "
        f"tried in its range, {low} to {high}: a better one may lie beyond."
    )


_EDGES = {"lower": "smallest", "upper": "largest"}
_GAP = 1.0
"""Decades between learning rates from which on a search is said to be coarse."""


def _gap(found: Comparison) -> float | None:
    """Return the decades between neighbouring rates of a search, if they are many."""
    wide = [math.log10(one.range[1] / one.range[0]) for one in found.methods if one.range]
    gap = max(wide, default=0.0) / found.trials
    return gap if gap >= _GAP else None


def _of_match(found: Comparison, match: Sequence[Judged]) -> Iterator[str]:
    """Yield what the tests of two or more methods show."""
    yield f"{power_words(found)}."
    if found.judges == "selection":
        return
    shown = found.shown
    dull = {one.name: one.answers_one_class for one in match}
    for pair in sorted(shown, key=lambda pair: pair.corrected):
        beside = f"; {pair.worse} answers one class there" if dull[pair.worse] else ""
        yield (
            f"{pair.better}, tuned so, is better than {pair.worse} by {100 * pair.lead:.2f} points "
            f"(95 % interval {100 * pair.low:.2f} to {100 * pair.high:.2f}, p = "
            f"{pair.corrected:.3g}, both corrected for {len(found.pairs)} pairs{beside})."
        )
    if not shown and not found.close:
        least = min((pair.corrected for pair in found.pairs), default=1.0)
        yield (
            "No difference between tuned methods of this size is shown (least corrected p = "
            f"{least:.2g})."
        )
    elif (left := len(found.pairs) - len(shown) - len(found.close)) > 0:
        yield f"Of the other {left} pairs no difference is shown."
    for pair in found.close:
        yield (
            f"{pair.better} and {pair.worse} are shown to be close: the difference is at most "
            f"{100 * pair.high:.2f} points."
        )
    yield from _which(found, match)


def power_words(found: Comparison) -> str:
    """Return which differences so many rows and searches show."""
    of_each = ", ".join(
        f"{100 * each:g} in {_percent(share)}" for each, share in found.power.items()
    )
    return (
        f"With {found.rows:,} rows and {found.searches} searches a method, each of "
        f"{found.trials} trials, a difference of {100 * found.shows:.1f} points between two "
        f"tuned methods shows in 80 % of cases ({of_each})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_ALONE = {
    True: "it is shown to be better than all others",
    False: "the others are shown to be worse, or answer one class",
}


def _which(found: Comparison, match: Sequence[Judged]) -> Iterator[str]:
    """Yield which method to take."""
    beaten = {pair.worse for pair in found.shown}
    left = [
        one for one in match if one.name not in beaten and one.answers_one_class < len(one.units)
    ]
    if not left:
        return
    best = max(left, key=lambda one: one.mean)
    if len(left) == 1:
        yield f"To take: {best.name}; {_ALONE[len(beaten) == len(match) - 1]}."
        return
    quick = min(left, key=lambda one: one.seconds)
    cheaper = f", or {quick.name}, which trains fastest" if quick is not best else ""
    names = ", ".join(one.name for one in left)
    yield (
        f"To take: {best.name}, whose mean is the highest{cheaper}; none of {names} is shown to be "
        "worse than another, so that its lead may be luck."
    )


def content(found: Comparison, params: int) -> dict[str, Json]:
    """Return what comparison.json holds."""
    return {
        "metric": found.metric,
        "rows": found.rows,
        "judges": found.judges,
        "wanted_parameters": params,
        "shows": None if math.isnan(found.shows) else found.shows,
        "power": {f"{each:g}": share for each, share in found.power.items()},
        "searches": found.searches,
        "trials_a_search": found.trials,
        "methods": [_method(one) for one in found.methods],
        "pairs": [
            {key: _number(value) for key, value in vars(pair).items()} for pair in found.pairs
        ],
    }


def _method(one: Judged) -> dict[str, Json]:
    return {
        "name": one.name,
        "sweep": one.sweep,
        "parameters": one.parameters,
        "is_reference": one.is_reference,
        "units": [
            {
                "search": unit.search,
                "settings": {**unit.settings},
                "score": unit.heldout,
                "select": unit.select,
                "one_class": unit.one_class,
                "trial": unit.trial,
                "seconds": unit.seconds,
            }
            for unit in one.units
        ],
        "tried": [
            {
                "search": trial.search,
                "lr": trial.rate,
                "select": trial.score,
                "outcome": str(trial.outcome),
                "evaluations": trial.evaluations,
            }
            for trial in one.tried
        ],
        "range": None if one.range is None else [*one.range],
        "step_bytes": one.step_bytes,
        "row_seconds": one.row_seconds,
    }


def _number(value: object) -> Json:
    """Return a value as JSON has it; what is no finite number is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, float) else str(value)
