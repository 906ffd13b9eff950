"""The page of a comparison over tasks: an HTML file and JSON, in `runs/comparisons/NAME`.

Sweeps and suites are in `runs/sweeps`; the whole is neither, and what it has follows from the
comparisons of its tasks, so that it may be made again at any time.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from orchestrator.comparison.across.statistics import AcrossPair
from orchestrator.comparison.across.table import (
    ABOUT,
    OverTasks,
    content_across,
    head,
    is_general,
    lines_across,
    sentences_across,
)
from orchestrator.comparison.pages.page import html_table
from orchestrator.comparison.units import TunedPair
from orchestrator.reporting.report import page_of
from orchestrator.state.suite_definition import COMPARISON_PAGE
from tinyattn.files.atomic import make_folder, write_text

MOST_PAIRS = 15
"""Pairs in the figure of leads at most, those with the smallest p."""
_PAIR_HEAD = (
    "better", "worse", "tasks", "mean lead", "95 % interval", "p", "corrected p",
)  # fmt: skip
_ACROSS, _TASK = "#0072B2", "#8C8C8C"


def keep_across(found: OverTasks, runs: Path) -> list[Path]:
    """Write comparison.html and comparison.json of the whole; return their paths.

    Args:
        found: the comparison over tasks.
        runs: folder of sweeps, store and comparisons.

    Raises:
        StorageError: they cannot be written.
    """
    folder = runs / "comparisons" / found.name
    make_folder(folder, "choose another place with --runs")
    texts = {
        COMPARISON_PAGE: _page(found),
        "comparison.json": json.dumps(content_across(found), indent=1) + "\n",
    }
    for file, text in texts.items():
        write_text(folder / file, text)
    return [folder / file for file in texts]


def _page(found: OverTasks) -> str:
    match, references = lines_across(found)
    said = "".join(f"<p>{escape(line)}</p>" for line in sentences_across(found))
    links = "".join(
        f"<li><a href='../../sweeps/{quote(own)}/{COMPARISON_PAGE}'>{escape(task)}</a></li>"
        for task, own in found.names.items()
    )
    body = [
        f"<section><h2>Methods and tasks</h2>{html_table(head(found), [*match, *references])}"
        f"<p>{escape(ABOUT)}</p></section>",
        f"<section><h2>What is shown over tasks</h2>{said}</section>",
        *_leads_sections(found),
        *([f"<section><h2>Ranks</h2>{_svg(ranks_figure(found))}</section>"] if found.ranks else []),
        f"<section><h2>Pairs over tasks</h2>{html_table(_PAIR_HEAD, list(_pairs(found)))}"
        "</section>",
        f"<section><h2>Each task</h2><ul>{links}</ul></section>",
    ]
    about = f"{len(found.tasks)} tasks: {', '.join(found.tasks)}"
    return page_of(f"Comparison {found.name}", escape(about), body)


def _leads_sections(found: OverTasks) -> Iterator[str]:
    for metric, pairs in found.across.items():
        drawn = leads_figure(found, metric)
        if drawn is None:
            continue
        what = "tasks like these" if is_general(pairs) else "these tasks alone"
        few = f" The {MOST_PAIRS} pairs with the smallest p." if len(pairs) > MOST_PAIRS else ""
        yield (
            f"<section><h2>Leads, {escape(metric)}</h2>{_svg(drawn)}<p>Lead of the first method "
            "over the second in points: grey on each task, with its 95 % interval over all pairs "
            f"of that task; blue the mean, with its interval, for {what}.{few}</p></section>"
        )


def _pairs(found: OverTasks) -> Iterator[list[str]]:
    for metric, pairs in found.across.items():
        for pair in sorted(pairs, key=lambda pair: pair.corrected):
            numbers = ["–", "not judged"]
            if math.isfinite(pair.lead):
                interval = f"{100 * pair.low:.2f} to {100 * pair.high:.2f}"
                numbers = [f"{100 * pair.lead:.2f}", interval]
            yield [
                pair.better,
                pair.worse,
                f"{len(pair.leads)}, {metric}",
                *numbers,
                f"{pair.p_value:.3g}",
                f"{pair.corrected:.3g}",
            ]


def leads_figure(found: OverTasks, metric: str) -> Figure | None:
    """Return a forest plot of the tasks of a metric: leads on each, and the mean.

    None: no pair is judged.
    """
    judged = [pair for pair in found.across[metric] if math.isfinite(pair.lead)]
    pairs = sorted(judged, key=lambda pair: pair.p_value)[:MOST_PAIRS]
    if not pairs:
        return None
    tasks = found.groups[metric]
    lines = len(pairs) * (len(tasks) + 2)
    figure = Figure(figsize=(8, 1 + 0.21 * lines), layout="constrained")
    axes = figure.add_subplot()
    ticks: list[tuple[int, str]] = []
    for number, pair in enumerate(pairs):
        top = number * (len(tasks) + 2)
        for place, task in enumerate(tasks):
            lead, low, high = _on_task(pair, found.tasks[task].pairs)
            axes.plot([low, high], [top + place] * 2, color=_TASK, linewidth=1)
            axes.plot([lead], [top + place], "o", color=_TASK, markersize=4)
            ticks.append((top + place, f"{pair.better} – {pair.worse}, {task}"))
        mean = top + len(tasks)
        axes.plot([100 * pair.low, 100 * pair.high], [mean] * 2, color=_ACROSS, linewidth=2)
        axes.plot([100 * pair.lead], [mean], "D", color=_ACROSS, markersize=6)
        ticks.append((mean, "mean"))
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks([place for place, _ in ticks], [_plain(name) for _, name in ticks], fontsize=8)
    axes.set_ylim(lines - 1, -1)
    axes.set_xlabel(f"lead, points of {metric}")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _on_task(pair: AcrossPair, pairs: Sequence[TunedPair]) -> tuple[float, float, float]:
    """Return the lead of a pair on one task and the ends of its interval, in points."""
    names = {pair.better, pair.worse}
    own = next(one for one in pairs if {one.better, one.worse} == names)
    sign = 100 if own.better == pair.better else -100
    low, high = sorted((sign * own.low, sign * own.high))
    return sign * own.lead, low, high


def ranks_figure(found: OverTasks) -> Figure:
    """Return the ranks of the match as a heat map, methods by mean rank."""
    ranks = dict(sorted(found.ranks.items(), key=lambda item: float(np.mean(item[1]))))
    heat = np.array([*ranks.values()])
    size = (2 + 1.0 * len(found.tasks), 1 + 0.35 * len(ranks))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(heat, cmap="Blues_r", vmin=1, vmax=max(2, len(ranks)) * 1.3, aspect="auto")
    for (line, column), rank in np.ndenumerate(heat):
        colour = "white" if rank < 1 + len(ranks) / 3 else "black"
        axes.text(column, line, f"{rank:g}", ha="center", va="center", color=colour)
    axes.set_xticks(range(len(found.tasks)), [_plain(task) for task in found.tasks])
    axes.set_yticks(range(len(ranks)), [_plain(name) for name in ranks])
    return figure


def _plain(name: str) -> str:
    """Return a name in which matplotlib sees no formula."""
    return name.replace("$", r"\$")


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    FigureCanvasSVG(figure).print_svg(file)
    drawn = file.getvalue()
    return drawn[drawn.index("<svg") :]
