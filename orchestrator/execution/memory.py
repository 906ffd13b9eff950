"""Which micro-batches a device has room for: learnt from trials that ran out of memory.

Half the rows a pass and twice the passes is the same mathematics, so running out of memory costs a
trial one interval between evaluations and later trials nothing.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import psutil
import torch

from tinyattn.config import TrainConfig
from tinyattn.files.outside import read_notes

FILE = "memory.jsonl"
"""In the checkpoint store's notes: one line a micro-batch that did not fit."""
_THREAD_BYTES = 2**25
"""Room for a thread's stack and first words."""


def device_name() -> str:
    """The kind of device that this process computes on."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return f"{properties.name} {properties.total_memory / 2**30:.0f} GiB"
    return f"{psutil.virtual_memory().total / 2**30:.0f} GiB of main memory"


def rows_that_fit(config: TrainConfig, path: Path, device: str | None = None) -> int:
    """The rows of a micro-batch that this trial should use, as far as is known.

    Args:
        config: the trial; it asks for `micro_batch_size`, or for whole batches.
        path: the file of a checkpoint store's notes; it may not be there.
        device: kind of device; None: this process's.
    """
    asked = config.micro_batch_size or config.batch_size
    key = _key(config, device)
    too_many = [size for known, size in _known(path) if known == key]
    while asked > 1 and any(asked >= size for size in too_many):
        asked //= 2
    return asked


def note_too_many(config: TrainConfig, rows: int, path: Path) -> None:
    """Remember that `rows` a pass did not fit here; a full disk is no reason to stop."""
    line = json.dumps([_key(config, None), rows]) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())  # one write: lines of several workers never mix
        finally:
            os.close(descriptor)
    except OSError:
        return


def is_room_for_a_thread() -> bool:
    """Whether a thread can be started: Python waits for ever for one without memory to begin."""
    try:
        mmap.mmap(-1, _THREAD_BYTES).close()
    except OSError:
        return False
    return True


def _key(config: TrainConfig, device: str | None) -> str:
    """What decides how much memory a row takes; adapters are small beside the PLM."""
    top = "" if config.adapter.layers in ("all", "none") else f" layers {config.adapter.layers}"
    split = " zero 3" if config.zero_stage == 3 else ""
    rows = f"{config.plm} {config.precision} {config.max_length}{top}{split}"
    return f"{rows} on {device or device_name()}"


def _known(path: Path) -> list[tuple[str, int]]:
    found = []
    for line in read_notes(path):
        match line:
            case [str(key), int(rows)]:
                found.append((key, rows))
    return found
