"""`resources.packed=auto`: how many trials share a process, measured where they will run.

The figures are kept in the notes of the runs folder, for this kind of trial on machines of this
kind, so that a resumed sweep and the next one start at once.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import ray
from ray.exceptions import RayError

from orchestrator.batch import Batch, Bench
from orchestrator.config import AUTO, Resources
from orchestrator.nodes import alive, concurrency, size_of
from tinyattn.config import TrainConfig

FILE = "packing.jsonl"
MOST = 16
"""Trials that are tried together at most."""
_ROUNDS = 3
"""Rounds that a batch has at least: trials that start together learn nothing from each other."""


def settled(batch: Batch, bench: Bench) -> tuple[Batch, str | None]:
    """Put a number in the place of `auto`; Ray must be running.

    Returns:
        The batch, and words on what was found; None where nothing was asked.
    """
    if batch.resources.packed != AUTO:
        return batch, None
    number, seconds = 1, {1: 0.0}
    one = batch.resources.model_copy(update={"packed": 1})
    most = min(MOST, batch.trials // (_ROUNDS * concurrency(one)))
    if most > 1:
        number, seconds = _best(bench, one, most)
    resources = batch.resources.model_copy(update={"packed": number})
    if number == 1:
        words = "every trial has a process of its own: sharing one brings nothing here"
    else:
        gain = seconds[1] / seconds[number]
        words = f"{number} trials share a process: {gain:.2f} times the steps a second"
    return replace(batch, resources=resources), words


def _best(bench: Bench, one: Resources, most: int) -> tuple[int, dict[int, float]]:
    """The number of trials that should share a process, and seconds of a step by number."""
    from tinyattn.probe import best_number

    path, key = bench.depot.notes / FILE, _key(bench.base, one)
    seconds = _known(path, key)
    if not seconds:
        task = _measured.options(num_cpus=one.cpus, num_gpus=one.gpus)
        try:
            seconds = ray.get(task.remote(bench, one, MOST))
        except RayError:  # trials can do without, and say better what is wrong
            return 1, {}
        with contextlib.suppress(OSError), path.open("a") as file:  # a full disk is no reason
            file.write(json.dumps([key, list(seconds.items())]) + "\n")
    seconds = {count: value for count, value in seconds.items() if count <= most}
    return best_number(seconds), seconds


@ray.remote(max_calls=1)
def _measured(bench: Bench, one: Resources, most: int) -> dict[int, float]:
    """In a process of its own, with what a trial's process has."""
    import torch

    from tinyattn.probe import step_seconds
    from tinyattn.workshop import Workshop

    torch.set_num_threads(max(1, int(one.cpus)))
    return step_seconds(bench.base, Workshop(bench.data_dir), most)


def _key(config: TrainConfig, one: Resources) -> str:
    """What decides how much sharing brings."""
    sizes = sorted({size_of(node) for node in alive(ray.nodes)})
    rows = f"{config.plm} {config.precision} {config.task} {config.batch_size} {config.max_length}"
    return f"{rows} {config.adapter} on {sizes} {one.cpus} {one.gpus}"


def _known(path: Path, key: str) -> dict[int, float]:
    with contextlib.suppress(OSError):
        for line in path.read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError):  # torn by a crash
                known, seconds = json.loads(line)
                if known == key:
                    return {int(count): float(value) for count, value in seconds}
    return {}
