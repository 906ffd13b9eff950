"""How many trials should share a process: found out by taking a few steps with ever more of them.

Shared passes save what a pass costs beside its rows: launches on a GPU, the calls of small
operations on a CPU. Large batches have little of that, and their trials are better off alone.
"""

from __future__ import annotations

import contextlib
import threading
import time

import torch

from tinyattn.config import TrainConfig
from tinyattn.errors import OutOfMemoryError
from tinyattn.trainer import Trainer, out_of_memory_is_an_error
from tinyattn.workshop import Workshop

WORTH = 0.95
"""A step must fall to this before more trials share: they also wait for each other."""
_LEAST_SECONDS, _LEAST_STEPS, _TIMES = 0.5, 2, 3
_FEW_STEPS = 8
"""Of each trial of a measurement: beside fewer, what the first ones cost would weigh too much."""


def step_seconds(config: TrainConfig, workshop: Workshop, most: int) -> dict[int, float]:
    """Time one trial's step where 1, 2, 4, ... trials share a process.

    Args:
        config: what the trials have in common; their seeds differ.
        workshop: of the process to measure in.
        most: trials at most.

    Returns:
        Seconds of a step by number of trials, until two numbers in a row bring nothing.
    """
    found: dict[int, float] = {}
    steps, count, in_vain = 0, 1, 0
    while count <= most:
        try:
            with out_of_memory_is_an_error(config), contextlib.ExitStack() as stack:
                trainers = [
                    stack.enter_context(contextlib.closing(Trainer(trial, workshop)))
                    for trial in (config.with_overrides({"seed": n}) for n in range(count))
                ]
                side_by_side(trainers, 1)  # what is allocated and compiled once
                steps = steps or _enough(trainers)
                own = max(min(steps, _FEW_STEPS), steps // count)  # as many in all, if not too few
                found[count] = min(side_by_side(trainers, own) for _ in range(_TIMES)) / own / count
        except OutOfMemoryError:
            return found
        in_vain = 0 if best_number(found) == count else in_vain + 1
        if in_vain == 2:
            return found
        count *= 2
    return found


def best_number(seconds: dict[int, float]) -> int:
    """The number of trials to share a process, of what `step_seconds` found; 1 where none fits."""
    best = 1
    for count, one in seconds.items():
        if one <= WORTH * seconds[best]:
            best = count
    return best


def _enough(trainers: list[Trainer]) -> int:
    """Steps that take long enough to be timed."""
    steps = _LEAST_STEPS
    while side_by_side(trainers, steps) < _LEAST_SECONDS:
        steps *= 2
    return steps


def side_by_side(trainers: list[Trainer], steps: int) -> float:
    """Let all take so many steps side by side; return the seconds."""
    errors: list[BaseException] = []

    def run(trainer: Trainer) -> None:
        try:
            trainer.take_steps(steps)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(trainer,)) for trainer in trainers]
    # Other work on the core must not decide. A GPU's time, and that of several cores, is no sum.
    one_core = trainers[0].device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if one_core else time.perf_counter
    begin = clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if errors:
        raise errors[0]
    return clock() - begin
