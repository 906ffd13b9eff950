"""Stopping against promoting ASHA, and neither, on the same synthetic curves and virtual cluster.

    python -m benchmarks.stopping --searches 20

For each landscape (a seed) and number of selection rows: how far the winner is, in truth, from the
best trial that was begun, and the evaluations that were computed, of all. Nothing is trained.
"""

from __future__ import annotations

import argparse
import statistics

from orchestrator.config import AshaConfig, Sweep, load_sweep
from orchestrator.curves import Synthetic
from orchestrator.simulate import Replay, VirtualCluster, simulate

MODES = ("stop", "promote", "none")


def search(sweep: Sweep, mode: str, rows: int, seed: int, evaluations: int) -> Replay:
    """One search with one rule."""
    asha = None if mode == "none" else AshaConfig(grace=2, reduction=3, mode=mode)
    settings = sweep.search.model_copy(update={"seed": seed})
    changed = sweep.model_copy(update={"asha": asha, "search": settings})
    curves = Synthetic(sweep.space, evaluations, rows, seed=seed)
    return simulate(changed, curves, VirtualCluster(nodes=2, slots=1), evaluations)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--sampler", default="random")
    chosen = parser.parse_args()
    overrides = {"search.trials": chosen.trials, "search.sampler": chosen.sampler}
    sweep = load_sweep("minilm", overrides)
    print("rows | rule | regret, points: mean, worst | best begun won | evaluations, of all")
    for rows in (277, 2000):
        for mode in MODES:
            runs = [
                search(sweep, mode, rows, seed, chosen.evaluations)
                for seed in range(chosen.searches)
            ]
            regrets = [100 * (run.best_truth - run.truth) for run in runs]
            won = sum(regret < 1e-9 for regret in regrets)
            share = statistics.mean(run.evaluations / run.whole for run in runs)
            print(
                f"{rows} | {mode} | {statistics.mean(regrets):.2f}, {max(regrets):.2f} | "
                f"{won}/{len(runs)} | {100 * share:.1f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()
