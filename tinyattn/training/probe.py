"""Measurement of how many trials should share a process, by a few steps with 1, 2, 4, ... trials.

Shared passes save the cost of a pass that does not depend on its rows: kernel launches on a GPU,
calls of small operations on a CPU. With large batches that is little, and trials are faster alone.
"""

from __future__ import annotations

import contextlib
import threading
import time

import torch

from tinyattn.config import TrainConfig
from tinyattn.errors import OutOfMemoryError
from tinyattn.training.model_cache import ModelCache
from tinyattn.training.out_of_memory import out_of_memory_is_an_error
from tinyattn.training.trainer import Trainer

WORTH = 0.95
"""More trials share a process only if a step then takes at most this fraction of the time."""
_LEAST_SECONDS, _LEAST_STEPS, _TIMES = 0.5, 2, 3
"""Least seconds and steps of a measurement of one trial; how often each number is measured."""
_FEW_STEPS = 8
"""Least steps of each trial in a measurement, so that slow first steps weigh little."""


def step_seconds(config: TrainConfig, model_cache: ModelCache, most: int) -> dict[int, float]:
    """Measure the time of a step per trial if 1, 2, 4, ... trials share a process.

    Args:
        config: the config of all trials; their seeds differ.
        model_cache: the cache of this process.
        most: largest number of trials.

    Returns:
        {number of trials: seconds of a step per trial}, up to the second number in a row without a
        gain, or to where memory runs out.
    """
    found: dict[int, float] = {}
    steps, count, in_vain = 0, 1, 0
    while count <= most:
        try:
            with out_of_memory_is_an_error(config), contextlib.ExitStack() as stack:
                trainers = [
                    stack.enter_context(contextlib.closing(Trainer(trial, model_cache)))
                    for trial in (config.with_overrides({"seed": n}) for n in range(count))
                ]
                side_by_side(trainers, 1)  # untimed: the first step allocates and compiles
                if not trainers[0].trains:  # steps that take no time
                    return found
                steps = steps or _enough(trainers)
                own = max(min(steps, _FEW_STEPS), steps // count)  # in all as many as of one trial
                found[count] = min(side_by_side(trainers, own) for _ in range(_TIMES)) / own / count
        except OutOfMemoryError:
            return found
        in_vain = 0 if best_number(found) == count else in_vain + 1
        if in_vain == 2:
            return found
        count *= 2
    return found


def best_number(seconds: dict[int, float]) -> int:
    """Return the best number of trials from the result of `step_seconds`; 1 if that is empty."""
    best = 1
    for count, one in seconds.items():
        if one <= WORTH * seconds[best]:
            best = count
    return best


def _enough(trainers: list[Trainer]) -> int:
    """Return a number of steps that takes long enough to be timed."""
    steps = _LEAST_STEPS
    while side_by_side(trainers, steps) < _LEAST_SECONDS:
        steps *= 2
    return steps


def side_by_side(trainers: list[Trainer], steps: int) -> float:
    """Let all trainers take `steps` steps at the same time; return the seconds that it took."""
    errors: list[BaseException] = []

    def run(trainer: Trainer) -> None:
        try:
            trainer.take_steps(steps)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(trainer,)) for trainer in trainers]
    # On one core CPU time leaves out other processes' work. A GPU's work is not in it, and several
    # cores' times would add up, so there it is wall time.
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
