"""`resources.packed=auto`: how many trials share a process, measured where they will run.

All machines of a sweep have the same number, so it is measured on one of each kind, and the one
taken is the best for all together. The figures are kept in the notes of the runs folder, for this
kind of trial on that kind of machine: a resumed sweep and the next one start at once, unless a kind
came to no figures. Then the others' decide.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.driver.context import Stop, TrialContext
from orchestrator.execution.nodes import (
    alive,
    concurrency,
    kind_of,
    nodes_of_ray,
    refuse_dead_ray,
    size_of,
)
from orchestrator.spec.batch import TrialBatch
from orchestrator.spec.config import AUTO, Resources
from orchestrator.state.requests import requested
from orchestrator.state.workspace import STOP_ALL
from tinyattn.config import TrainConfig
from tinyattn.errors import TinyAttnError
from tinyattn.files.outside import read_notes
from tinyattn.plugins import load_all

FILE = "packing.jsonl"
MOST = 16
"""Trials that are tried together at most."""
PATIENCE_SECONDS = 180.0
"""For the measurement; other sweeps may have all cores."""
_ROUNDS = 3
"""Trials that run at once learn nothing from each other: at most a third of those that are left."""
_FEW, _FIRST = 12, 10
"""In a search of so few the first ten may: it loses nothing by that (simulated; one of 16 does)."""


def settled(
    batch: TrialBatch,
    context: TrialContext,
    begun: int,
    left: int,
    stop: Stop,
    say: Callable[[str], None],
) -> tuple[TrialBatch, str | None]:
    """Put a number in the place of `auto`; Ray must be running.

    Args:
        batch: whose trials share processes.
        context: what they have in common.
        begun: trials that were drawn before.
        left: trials that have not ended.
        stop: whether to give up; `sweep stop` is heard too.
        say: is told when a measurement begins.

    Returns:
        The batch, and words on what was found; None where nothing was asked.

    Raises:
        KeyboardInterrupt: `stop` was asked for.
    """
    if batch.resources.packed != AUTO:
        return batch, None
    number, words = _found(batch, context, begun, left, stop, say)
    resources = batch.resources.model_copy(update={"packed": number})
    return replace(batch, resources=resources), words


def _found(
    batch: TrialBatch,
    context: TrialContext,
    begun: int,
    left: int,
    stop: Stop,
    say: Callable[[str], None],
) -> tuple[int, str]:
    """The number of trials that should share a process, and why."""
    from tinyattn.training.probe import best_number

    alone = "every trial has a process of its own"
    if context.base.plm_dropout:
        return 1, f"{alone}: with plm_dropout they cannot share passes"
    one = batch.resources.model_copy(update={"packed": 1})
    processes = concurrency(one)
    first = min(left, _FIRST - begun) if batch.trials <= _FEW else 0
    at_once = min(max(left // _ROUNDS, first), one.concurrent or math.inf)
    most = min(MOST, at_once // processes)
    if most < 2:
        return 1, f"{alone}: for sharing, {left} trials are few beside {processes} at once"
    try:
        seconds = _known_or_measured(context, one, stop, say)
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


def _known_or_measured(
    context: TrialContext, one: Resources, stop: Stop, say: Callable[[str], None]
) -> dict[int, float]:
    """Seconds of a trial's step, by trials that share a process, on all machines together."""
    machines = [node for node in alive(nodes_of_ray) if one.processes_on(*size_of(node))]
    path = context.checkpoints.notes / FILE
    keys = {node["NodeID"]: _key(context, one, kind_of(node)) for node in machines}
    known = {key: _known(path, key) for key in keys.values()}
    missing = {key: node for node, key in keys.items() if not known[key]}
    if missing:
        where = "this machine" if len(machines) == 1 else f"{len(missing)} of the machines"
        say(f"measuring on {where} how many trials should share a process (some 20 s)")
        measured: dict[str, dict[int, float]] = {}
        try:
            measured = _measure(context, one, list(missing.values()), stop)
        except (RayError, TinyAttnError):
            if not any(known.values()):
                raise
        known |= {key: measured.get(node, {}) for key, node in missing.items()}
        _note(path, {key: known[key] for key in missing})
    found = [(known[keys[node["NodeID"]]], one.processes_on(*size_of(node))) for node in machines]
    # A kind without figures is too small for a trial, busy or broken: the others decide.
    return _together([(seconds, processes) for seconds, processes in found if seconds])


