"""What the finalizer finds, and its words: terminal tables and one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from orchestrator.collapsing import Collapse
from orchestrator.keeping import LEVEL, Judgement


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
    evaluations: int = 1
    """How many it is the best of, those of other seeds included."""


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
    """The best of all experts, each collapsed by each method; None: no expert reached a score."""
    judgement: Judgement | None
    """Of `best` against one head."""
    rates: int = 1
    """Learning rates that the classifier alone is the best of."""

    @property
    def helps(self) -> bool:
        """Whether the collapsed adapter takes the place of one head."""
        return self.judgement is not None and self.judgement.keeps

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
    of = f" (best of {verdict.rates} learning rates)" if verdict.rates > 1 else ""
    words = f"One head against the classifier alone{of}, mean of seeds: {points:+.2f} points"
    if points > spread:
        return f"{words}."
    if points > 0:
        return f"{words}, but seeds differ by more ({spread:.2f}): few seeds cannot tell it surely."
    return f"{words}: the adapter brings nothing here."


def sentence(verdict: Verdict) -> str:
    """What was decided and why."""
    if verdict.best is None or verdict.judgement is None:
        return "No expert of several heads completed: the one-head adapter is kept."
    change = 100 * (verdict.best.single.select - verdict.best.expert.select)
    collapse = (
        f"Collapsing ({verdict.best.how.method}) moved the logits by "
        f"{100 * verdict.best.how.logit_distance:.1f} % and the score by {change:+.2f} points."
    )
    reasons = _reasons_on_dev if verdict.judgement.contest.p_value is None else _reasons
    return f"{collapse}\n{reasons(verdict.judgement, verdict.best.expert.name)}"


def _reasons(judgement: Judgement, name: str) -> str:
    """Why heads are kept or not, under the protocol `heldout`."""
    contest, p_value = judgement.contest, judgement.contest.p_value or 0.0
    select = f"{_pair(contest.score, contest.one_head)} on the selection rows"
    heldout = f"{_pair(*judgement.heldout)} on the held-out rows" if judgement.heldout else ""
    of = f"the best of {judgement.candidates} equal ones"
    if not contest.is_won:
        return (
            f"The {name} do not help: {select}. {of.capitalize()} would lead as clearly with "
            f"{_p_words(p_value)}, above {LEVEL:.2f}: the one-head adapter is kept."
        )
    lead = f"{select} ({of} would lead as clearly with {_p_words(p_value)})"
    if judgement.objects:
        return (
            f"The {name} lead with {lead}, but the held-out rows object with {heldout}: the "
            "one-head adapter is kept."
        )
    return f"The collapsed {name} are kept: {lead}; the held-out rows do not object ({heldout})."


def _reasons_on_dev(judgement: Judgement, name: str) -> str:
    """Why heads are kept or not, under the protocol `paper`."""
    dev = f"{_pair(judgement.contest.score, judgement.contest.one_head)} on the dev rows"
    if judgement.keeps:
        return (
            f"The collapsed {name} are kept, as the paper does: {dev}. These rows chose both "
            "adapters, so this is no evidence that they are better."
        )
    return (
        f"The {name} are not better on the rows that chose both adapters ({dev}): the one-head "
        "adapter is kept."
    )


def _p_words(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _pair(new: float, old: float) -> str:
    return f"{_points(new)} against {_points(old)}"


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
