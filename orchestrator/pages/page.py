"""The frame of a page, in one HTML file without links to anything outside, and its sections."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from orchestrator.pages.figures import Drawn


def page_of(title: str, subtitle: str, body: Sequence[str]) -> str:
    """Return a whole page.

    Args:
        title: plain text.
        subtitle: HTML below it.
        body: HTML of its parts.
    """
    template = Template(Path(__file__).with_name("page.html").read_text("utf-8"))
    return template.substitute(title=escape(title), subtitle=subtitle, body="\n".join(body))


def figure_section(figure: Drawn, svg: str, beside: str = "") -> str:
    """Return a figure as a section of a page, with its caption and what is said beside it."""
    return (
        f"<section><h2>{escape(figure.title)}</h2>{beside}<p>{escape(figure.caption)}</p>"
        f"{svg[svg.index('<svg') :]}</section>"
    )


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of plain text as HTML, which scrolls where it is wide."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f"<div class='scroll'><table><thead>{line('th', head)}</thead>"
        f"<tbody>{body}</tbody></table></div>"
    )
