"""What the finalizer finds, and its words: terminal tables and one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from orchestrator.collapsing import Collapse
from orchestrator.registry import SIGNIFICANCE


@dataclass(frozen=True)
class Candidate:
    """An adapter and its scores, shares of 1; held-out is None under the protocol `paper`."""

    name: str
    run_id: str
    select: float
    heldout: float | None
    adapter: Path | None = None
    std: float | None = None
    """Standard deviation of `select` over seeds, where there are several."""
    heldout_std: float | None = None
    parameters: int = 0
    """Trainable: adapter and classifier."""


@dataclass(frozen=True)
class Collapsed:
    """An expert and what is left of it in one head."""

    expert: Candidate
    single: Candidate
    how: Collapse


@dataclass(frozen=True)
class Verdict:
    """What finalizing found."""

    classifier_alone: Candidate | None
    finalists: list[Candidate]
    """A row a configuration: mean and std over seeds; the best first."""
    one_head: Candidate
    """The winner's best seed."""
    best: Collapsed | None
    """The best expert by its collapsed selection score; None: no expert reached a score."""
    p_value: float | None
    """Of the collapsed adapter being no better than one head, paired on the rows compared."""
    helps: bool
    """Whether the collapsed adapter takes the place of one head."""
    compared_on: str
    """`held-out` or, under the protocol `paper`, `dev`."""

    @property
    def winner(self) -> Candidate:
        """The adapter to promote."""
        return self.best.single if self.best is not None and self.helps else self.one_head


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
    return [table, *filter(None, [gain(verdict)]), sentence(verdict)]


def gain(verdict: Verdict) -> str:
    """What one head brings over the classifier alone; empty where that is not known."""
    alone, best = verdict.classifier_alone, verdict.finalists[0]
    if alone is None:
        return ""
    points = 100 * (_compared(best) - _compared(alone))
    spread = 100 * math.hypot(_spread_of(best), _spread_of(alone))
    words = f"One head against the classifier alone, mean of seeds: {points:+.2f} points"
    if points > spread:
        return f"{words}."
    if points > 0:
        return f"{words}, but seeds differ by more ({spread:.2f}): few seeds cannot tell it surely."
    return f"{words}: the adapter brings nothing here."


def sentence(verdict: Verdict) -> str:
    """What was decided and why."""
    if verdict.best is None:
        return "No expert of several heads completed: the one-head adapter is kept."
    new, old = verdict.best.single, verdict.one_head
    scores = f"{_points(_compared(new))} against {_points(_compared(old))}"
    evidence = f"{scores} on the {verdict.compared_on} rows, p {_p_words(verdict.p_value)}"
    change = 100 * (new.select - verdict.best.expert.select)
    collapse = (
        f"Collapsing ({verdict.best.how.method}) moved the logits by "
        f"{100 * verdict.best.how.logit_distance:.1f} % and the score by {change:+.2f} points."
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


def _spread_of(candidate: Candidate) -> float:
    return (candidate.std if candidate.heldout is None else candidate.heldout_std) or 0.0


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
