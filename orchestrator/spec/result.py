"""Result: one entry of a trial's history, an evaluation or an end without one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated

from pydantic import Field

from orchestrator.spec.outcome import Outcome
from tinyattn.tasks import best_first

Count = Annotated[int, Field(ge=0, le=10**9)]
"""A whole number as reports have them; the bounds hold where one is read from a file."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One entry of a trial's history: what a worker reported of it, and from where.

    The names are the keys of an event log's lines and, with few exceptions, of MLflow's metrics;
    the order is that of the lines. None: the report did not say, as that of an end without an
    evaluation, or the event log is of a version that did not know it.
    """

    evaluation: Count
    """Index of the evaluation, from 1; of an end without one, the last before it."""
    total: Count | None = None
    """Evaluations of the whole trial."""
    epoch: float | None = None
    step: Count | None = None
    score: float
    """Primary metric on the selection rows; NaN: an end without an evaluation."""
    best_score: float
    """Best score so far."""
    best_index: Count | None = None
    """Evaluation that is the best: by score, of equals by selection loss."""
    train_loss: float | None = None
    select_loss: float | None = None
    """Mean loss on the selection rows."""
    best_loss: float | None = None
    """`select_loss` of the best evaluation."""
    one_class: bool | None = None
    """Whether all selection rows, or all their words, are answered by the same class."""
    best_one_class: bool | None = None
    """`one_class` of the best evaluation."""
    noise: float | None = None
    """Standard error of the score."""
    lr: float | None = None
    seconds: float | None = None
    """Of training and evaluation, since the trial began."""
    rows_per_second: float | None = None
    metrics: Mapping[str, float] | None = None
    """All metrics on the selection rows."""
    heldout: Mapping[str, float] | None = None
    """Metrics on the held-out rows, measured once at the end; empty before."""
    adapter_params: Count | None = None
    classifier_params: Count | None = None
    micro_batch_size: Count | None = None
    """Rows a pass."""
    peak_memory_mb: float | None = None
    """Of the trial's GPU; None: it has none, or shares it."""
    outcome: Outcome | None = None
    """How the trial ended by it; None: it did not."""
    error: str | None = None
    """Why, if it ended without an evaluation."""
    node_ip: str | None = None
    """Address of the worker's machine."""
    others: Mapping[str, float] = field(default_factory=dict)
    """Numbers under other names: those of collapsed adapters, and of other versions."""

    @property
    def is_finite(self) -> bool:
        """Whether score and best score are numbers."""
        return math.isfinite(self.score) and math.isfinite(self.best_score)

    @property
    def order(self) -> tuple[float, float]:
        """Sort key by the best evaluation so far, the best first; see `best_first`."""
        return best_first(self.best_score, self.best_loss)

    def told(self) -> Iterator[tuple[str, object]]:
        """Yield the name and value of all that it says, in order; other numbers come last."""
        for name in NAMES:
            if (value := getattr(self, name)) is not None:
                yield name, value
        yield from self.others.items()


NAMES = tuple(one.name for one in fields(Result) if one.name != "others")
"""Names that all versions of today give to what a result says."""

NOTHING = Result(evaluation=0, score=math.nan, best_score=math.nan)
"""Stands for the last result of a trial that has none."""
