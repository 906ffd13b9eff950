"""The driver's CPU time for an evaluation, in sweeps of ever more trials.

    python -m benchmarks.scheduling [--trials 100 1000 10000] [--repeats 3]

Driver, searcher, event log and ASHA are the real ones, on the virtual cluster of `sweep
simulate`: only time and training are made up. Tracking is the real TrackingWriter with its retry
queue and its writing thread, before an MLflow client that answers at once and keeps nothing, a
stand-in: what a store takes for a write is the store's affair, and no trial waits for it. CPU time
of all threads. The `random` sampler, since TPE's model is made of all trials before, and so grows
with them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from orchestrator.planning.curves import Synthetic
from orchestrator.planning.simulation import VirtualCluster, simulate
from orchestrator.spec.config import load_sweep
from orchestrator.spec.outcome import Outcome
from orchestrator.tracking.provenance import commit
from orchestrator.tracking.writer import TrackingWriter

EVALUATIONS = 20


class NoClient:
    """Stands in for MLflow's client."""

    def create_run(self, *args: Any, **rest: Any) -> Any:
        """A run that nobody keeps."""
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **rest: None


def scheduling(trials: int) -> float:
    """Milliseconds an evaluation."""
    changes = {"search.trials": trials, "search.sampler": "random", "task": "sst2"}
    sweep = load_sweep("minilm", changes)
    begin = time.process_time()
    cluster = VirtualCluster(nodes=10)
    found = simulate(sweep, Synthetic(sweep.space, EVALUATIONS), cluster, EVALUATIONS)
    return 1000 * (time.process_time() - begin) / found.evaluations


def tracking(trials: int) -> float:
    """Milliseconds an evaluation, of trials with four each."""
    sweep = load_sweep("minilm", {"task": "sst2"})
    with TemporaryDirectory() as folder:
        tracker = TrackingWriter.open(Path(folder))
        tracker.start_sweep(name="s", task="t", plm="p", protocol="paper", config={}, tags={})
        tracker.client = NoClient()  # type: ignore[assignment]
        tracker._runs = lambda *args: []  # type: ignore[method-assign,assignment,misc]
        begin = time.process_time()
        for number in range(trials):
            name = f"search_{number}"
            tracker.start_trial(name, config=sweep.train, params={"seed": number}, tags={})
            for evaluation in range(1, 5):
                numbers = {"score": 0.5, "best_score": 0.5, "train_loss": 0.1, "lr": 1e-3}
                tracker.log_evaluation(name, {"evaluation": evaluation, **numbers})
            tracker.end_trial(name, Outcome.COMPLETED)
        tracker.settle(600)
        return 1000 * (time.process_time() - begin) / (4 * trials)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    print(f"CPU ms an evaluation, median of {chosen.repeats}, commit {commit()}")
    for what in (scheduling, tracking):
        found = {
            trials: statistics.median(what(trials) for _ in range(chosen.repeats))
            for trials in chosen.trials
        }
        first = next(iter(found.values()))
        words = ", ".join(f"{n:,}: {ms:.3f} ({ms / first:.2f} x)" for n, ms in found.items())
        print(f"{what.__name__:10} {words}")


if __name__ == "__main__":
    main()
