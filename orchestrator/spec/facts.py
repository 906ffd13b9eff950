"""Facts about a sweep, known before it starts: fingerprints, rows, evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Facts:
    """The PLM and data of a sweep by fingerprint, and counts of rows and evaluations."""

    task: str
    primary_metric: str
    plm_fingerprint: str
    data_fingerprint: str
    carve: int | None
    """Version of carving, if selection or dev rows are carved from train; None: none are."""
    carve_notes: tuple[str, ...]
    """Remarks that belong beside scores, such as that carved rows are like rows to train on."""
    train_rows: int
    select_rows: int
    heldout_rows: int
    truncated_rows: int
    mean_length: float
    """Mean number of real tokens of a training row."""
    evaluations: int
    """Evaluations of the longest trial of the space."""
    fewest_rows: int
    """Training rows of an epoch of whichever trial or expert has the fewest."""
    most_chunks: int = 1
    """Chunks of the training row that has most; 1 where rows are not cut."""
    trial_pflop: float = 0.0
    """Predicted operations of one whole trial, in 10^15; 0: not known."""
    selects_from: str = ""
    """What the rows to select on are: a split's name, or that they are carved."""
    label_rows: Mapping[str, int] = field(default_factory=dict)
    """How many of these rows each label has; empty: a regression."""
    targets: str = ""
    """How labels are read, or what scores are learned as; empty: nothing is to be said."""
    lacks_choice: str = ""
    """Why no score can choose between trials; empty: one can."""
    patterns: tuple[str, ...] = ()
    """The patterns that rows may be asked by, each with its words, in words."""
    train_files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """`train_file` of trials -> fingerprint of the data with its rows, and how many these are."""
    plm_notes: tuple[str, ...] = ()
    """Remarks on what the PLM's files hold and is not used."""

    @property
    def absent_labels(self) -> list[str]:
        """Labels that none of these rows has."""
        return [label for label, rows in self.label_rows.items() if not rows]
