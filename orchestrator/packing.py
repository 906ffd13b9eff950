"""`resources.packed=auto`: how many trials share a process, measured where they will run.

The figures are kept in the notes of the runs folder, for this kind of trial on machines of this
kind, so that a resumed sweep and the next one start at once.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import ray
from ray.exceptions import RayError

from orchestrator.batch import Batch, Bench, Stop
from orchestrator.config import AUTO, Resources
from orchestrator.nodes import alive, concurrency, kind_of
from tinyattn.config import TrainConfig
from tinyattn.errors import TinyAttnError

FILE = "packing.jsonl"
MOST = 16
"""Trials that are tried together at most."""
PATIENCE_SECONDS = 180.0
"""For the measurement; other sweeps may have all cores."""
_ROUNDS = 3
"""Rounds that a batch has at least: trials that start together learn nothing from each other."""


def settled(batch: Batch, bench: Bench, left: int, stop: Stop) -> tuple[Batch, str | None]:
    """Put a number in the place of `auto`; Ray must be running.

    Args:
        batch: whose trials share processes.
        bench: what they have in common.
        left: trials that have not ended.
        stop: whether to give up.

    Returns:
        The batch, and words on what was found; None where nothing was asked.

    Raises:
        KeyboardInterrupt: `stop` was asked for.
    """
    if batch.resources.packed != AUTO:
        return batch, None
    number, words = _found(batch, bench, left, stop)
    resources = batch.resources.model_copy(update={"packed": number})
    return replace(batch, resources=resources), words


def _found(batch: Batch, bench: Bench, left: int, stop: Stop) -> tuple[int, str]:
    """The number of trials that should share a process, and why."""
    from tinyattn.probe import best_number

    alone = "every trial has a process of its own"
    if bench.base.plm_dropout:
        return 1, f"{alone}: with plm_dropout they cannot share passes"
    one = batch.resources.model_copy(update={"packed": 1})
    processes = concurrency(one)
    most = min(MOST, left // (_ROUNDS * processes), (one.concurrent or math.inf) // processes)
    if most < 2:
        return 1, f"{alone}: for sharing, {left} trials are few beside {processes} at once"
    try:
        seconds = _known_or_measured(bench, one, stop)
    except (RayError, TinyAttnError) as error:
        # Trials can do without, and say better what is wrong.
        reason = str(getattr(error, "cause", None) or error).strip().splitlines() or ["?"]
        return 1, f"{alone}: what sharing brings could not be measured ({reason[-1]})"
    seconds = {count: value for count, value in seconds.items() if count <= most}
    number = best_number(seconds)
    if number == 1:
        return 1, f"{alone}: sharing one brings nothing here"
    gain = seconds[1] / seconds[number]
    return number, f"{number} trials share a process: {gain:.2f} times the steps a second"


def _known_or_measured(bench: Bench, one: Resources, stop: Stop) -> dict[int, float]:
    """Seconds of a trial's step, by trials that share a process."""
    path, key = bench.depot.notes / FILE, _key(bench, one)
    seconds = _known(path, key)
    if seconds:
        return seconds
    task = _measured.options(num_cpus=one.cpus, num_gpus=one.gpus).remote(bench, one, MOST)
    until = time.monotonic() + PATIENCE_SECONDS
    while not ray.wait([task], timeout=0.5)[0]:
        if stop.asked or time.monotonic() > until:
            ray.cancel(task, force=True)
            if stop.asked:
                raise KeyboardInterrupt
            raise TinyAttnError(f"it took more than {PATIENCE_SECONDS:.0f} s")
    seconds = ray.get(task)
    with contextlib.suppress(OSError), path.open("a") as file:  # a full disk is no reason to stop
        file.write(json.dumps([key, list(seconds.items())]) + "\n")
    return seconds


@ray.remote(max_calls=1, max_retries=0)
def _measured(bench: Bench, one: Resources, most: int) -> dict[int, float]:
    """In a process of its own, with what a trial's process has."""
    import torch

    from tinyattn.probe import step_seconds
    from tinyattn.workshop import Workshop

    torch.set_num_threads(max(1, int(one.cpus)))
    return step_seconds(bench.base, Workshop(bench.data_dir), most)


def _key(bench: Bench, one: Resources) -> str:
    """What decides how much sharing brings."""
    config: TrainConfig = bench.base
    machines = sorted({kind_of(node) for node in alive(ray.nodes)})
    rows = f"{config.task} {config.max_length} {config.batch_size} {config.micro_batch_size}"
    plm = f"{config.plm} {bench.fingerprints.get('plm_fingerprint')} {config.precision}"
    return f"{rows} {plm} {config.adapter} {one.cpus} {one.gpus} on {machines}"


def _known(path: Path, key: str) -> dict[int, float]:
    with contextlib.suppress(OSError):
        for line in path.read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError):  # torn by a crash
                known, seconds = json.loads(line)
                if known == key:
                    return {int(count): float(value) for count, value in seconds}
    return {}
