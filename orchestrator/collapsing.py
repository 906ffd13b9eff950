"""Saved adapters in this process: their outputs, and an expert's heads collapsed into one head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tinyattn.batches import batches_of, labels_of
from tinyattn.checkpoint import read_card
from tinyattn.config import TrainConfig
from tinyattn.experts import CollapseMethod, collapse
from tinyattn.model import AdaptedModel, Adapter, Counts
from tinyattn.passes import outputs_of
from tinyattn.tasks import Task, compute_metrics
from tinyattn.tasks.tokens import Rows
from tinyattn.workshop import Workshop


class Loaded:
    """A saved adapter on its PLM, for the length of a `with` block."""

    def __init__(self, folder: Path, config: TrainConfig, workshop: Workshop) -> None:
        self.folder, self.workshop = folder, workshop
        self.plm = workshop.plm(config.plm, config.precision)
        self.card = read_card(folder)

    def __enter__(self) -> Loaded:
        self.model = AdaptedModel(self.plm.model, self.card.adapter.placement)
        self.model.load(self.folder, self.plm)
        return self

    def __exit__(self, *_: object) -> None:
        self.model.detach()

    def use(self, adapter: Adapter) -> None:
        """Run with this adapter instead of the loaded one."""
        self.model.adapters["used"] = adapter.to(self.workshop.device)
        self.model.switch("used")

    def outputs(self, split: Rows) -> np.ndarray:
        """Logits [N, num_outputs]."""
        rows = batches_of(split, self.plm.tokenizer)
        assert self.model.active is not None
        return outputs_of(self.model, self.model.active, rows, self.workshop.device)[0]

    def scores(self, task: Task, split: Rows) -> dict[str, float]:
        """The task's metrics on a labelled split."""
        return compute_metrics(task, self.outputs(split), labels_of(split))

    def counts(self) -> Counts:
        """Parameters of the adapter in use."""
        return self.model.counts()

    def save(self, folder: Path, scores: dict[str, float], lineage: dict[str, Any]) -> None:
        """Save the adapter in use."""
        lineage = {**self.card.lineage, **lineage}
        self.model.save(folder, self.plm, task=self.card.task, scores=scores, lineage=lineage)


@dataclass(frozen=True)
class Collapse:
    """What one method made of an expert's heads."""

    method: CollapseMethod
    adapter: Adapter
    """The one head."""
    outputs: np.ndarray
    """Its logits [N, num_outputs]."""
    logit_distance: float
    """Root mean square difference of the logits from the expert's, relative to their size."""


def collapses_of(loaded: Loaded, rows: Rows) -> list[Collapse]:
    """Collapse a loaded expert by each method; one whose logits are not finite is left out.

    Args:
        loaded: the expert.
        rows: what the methods are compared on: selection rows, never held-out ones.
    """
    wide, before = loaded.model.adapter(), loaded.outputs(rows)
    found: list[Collapse] = []
    for method in get_args(CollapseMethod):
        single = collapse(wide, loaded.model.plm, method)
        loaded.use(single)
        after = loaded.outputs(rows)
        if np.isfinite(after).all():
            distance = float(np.linalg.norm(after - before) / np.linalg.norm(before))
            found.append(Collapse(method, single, after, distance))
    return found
