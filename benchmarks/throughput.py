"""Trial-steps per second of this whole machine, in wall time, by each way of using its cores.

    recipe        the recipe as its users run it: one process, threads as torch chooses
    recipe, N     a process of it on each core, one thread each
    solo          ours: a process on each core, one trial in each
    packed K      ours: a process on each core, K trials in each
    ... bf16      the same with the PLM in bf16; adapters stay in fp32

What each way computes is told in `benchmarks.speed`. All processes of a way are ready before its
clock starts, and it stops when the last has done its steps. Each repeat measures every way once, in
an order drawn anew, on the same uniformly random batches of real rows.

    TINYATTN_DATA=... python -m benchmarks.throughput [--tasks sst2 rte] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.speed import PACKED, Bench
from orchestrator.provenance import commit
from tinyattn.workshop import Workshop

BATCH = 16
CORES = len(os.sched_getaffinity(0))


def work(pipe: Connection, task: str, threads: int) -> None:
    """A process that measures what it is told, until it is told nothing."""
    torch.set_num_threads(threads)
    bench = Bench(Workshop(), task, BATCH)
    ways: dict[str, tuple[Callable[[], float], int]] = {
        "recipe": (bench.recipe, 1),
        "solo": (lambda: bench.trials(1), 1),
        "solo bf16": (lambda: bench.trials(1, precision="bf16"), 1),
        "packed": (lambda: bench.trials(PACKED[BATCH]), PACKED[BATCH]),
        "packed bf16": (lambda: bench.trials(PACKED[BATCH], precision="bf16"), PACKED[BATCH]),
    }
    pipe.send("ready")
    while (name := pipe.recv()) is not None:
        run, trials = ways[name]
        run()
        pipe.send(bench.steps * trials)


class Crew:
    """Processes that work side by side."""

    def __init__(self, task: str, processes: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(theirs, task, threads), daemon=True).start()
            self.pipes.append(ours)
        self._all()

    def _all(self) -> list[Any]:
        return [pipe.recv() for pipe in self.pipes]

    def per_second(self, name: str) -> float:
        """Trial-steps a second of all together."""
        begin = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(name)
        steps = sum(self._all())
        return steps / (time.perf_counter() - begin)

    def end(self) -> None:
        """Let them go."""
        for pipe in self.pipes:
            pipe.send(None)


def measure(task: str, repeats: int) -> dict[str, list[float]]:
    """Trial-steps a second of each way in each repeat, after one run of each that is not kept."""
    whole, single = Crew(task, 1, CORES), Crew(task, CORES, 1)
    ways: dict[str, Callable[[], float]] = {
        "recipe": lambda: whole.per_second("recipe"),
        f"recipe, {CORES}": lambda: single.per_second("recipe"),
        "solo": lambda: single.per_second("solo"),
        "solo bf16": lambda: single.per_second("solo bf16"),
        f"packed {PACKED[BATCH]}": lambda: single.per_second("packed"),
        f"packed {PACKED[BATCH]} bf16": lambda: single.per_second("packed bf16"),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    rng = np.random.default_rng(0)
    for repeat in range(repeats + 1):
        for name in rng.permutation(list(ways)):
            rate = ways[name]()
            if repeat:
                found[name].append(rate)
    whole.end()
    single.end()
    return found


def main() -> None:
    """Measure, print tables, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["sst2", "rte"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("runs/bench/throughput.json"))
    chosen = parser.parse_args()
    found: dict[str, Any] = {"commit": commit(), "cores": CORES}
    for task in chosen.tasks:
        found[task] = measure(task, chosen.repeats)
        print(f"\n{task}, batch {BATCH}, {CORES} cores: trial-steps a second")
        print(f"{'':14}{'median':>9}{'lowest-highest':>18}{'÷ recipe':>10}")
        base = statistics.median(found[task]["recipe"])
        for name, rates in found[task].items():
            middle, spread = statistics.median(rates), f"{min(rates):.1f}-{max(rates):.1f}"
            print(f"{name:14}{middle:9.1f}{spread:>18}{middle / base:10.2f}", flush=True)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1))
    print(f"commit {found['commit']}; figures are in {chosen.json}")


if __name__ == "__main__":
    main()
