"""Time of leaderboard, status and report with many trials, against ten trials.

    python -m benchmarks.many_trials --trials 2000 --pairs 3

Builds both stores in a temporary folder: the TrackingWriter writes one trial, and the others are
copies of its database rows with other scores. Then times `leaderboard`, `status` and `report` as
commands, on both stores in turn. Both times include the import of MLflow.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from orchestrator.spec.outcome import Outcome
from orchestrator.spec.result import Result
from orchestrator.tracking.writer import TrackingWriter
from tinyattn.config import TrainConfig

EVALUATIONS = 6
COPIED = ("runs", "tags", "params", "metrics", "latest_metrics")
VERBS = {
    "leaderboard": ["leaderboard"],
    "status": ["sweep", "status", "many"],
    "report": ["report", "many"],
}


def build(runs: Path, trials: int) -> None:
    """Write a store with one sweep, `many`, of `trials` trials."""
    tracker = TrackingWriter.open(runs)
    first = _one_trial(tracker)
    rng = random.Random(0)
    with sqlite3.connect(runs / "mlflow.db") as database:
        for number in range(2, trials + 1):
            _copy(database, first, uuid.UUID(int=rng.getrandbits(128)).hex, number, rng)


def _one_trial(tracker: TrackingWriter) -> str:
    space = {"optimizer.lr": {"type": "log_uniform"}, "optimizer.weight_decay": {"type": "choice"}}
    tracker.start_sweep(
        name="many", task="sst2", plm="minilm", protocol="heldout",
        tags={"primary_metric": "accuracy", "data_fingerprint": "0" * 16, "train_rows": "67349"},
        config={"name": "many", "space": space},
    )  # fmt: skip
    params = {"optimizer.lr": 1e-3, "optimizer.weight_decay": 0.01}
    config = TrainConfig(task="sst2", plm="minilm").with_overrides(params)
    tracker.start_trial("search_00001", config=config, params=params, tags={"identity": "1"})
    for index in range(1, EVALUATIONS + 1):
        tracker.log_evaluation(
            "search_00001",
            Result(
                evaluation=index, total=EVALUATIONS, epoch=index / 2, step=100 * index,
                score=0.5, best_score=0.5, train_loss=1 / index, lr=1e-3,
                seconds=10.0 * index, rows_per_second=50.0, metrics={"accuracy": 0.5},
                heldout={"accuracy": 0.5} if index == EVALUATIONS else {},
                adapter_params=12_296, classifier_params=770, peak_memory_mb=500.0,
            ),
        )  # fmt: skip
    tracker.end_trial("search_00001", Outcome.COMPLETED)
    tracker.end_sweep(Outcome.COMPLETED)
    tracker.settle(60)
    return tracker.run_of("search_00001")


def _copy(
    database: sqlite3.Connection, first: str, run_id: str, number: int, rng: random.Random
) -> None:
    """Copy all rows of a run under another id, with a name, scores and a learning rate."""
    for table in COPIED:
        columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
        chosen = ", ".join("?" if name == "run_uuid" else name for name in columns)
        query = f"insert into {table} select {chosen} from {table} where run_uuid = ?"
        database.execute(query, (run_id, first))
    name, rate = f"search_{number:05d}", 10 ** rng.uniform(-4, -2)
    searched = f'{{"optimizer.lr": {rate}, "optimizer.weight_decay": {rng.choice([0.01, 0.05])}}}'
    for key, value in (("trial", name), ("searched", searched)):
        query = "update tags set value = ? where run_uuid = ? and key = ?"
        database.execute(query, (value, run_id, f"tinyattn.{key}"))
    database.execute("update runs set name = ? where run_uuid = ?", (name, run_id))
    scores = [0.5 + 0.4 * (1 - 2.0**-step) * rng.random() for step in range(1, EVALUATIONS + 1)]
    for table in ("metrics", "latest_metrics"):
        for step, score in enumerate(scores, start=1):
            for key, value in (("score", score), ("best_score", max(scores[:step]))):
                query = f"update {table} set value = ? where run_uuid = ? and key = ? and step = ?"
                database.execute(query, (value, run_id, key, step))


def measure(runs: Path, words: list[str]) -> tuple[float, int]:
    """Return the wall-clock seconds of a command, and the number of lines that it prints."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "orchestrator.cli", *words, "--runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - begun, len(done.stdout.splitlines())


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder, "few"), Path(folder, "many")
        build(few, 10)
        build(many, asked.trials)
        for name, words in VERBS.items():
            pairs = [(measure(few, words), measure(many, words)) for _ in range(asked.pairs)]
            ratio = statistics.median(b[0] / a[0] for a, b in pairs)
            slow = statistics.median(b[0] for _, b in pairs)
            print(f"{name:12} {ratio:.2f} x of ten trials, {slow:.1f} s, {pairs[0][1][1]} lines")


if __name__ == "__main__":
    main()
