"""CUDA graphs, a rival on GPUs: a single trial whose whole step is one graph.

A graph replays recorded kernel launches on the same memory, so that nothing waits for launches. Its
shapes are fixed: a batch is padded to a multiple of BUCKET tokens, and each length has a graph of
its own. Capturing the graphs is not timed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.steps import Bench, TakeSteps, Way
from tinyattn.batching.batches import Batches
from tinyattn.training.trainer import row_losses

BUCKET = 32
"""A batch's length is a multiple of this number of tokens."""
WARM = 3
"""Steps before a capture: what libraries set up in their first ones cannot be captured."""


@dataclass(frozen=True)
class Captured:
    """A step on batches of one shape: where it reads them, and where it leaves the loss."""

    graph: torch.cuda.CUDAGraph
    batch: dict[str, Tensor]
    loss: Tensor


class GraphedSteps:
    """Takes training steps, on a GPU as graphs."""

    def __init__(
        self, model: nn.Module, parameters: Iterable[nn.Parameter], rows: Batches, lr: float
    ) -> None:
        """Start without graphs.

        Args:
            model: gives logits of a padded batch.
            parameters: what is trained.
            rows: to draw batches from.
            lr: learning rate.
        """
        self.model, self.rows = model, rows
        trained = list(parameters)
        self.device = trained[0].device
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(trained, lr=lr, fused=True, capturable=on_gpu)
        self._captured: dict[torch.Size, Captured] = {}

    def __call__(self, indices: np.ndarray) -> Tensor:
        """Take a step on these rows; the first ones of a shape are taken WARM times more.

        Returns:
            Their mean loss before it (and after those), valid until the next call.
        """
        batch = self._padded(indices)
        if self.device.type != "cuda":
            return self._step(batch)
        shape = batch["input_ids"].shape
        if shape not in self._captured:
            self._captured[shape] = self._capture(batch)
        found = self._captured[shape]
        for name, values in batch.items():
            found.batch[name].copy_(values, non_blocking=True)
        found.graph.replay()
        return found.loss

    def _padded(self, indices: np.ndarray) -> dict[str, Tensor]:
        batch = self.rows.batch(indices)
        labels = batch.pop("labels")
        wide = -batch["input_ids"].shape[1] % BUCKET
        return {"labels": labels} | {key: F.pad(value, (0, wide)) for key, value in batch.items()}

    def _step(self, batch: dict[str, Tensor]) -> Tensor:
        self.optimizer.zero_grad()
        logits = self.model(**{key: value for key, value in batch.items() if key != "labels"})
        loss = row_losses(logits, batch["labels"]).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _capture(self, given: dict[str, Tensor]) -> Captured:
        batch = {name: values.to(self.device) for name, values in given.items()}
        aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
            for _ in range(WARM):
                self._step(batch)
        torch.cuda.current_stream().wait_stream(aside)
        # What other threads do, as those of collectives, is not part of it.
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            loss = self._step(batch)  # its gradients are new ones, in the graph's own memory
        return Captured(graph, batch, loss)


def graphed(bench: Bench, steps: int) -> Way:
    """A lone trial's steps as graphs; those of the first batches are captured now.

    A process in which that fails had best be left.
    """
    with bench.plain() as (model, adapter):
        take_step = GraphedSteps(model, adapter.parameters(), bench.rows, lr=1e-3)
        for indices in bench.batches[:steps]:
            take_step(indices)  # a graph that is there runs without the model's hooks

    @contextlib.contextmanager
    def prepared() -> Iterator[TakeSteps]:
        def take_steps(count: int) -> None:
            for indices in bench.batches[:count]:
                take_step(indices)

        yield take_steps

    return Way(prepared)
