"""TrialBatch: trials that belong together, and what they have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.spec.config import AshaConfig, Resources
from tinyattn.config import TrainConfig
from tinyattn.plugins import Plugin

SEARCH = "search"
"""Name of the batch that a sweep's search is."""


@dataclass(frozen=True)
class TrialBatch:
    """Trials that belong together: a sweep's search, its finalists, its experts."""

    name: str
    """First part of the names of its trials and files."""
    title: str
    """Title of the batch in the view."""
    kind: str
    """Kind of its trials, a tag of their MLflow runs: trial, finalist or expert; of `tinyattn pet`
    member or classifier."""
    base: TrainConfig
    """The config that its trials have in common."""
    trials: int
    """Most trials of the batch."""
    evaluations: int
    """Evaluations of its longest trial."""
    resources: Resources
    tags: Mapping[str, str]
    """Tags of its MLflow runs: fingerprints, counts."""
    file_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Tags beside these of runs whose trial has a `train_file`, by this file."""
    pflop: float = 0.0
    """Predicted operations of one whole trial, in 10^15; 0: not known."""
    asha: AshaConfig | None = None
    """Settings of ASHA; None switches early stopping off."""
    trials_a_search: int | None = None
    """Trials of one search, which early stopping compares among themselves; None: all are one."""
    plugins: tuple[Plugin, ...] = ()
    """Modules of the user's own that its workers import."""
