"""The page of an evaluation, and its parts, which other pages have too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from orchestrator.judging.figures import drawn
from orchestrator.judging.table import PAGE_LETTERS, Cells, sentences, tables, title
from orchestrator.pages.figures import as_svg
from orchestrator.pages.page import figure_section, html_table, page_of
from tinyattn.files.printable import printable_line
from tinyattn.judging.evaluation import Evaluation


def page(found: Evaluation, adapter: str) -> str:
    """Return the page.

    Args:
        found: the evaluation.
        adapter: what answered, as it was named.
    """
    body = sections(found, "In short", sentences(found))
    return page_of(f"Evaluation of {printable_line(adapter)}", escape(title(found)), body)


def sections(found: Evaluation, head: str, said: Sequence[str]) -> list[str]:
    """Return an evaluation as the sections of a page.

    Args:
        found: the evaluation.
        head: title of the first section.
        said: its sentences, plain text.
    """
    lines = "".join(f"<p>{escape(line)}</p>" for line in said)
    first, *rest = [_section(cells) for cells in tables(found, PAGE_LETTERS)]
    figures = [figure_section(one, as_svg(one, name)) for name, one in drawn(found).items()]
    return [f"<section><h2>{escape(head)}</h2>{lines}</section>", first, *figures, *rest]


def _section(cells: Cells) -> str:
    about = f"<p>{escape(cells.about)}</p>" if cells.about else ""
    table = html_table(cells.head, cells.rows)
    return f"<section><h2>{escape(cells.title)}</h2>{about}{table}</section>"


def json_of(found: Evaluation) -> str:
    """Return the evaluation as the text of a JSON file."""
    return json.dumps(found.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
