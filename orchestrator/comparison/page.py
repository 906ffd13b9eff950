"""The page of a comparison: an HTML file, a plot and JSON, on disk and in the suite's MLflow run.

The run of a comparison is that of its suite: the runs of its methods' sweeps are its children, and
those of trials and seeds are theirs.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from orchestrator.comparison.judging import Comparison
from orchestrator.comparison.table import ABOUT, HEAD, content, lines, sentences, title
from orchestrator.reporting.findings import markdown_table
from orchestrator.reporting.leaderboard import short_config
from orchestrator.reporting.report import page_of
from orchestrator.reporting.suite.page import SETTLE_SECONDS, publish_suite
from orchestrator.state.suite_definition import COMPARISON_PAGE
from orchestrator.tracking.records import TAG_LENGTH
from orchestrator.tracking.writer import TrackingWriter
from tinyattn.files.atomic import write_text

_PAIR_HEAD = ("better", "worse", "lead", "95 % interval", "p", "corrected p")
_SEARCH_HEAD = ("method", "search", "what was found", "selection", "score")


def keep(found: Comparison, name: str, params: int, folder: Path) -> list[Path]:
    """Write comparison.html, .svg and .json into a folder; return their paths.

    Args:
        found: the comparison.
        name: its name.
        params: the wanted number of parameters.
        folder: of its suite.

    Raises:
        StorageError: they cannot be written.
    """
    drawn = _plot(found)
    texts = {
        COMPARISON_PAGE: _page(found, name, params, drawn),
        "comparison.svg": drawn,
        "comparison.json": json.dumps(content(found, params), indent=1) + "\n",
    }
    for file, text in texts.items():
        write_text(folder / file, text)
    return [folder / file for file in texts]


def publish(
    found: Comparison, name: str, params: int, files: Sequence[Path], tracker: TrackingWriter
) -> None:
    """Put a comparison on the page of its suite's run in MLflow: table, metrics and files.

    Args:
        found: the comparison.
        name: its name.
        params: the wanted number of parameters.
        files: from `keep`.
        tracker: of the store.

    Raises:
        StorageError: the store does not take the files.
    """
    run = tracker.run_of_suite(name)
    if run is None:  # another store than that of its sweeps
        return
    match, references = lines(found, params)
    table = markdown_table(HEAD, [*match, *references])
    scores = {f"heldout/{one.name}": one.mean for one in found.methods}
    run.note_comparison(_note([f"**{title(found)}**", table], list(sentences(found))), scores)
    tracker.settle(SETTLE_SECONDS)  # the page reads the note
    publish_suite(tracker, run)
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            write_text(Path(scratch) / file.name, file.read_text("utf-8"))
        tracker.log_folder(run.run_id, Path(scratch), "comparison")


def _note(first: Sequence[str], said: Sequence[str]) -> str:
    """Return a note of at most half a page of MLflow, whose rest is for the sweeps' table."""
    for shown in range(len(said), -1, -1):
        rest = len(said) - shown
        more = [f"{rest} more sentences are in comparison.html."] if rest else []
        text = "\n\n".join([*first, *said[:shown], *more])
        if len(text) <= TAG_LENGTH // 2:
            return text
    return f"{first[0]}\n\nThe table is in comparison.html."


def _page(found: Comparison, name: str, params: int, drawn: str) -> str:
    match, references = lines(found, params)
    said = "".join(f"<p>{escape(line)}</p>" for line in sentences(found))
    body = [
        f"<section><h2>{escape(title(found))}</h2>{html_table(HEAD, [*match, *references])}"
        f"<p>{escape(ABOUT)}</p></section>",
        f"<section><h2>What is shown</h2>{said}</section>",
        f"<section><h2>Score and parameters</h2>{drawn[drawn.index('<svg') :]}</section>",
        f"<section><h2>Pairs</h2>{html_table(_PAIR_HEAD, list(_pairs(found)))}</section>",
        f"<section><h2>Searches</h2>{html_table(_SEARCH_HEAD, list(_searches(found)))}</section>",
    ]
    about = f"{params:,} parameters wanted, without the classifier"
    return page_of(f"Comparison {name}", escape(about), body)


def _pairs(found: Comparison) -> Iterator[list[str]]:
    for pair in sorted(found.pairs, key=lambda pair: pair.corrected):
        interval = f"{100 * pair.low:.2f} to {100 * pair.high:.2f}"
        numbers = [f"{100 * pair.lead:.2f}", interval]
        yield [
            pair.better, pair.worse, *numbers, f"{pair.p_value:.3g}", f"{pair.corrected:.3g}",
        ]  # fmt: skip


def _searches(found: Comparison) -> Iterator[list[str]]:
    for one in found.methods:
        for unit in one.units:
            scores = [f"{100 * score:.2f}" for score in (unit.select, unit.heldout)]
            yield [one.name, str(unit.search + 1), short_config(unit.settings), *scores]


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of plain text as HTML, which scrolls where it is wide."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f"<div class='scroll'><table><thead>{line('th', head)}</thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _plot(found: Comparison) -> str:
    """Return the score of each method against its parameters, as the paper's figure 1."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for one in sorted(found.methods, key=lambda one: -one.mean):
        size = max(1, one.parameters)
        spread = 0.0 if math.isnan(one.std) else 100 * one.std
        marker = "s" if one.is_reference else "o"
        axes.errorbar(size, 100 * one.mean, spread, fmt=marker, capsize=3, label=one.name)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)  # points lie close
    axes.set_xscale("log")
    axes.set_xlabel("parameters without classifier")
    axes.set_ylabel(f"{found.metric}, {found.judges} rows")
    file = io.StringIO()
    FigureCanvasSVG(figure).print_svg(file)
    return file.getvalue()
