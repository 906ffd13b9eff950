"""Trial: one trial of a sweep, as the event log of its batch tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.spec.outcome import Outcome, is_by_user

ALONE = {"adapter.layers": "none"}
"""Overrides that leave the classifier alone, without an adapter."""


def is_alone(settings: Mapping[str, Any]) -> bool:
    """Whether settings by dotted key, of a config or overrides, leave the classifier alone."""
    return settings.get("adapter.layers") == ALONE["adapter.layers"]


@dataclass
class Trial:
    """A trial as its event log tells it: what was tried, what came of it, how it ended.

    The event log is the truth about a trial; the trial's MLflow run (`TrialRun` in
    `tracking/reader.py`) is a copy for others to read, which may lag behind.
    """

    name: str
    """Its name in its sweep, such as `search_00004`."""
    params: dict[str, Any]
    """What was suggested for it: overrides of the batch's config, by dotted key."""
    results: list[dict[str, Any]] = field(default_factory=list)
    """Results in order: evaluations, and perhaps an end without an evaluation as the last."""
    outcome: Outcome | None = None
    """None: it was running when the event log ends."""
    error: str | None = None
    """Why it ended so, where there is more to say than its outcome."""

    @property
    def evaluations(self) -> int:
        """Number of evaluations in the event log."""
        return int(self.last.get("evaluation", 0))

    @property
    def last(self) -> dict[str, Any]:
        """The last result; empty before the first."""
        return self.results[-1] if self.results else {}

    @property
    def scored(self) -> list[dict[str, Any]]:
        """The results with a finite score: all but an end without an evaluation."""
        return [each for each in self.results if math.isfinite(each.get("score", math.nan))]

    @property
    def best_index(self) -> int:
        """Index of the best evaluation so far; 0 before the first."""
        found = (result.get("best_index", 0) for result in reversed(self.results))
        return int(next(filter(None, found), 0))

    @property
    def best_score(self) -> float | None:
        """Best primary metric on the selection rows; None: it has no finite score."""
        found = (result.get("best_score", math.nan) for result in reversed(self.results))
        return next(filter(math.isfinite, found), None)

    @property
    def parameters(self) -> int:
        """Number of trainable parameters, adapter and classifier; 0 before the first evaluation."""
        counted = (result for result in reversed(self.results) if "adapter_params" in result)
        result: dict[str, Any] = next(counted, {})
        return int(result.get("adapter_params", 0) + result.get("classifier_params", 0))

    @property
    def by_user(self) -> bool:
        """Whether the user stopped it."""
        return is_by_user(self.error)

    @property
    def cause(self) -> str:
        """The last line of its error, below any traceback; empty: there is no error."""
        return self.error.splitlines()[-1] if self.error else ""

    def knows(self, result: Mapping[str, Any]) -> bool:
        """Whether a result is known already, as when a restarted trial reports it again."""
        ends = "outcome" in result
        known = not ends and result["evaluation"] <= self.evaluations
        return self.outcome is not None or known