def _together(machines: Sequence[tuple[Mapping[int, float], int]]) -> dict[int, float]:
    """Seconds of a trial's step if all machines were one, for the numbers that all have tried.

    Args:
        machines: seconds by trials that share a process, and the number of processes, of each.

    Raises:
        TinyAttnError: there is none.
    """
    if not machines:
        raise TinyAttnError("no machine came to figures")
    counts = set[int].intersection(*({*seconds} for seconds, _ in machines))
    return {
        count: 1 / sum(processes / seconds[count] for seconds, processes in machines)
        for count in sorted(counts)
    }


def _measure(
    context: TrialContext, one: Resources, nodes: Sequence[str], stop: Stop
) -> dict[str, dict[int, float]]:
    """What `step_seconds` finds on each of these nodes, as far as it comes to an end in time."""
    tasks = {
        _measured.options(
            num_cpus=one.cpus,
            num_gpus=one.gpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(context, one, MOST): node
        for node in nodes
    }
    until, found, errors = time.monotonic() + PATIENCE_SECONDS, {}, []
    while tasks and time.monotonic() < until:
        refuse_dead_ray()
        for task in ray.wait([*tasks], timeout=0.5)[0]:
            node = tasks.pop(task)
            try:
                found[node] = ray.get(task)
            except (RayError, TinyAttnError) as error:
                errors.append(error)
        if stop.asked or STOP_ALL in requested(context.checkpoints.folder):
            break
    for task in tasks:
        ray.cancel(task, force=True)
    if stop.asked or STOP_ALL in requested(context.checkpoints.folder):
        raise KeyboardInterrupt
    if not found:
        raise errors[0] if errors else TinyAttnError(f"it took more than {PATIENCE_SECONDS:.0f} s")
    return found


@ray.remote(max_calls=1, max_retries=0)
def _measured(context: TrialContext, one: Resources, most: int) -> dict[int, float]:
    """In a process of its own, with what a trial's process has."""
    import torch

    from tinyattn.training.model_cache import ModelCache
    from tinyattn.training.probe import step_seconds

    torch.set_num_threads(max(1, int(one.cpus)))
    load_all(context.plugins)
    return step_seconds(context.base, ModelCache(context.data_dir), most)


def _key(context: TrialContext, one: Resources, kind: str) -> str:
    """What decides how much sharing brings."""
    config: TrainConfig = context.base
    rows = f"{config.task} {config.max_length} {config.batch_size} {config.micro_batch_size}"
    plm = f"{config.plm} {context.fingerprints.get('plm_fingerprint')} {config.precision}"
    return f"{rows} {plm} {config.adapter} {one.cpus} {one.gpus} on {kind}"


def _note(path: Path, measured: Mapping[str, Mapping[int, float]]) -> None:
    with contextlib.suppress(OSError), path.open("a") as file:  # a full disk is no reason to stop
        for key, seconds in measured.items():
            if seconds:
                file.write(json.dumps([key, list(seconds.items())]) + "\n")


def _known(path: Path, key: str) -> dict[int, float]:
    for line in read_notes(path):
        match line:
            case [str(known), list(seconds)] if known == key:
                pairs = [pair for pair in seconds if isinstance(pair, list) and len(pair) == 2]
                return {c: s for c, s in pairs if isinstance(c, int) and isinstance(s, float)}
    return {}
