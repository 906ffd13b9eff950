"""The processes of one trial: each trains on its share of every batch, DeepSpeed adds gradients.

One process is the usual case, and then nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
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
    store: dist.Store | None = None
    """Where the processes find each other, as a FileStore in a folder that only they can read;
    None: there is one alone. A TCPStore would serve whoever reaches its port, on all interfaces."""

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


def use_interface_of(address: str) -> None:
    """Have gloo and NCCL listen on this machine's interface with that address, and on no other.

    Left to themselves they may choose loopback where the other processes are elsewhere, and an
    interface that others reach where all are here.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
