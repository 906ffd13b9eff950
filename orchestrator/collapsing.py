"""Saved adapters in this process: their outputs, and an expert's heads collapsed into one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tinyattn.batches import batches_of
from tinyattn.checkpoint import read_card
from tinyattn.config import TrainConfig
from tinyattn.experts import CollapseMethod, collapse
from tinyattn.model import AdaptedModel, Adapter, Counts
from tinyattn.passes import outputs_of
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

    def counts(self) -> Counts:
        """Parameters of the adapter in use."""
        return self.model.counts()

    def save(self, folder: Path, scores: dict[str, float], lineage: dict[str, Any]) -> None:
        """Save the adapter in use."""
        lineage = {**self.card.lineage, **lineage}
        self.model.save(folder, self.plm, task=self.card.task, scores=scores, lineage=lineage)


@dataclass(frozen=True)
class Collapse:
    """What became of an expert's heads."""

    method: CollapseMethod
    score: float
    """Of the one head on the rows that chose the method."""
    logit_distance: float
    """Root mean square difference of the logits on those rows, relative to their size."""


def collapse_in_place(
    loaded: Loaded, rows: Rows, score_of: Callable[[np.ndarray], float]
) -> Collapse:
    """Collapse a loaded expert by each method and leave in use the one that scores best.

    Args:
        loaded: the expert.
        rows: what the methods are compared on: selection rows, never held-out ones.
        score_of: the task's primary metric of logits [N, num_outputs] of `rows`.
    """
    wide, before = loaded.model.adapter(), loaded.outputs(rows)
    tried: list[tuple[Collapse, Adapter]] = []
    for method in get_args(CollapseMethod):
        single = collapse(wide, loaded.model.plm, method)
        loaded.use(single)
        after = loaded.outputs(rows)
        distance = float(np.linalg.norm(after - before) / np.linalg.norm(before))
        tried.append((Collapse(method, score_of(after), distance), single))
    best, single = max(tried, key=lambda one: one[0].score)
    loaded.use(single)
    return best
