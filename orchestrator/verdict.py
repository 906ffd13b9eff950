"""The finalizer's findings as terminal tables and one sentence."""

from __future__ import annotations

from rich.table import Table

from orchestrator.finalizer import Candidate, Verdict
from orchestrator.registry import SIGNIFICANCE


def render(verdict: Verdict) -> list[Table | str]:
    """Return what `tinyattn finalize` prints."""
    table = Table(title="Finalists", title_justify="left", header_style="bold", pad_edge=False)
    for name in ("adapter", "select", "held-out", "parameters", "run"):
        table.add_column(name, justify="left" if name in ("adapter", "run") else "right")
    rows = [verdict.classifier_alone, *verdict.finalists, verdict.one_head]
    if verdict.best is not None:
        rows += [verdict.best.expert, verdict.best.single]
    for row in rows:
        if row is not None:
            table.add_row(*_cells(row), style="bold" if row is verdict.winner else None)
    return [table, sentence(verdict)]


def sentence(verdict: Verdict) -> str:
    """What was decided and why."""
    if verdict.best is None:
        return "No expert of several heads completed: the one-head adapter is kept."
    new, old = verdict.best.single, verdict.one_head
    scores = f"{_points(_compared(new))} against {_points(_compared(old))}"
    evidence = f"{scores} on the {verdict.compared_on} rows, p {_p_words(verdict.p_value)}"
    change = 100 * (new.select - verdict.best.expert.select)
    collapse = (
        f"Collapsing ({verdict.best.method}) moved the logits by "
        f"{100 * verdict.best.logit_distance:.1f} % and the score by {change:+.2f} points."
    )
    name = verdict.best.expert.name
    if verdict.helps:
        sure = "" if (verdict.p_value or 0) < SIGNIFICANCE else ", which may be chance"
        return f"{collapse}\nThe collapsed {name} are kept: {evidence}{sure}."
    return f"{collapse}\nThe {name} do not help ({evidence}): the one-head adapter is kept."


def _p_words(p_value: float | None) -> str:
    if p_value is None:
        return "unknown"
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"


def _compared(candidate: Candidate) -> float:
    return candidate.select if candidate.heldout is None else candidate.heldout


def _cells(row: Candidate) -> list[str]:
    heldout = "–" if row.heldout is None else _spread(row.heldout, row.heldout_std)
    return [
        row.name,
        _spread(row.select, row.std),
        heldout,
        f"{row.parameters:,}",
        row.run_id[:8],
    ]


def _spread(value: float, std: float | None) -> str:
    return _points(value) if std is None else f"{_points(value)} ± {100 * std:.2f}"


def _points(value: float) -> str:
    return f"{100 * value:.2f}"
