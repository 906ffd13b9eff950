"""A rival on GPUs: a lone trial whose whole step is one CUDA graph.

A graph replays what was launched once, on the same memory, so that nothing waits for launches. Its
shapes are fixed: a batch is padded to a multiple of BUCKET tokens, and each such length has a graph
of its own. Beside it stand our lone trial and trials that share passes, as in `benchmarks.speed`;
to capture the graphs is not counted.

    TINYATTN_DATA=... python -m benchmarks.graphs [--tasks sst2 rte] [--repeats 5] [--json FILE]
                                                  [--plm shape:roberta-base]

It is a program of its own, since a process whose capture failed had best be left.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed import GPU, PACKED, Bench, Way, interleaved, now, shaped, table
from orchestrator.provenance import commit
from tinyattn.batches import Batches
from tinyattn.trainer import row_losses
from tinyattn.workshop import Workshop

BATCH, BUCKET = 16, 32
"""Rows of a batch; tokens that its length is a multiple of."""
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
        with torch.cuda.graph(graph, stream=aside):
            loss = self._step(batch)  # its gradients are new ones, in the graph's own memory
        return Captured(graph, batch, loss)


def ways(bench: Bench) -> dict[str, Way]:
    """What takes the steps of one trial, by name."""
    with bench.plain() as (model, adapter):
        take_step = GraphedSteps(model, adapter.parameters(), bench.rows, lr=1e-3)
        for indices in bench.batches:
            take_step(indices)  # a graph that is there runs without the model's hooks

    def graphs() -> float:
        begin = now()
        for indices in bench.batches:
            take_step(indices)
        return (now() - begin) / bench.steps

    packed = {f"packed {k}": functools.partial(bench.trials, k) for k in PACKED[bench.batch]}
    return {"solo": functools.partial(bench.trials, 1), "graphs": graphs, **packed}


def main() -> int:
    """Measure, print tables, keep JSON; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["sst2", "rte"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plm", default="shape:roberta-base")
    parser.add_argument("--json", type=Path, default=Path("runs/bench/graphs.json"))
    chosen = parser.parse_args()
    if not GPU:
        print("CUDA graphs need a CUDA device, and there is none", file=sys.stderr)
        return 2
    rng, workshop, plm = np.random.default_rng(0), Workshop(), shaped(chosen.plm)
    found: dict[str, Any] = {"commit": commit()}
    for task in chosen.tasks:
        times = interleaved(ways(Bench(workshop, task, BATCH, plm)), chosen.repeats, rng)
        found[task] = table(f"{task}, batch {BATCH}: wall time of a trial's step", times, "graphs")
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
