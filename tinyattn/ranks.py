"""The processes of one trial: each trains on its share of every batch, DeepSpeed adds gradients.

One process is the usual case, and then nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tinyattn.atomic import replace_folder


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among those of its trial."""

    rank: int = 0
    """0 writes files."""
    size: int = 1
    address: str = "127.0.0.1"
    """Of rank 0."""
    port: int = 0
    """Of rank 0; 0 with one process, where any free one will do."""

    @property
    def writes(self) -> bool:
        """Whether this process writes what belongs to all."""
        return self.rank == 0

    def share(self, rows: np.ndarray) -> np.ndarray:
        """This process's rows of a batch; together the shares are the batch."""
        return rows[self.rank :: self.size]

    def rows(self, rows: np.ndarray) -> int:
        """Number of rows of the largest share."""
        return -(-len(rows) // self.size)

    def add_up(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def add_up_array(self, values: np.ndarray, device: torch.device) -> np.ndarray:
        """The sum over all processes of an array on the host."""
        if self.size == 1:
            return values
        return self.add_up(torch.from_numpy(values).to(device)).cpu().numpy()

    def gather(self, value: Any) -> list[Any]:
        """What every process has, in the order of their ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    @contextmanager
    def one_folder(self, target: Path) -> Iterator[Path]:
        """`replace_folder` for all processes together: rank 0 makes and moves it."""
        if self.size == 1:
            with replace_folder(target) as fresh:
                yield fresh
        elif self.writes:
            with replace_folder(target) as fresh:
                self.gather(fresh)
                yield fresh
                self.gather(None)  # all have written
        else:
            yield self.gather(None)[0]
            self.gather(None)


ONE = Ranks()
"""A process by itself."""
