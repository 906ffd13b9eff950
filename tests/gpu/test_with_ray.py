"""What needs a GPU and the whole installation: Ray's shares of a GPU, NCCL between GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_plm import save_tiny_plm

pytest.importorskip("ray", reason="the whole installation is needed: make test-gpu")

from orchestrator.spec.outcome import Outcome
from orchestrator.state.workspace import Workspace
from orchestrator.tracking.records import TrialRun

SETTINGS = (
    "max_length=32", "max_train_rows=160", "epochs=2", "batch_size=16", "asha.grace=4",
    "adapter.dropout=0.0",
)  # fmt: skip
GPUS = torch.cuda.device_count()
gpu_ray = [
    pytest.mark.gpu_ray,
    pytest.mark.skipif(GPUS < 1, reason="there is no CUDA device"),
]
gpus = [
    pytest.mark.gpus,
    pytest.mark.skipif(GPUS < 2, reason=f"needed are 2 CUDA devices, there are {GPUS}"),
]


def sweep(folder: Path, name: str, *changes: str) -> list[TrialRun]:
    """Run a sweep on GPUs by the real program; return its trials."""
    plm = folder / "tiny"
    if not plm.exists():
        save_tiny_plm(plm)
    words = ["sweep", "run", "agreement", f"plm={plm}", f"name={name}", *SETTINGS, *changes]
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *words, "--runs", str(folder / "runs")],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    tracker = Workspace(folder / "runs").tracker()
    trials = tracker.trials_of(tracker.find_sweep(name))
    assert [run.trial.outcome for run in trials] == [Outcome.COMPLETED] * len(trials)
    return sorted(trials, key=lambda run: run.trial.name)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(("resources.gpus=1",), marks=gpu_ray),
        pytest.param(("resources.gpus=0.5", "precision=bf16"), marks=gpu_ray),
        pytest.param(("resources.gpus=1", "precision=int8"), marks=gpu_ray),
        pytest.param(("resources.gpus=1", "precision=nf4"), marks=gpu_ray),
        pytest.param(("resources.gpus=1", "resources.packed=2"), marks=gpu_ray),
        pytest.param(("resources.gpus=1", "resources.packed=auto"), marks=gpu_ray),
        pytest.param(("resources.gpus=1", "resources.concurrent=2"), marks=gpus),
    ],
)
def test_a_sweep_on_gpus_ends_as_one_on_cores(changes: tuple[str, ...], tmp_path: Path) -> None:
    there = sweep(tmp_path, "gpu", "search.trials=4", *changes)
    here = sweep(tmp_path, "cores", "search.trials=4", "search.sampler=random", "resources.gpus=0")
    assert len(there) == len(here) == 4
    # The first trial is the same known point in both.
    assert there[0].trial.best_score == pytest.approx(here[0].trial.best_score, abs=0.05)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=gpu_ray), pytest.param(2, marks=gpus)])
def test_ranks_on_gpus_train_as_one_process_on_cores(
    ranks: int, zero_stage: int, tmp_path: Path
) -> None:
    """With one rank it is DeepSpeed's ZeRO on a GPU, with two also NCCL."""
    words = ("search.trials=1", f"zero_stage={zero_stage}")
    (found,) = sweep(tmp_path, "gpu", *words, "resources.gpus=1", f"resources.ranks={ranks}")
    (wanted,) = sweep(tmp_path, "cores", "search.trials=1", "resources.gpus=0")
    assert found.trial.best_score == pytest.approx(wanted.trial.best_score, abs=0.02)
