"""Trial-steps per second of this whole machine, in wall time, by each way of using it.

    recipe        the recipe as its users run it: one process, threads as torch chooses
    recipe x N    N processes of it, one thread each
    solo x N      ours: N processes, one trial in each
    packed K x N  ours: N processes, K trials in each
    ... bf16      the same with the PLM in bf16; adapters stay in fp32

On CPUs N is the number of cores; on a GPU, where all is bf16, N processes share it.

What each way computes is told in `benchmarks.speed`. All processes of a way are ready before its
clock starts, and it stops when the last has done its steps. Each repeat measures every way once, in
an order drawn anew, on the same uniformly random batches of real rows.

    TINYATTN_DATA=... python -m benchmarks.throughput [--tasks sst2 rte] [--repeats 5]
                                                      [--plm minilm]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.speed import GPU, PACKED, Bench, shaped
from orchestrator.provenance import commit
from tinyattn.workshop import Workshop

BATCH = 16
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Way:
    """What each of some processes does."""

    processes: int
    threads: int
    trials: int = 1
    """That share the process; 0: the recipe, without any of ours."""
    precision: str = "fp32"


def ways() -> dict[str, Way]:
    """By name."""
    if GPU:
        alone = {f"solo x {n}": Way(n, 1, precision="bf16") for n in (1, 2, 4)}
        packed = {f"packed {k}": Way(1, 1, k, "bf16") for k in PACKED[BATCH]}
        return {"recipe": Way(1, 1, 0, "bf16"), **alone, **packed}
    k = PACKED[BATCH][-1]
    return {
        "recipe": Way(1, CORES, 0),
        f"recipe x {CORES}": Way(CORES, 1, 0),
        f"solo x {CORES}": Way(CORES, 1),
        f"solo x {CORES} bf16": Way(CORES, 1, precision="bf16"),
        f"packed {k} x {CORES}": Way(CORES, 1, k),
        f"packed {k} x {CORES} bf16": Way(CORES, 1, k, "bf16"),
    }


def work(pipe: Connection, task: str, threads: int, plm: str) -> None:
    """A process that measures what it is told, until it is told nothing."""
    torch.set_num_threads(threads)
    bench = Bench(Workshop(), task, BATCH, plm)
    pipe.send("ready")
    while (way := pipe.recv()) is not None:
        ours = bench.side_by_side(way.trials, precision=way.precision)
        with ours if way.trials else bench.as_the_recipe() as take_steps:
            take_steps(1)
            pipe.send("ready")
            pipe.recv()
            take_steps(bench.steps)
        pipe.send(bench.steps * max(1, way.trials))


class Crew:
    """Processes that work side by side."""

    def __init__(self, task: str, processes: int, threads: int, plm: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(theirs, task, threads, plm), daemon=True).start()
            self.pipes.append(ours)
        self._all()

    def _all(self) -> list[Any]:
        return [pipe.recv() for pipe in self.pipes]

    def per_second(self, way: Way) -> float:
        """Trial-steps a second of all together."""
        for pipe in self.pipes:
            pipe.send(way)
        self._all()
        begin = time.perf_counter()
        for pipe in self.pipes:
            pipe.send("go")
        steps = sum(self._all())
        return steps / (time.perf_counter() - begin)

    def end(self) -> None:
        """Let them go."""
        for pipe in self.pipes:
            pipe.send(None)


def measure(task: str, repeats: int, plm: str) -> dict[str, list[float]]:
    """Trial-steps a second of each way in each repeat, after one run of each that is not kept."""
    tried = ways()
    sizes = {(way.processes, way.threads) for way in tried.values()}
    crews = {size: Crew(task, *size, plm) for size in sizes}
    found: dict[str, list[float]] = {name: [] for name in tried}
    rng = np.random.default_rng(0)
    for repeat in range(repeats + 1):
        for name in rng.permutation(list(tried)):
            way = tried[name]
            rate = crews[way.processes, way.threads].per_second(way)
            if repeat:
                found[name].append(rate)
    for crew in crews.values():
        crew.end()
    return found


def main() -> None:
    """Measure, print tables, keep JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["sst2", "rte"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plm", default="minilm")
    parser.add_argument("--json", type=Path, default=Path("runs/bench/throughput.json"))
    chosen = parser.parse_args()
    found: dict[str, Any] = {"commit": commit(), "cores": CORES}
    plm = shaped(chosen.plm)
    for task in chosen.tasks:
        found[task] = measure(task, chosen.repeats, plm)
        print(f"\n{task}, batch {BATCH}, {CORES} cores: trial-steps a second")
        print(f"{'':18}{'median':>9}{'lowest-highest':>18}{'÷ recipe':>10}")
        base = statistics.median(found[task]["recipe"])
        for name, rates in found[task].items():
            middle, spread = statistics.median(rates), f"{min(rates):.1f}-{max(rates):.1f}"
            print(f"{name:18}{middle:9.1f}{spread:>18}{middle / base:10.2f}", flush=True)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1))
    print(f"commit {found['commit']}; figures are in {chosen.json}")


if __name__ == "__main__":
    main()
