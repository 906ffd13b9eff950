"""The page of an evaluation: one HTML file, figures in it, without links to anything outside."""

from __future__ import annotations

import json
from html import escape

from orchestrator.comparison.figures import as_svg
from orchestrator.comparison.pages.page import figure_section, html_table
from orchestrator.judging.figures import drawn
from orchestrator.judging.table import Cells, sentences, tables, title
from orchestrator.reporting.report import page_of
from tinyattn.files.printable import printable_line
from tinyattn.judging.evaluation import Evaluation

_LETTERS = 1000
"""Letters of a text that the page shows."""


def page(found: Evaluation, adapter: str) -> str:
    """Return the page.

    Args:
        found: the evaluation.
        adapter: what answered, as it was named.
    """
    first, *rest = [_section(cells) for cells in tables(found, _LETTERS)]
    figures = [figure_section(one, as_svg(one, name)) for name, one in drawn(found).items()]
    said = "".join(f"<p>{escape(line)}</p>" for line in sentences(found))
    body = [f"<section><h2>In short</h2>{said}</section>", first, *figures, *rest]
    return page_of(f"Evaluation of {printable_line(adapter)}", escape(title(found)), body)


def _section(cells: Cells) -> str:
    about = f"<p>{escape(cells.about)}</p>" if cells.about else ""
    table = html_table(cells.head, cells.rows)
    return f"<section><h2>{escape(cells.title)}</h2>{about}{table}</section>"


def json_of(found: Evaluation) -> str:
    """Return the evaluation as the text of a JSON file."""
    return json.dumps(found.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
