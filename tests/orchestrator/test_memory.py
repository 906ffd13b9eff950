"""Running out of memory: smaller passes, the same training, remembered for the next trials."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.memory import FILE, note_too_many, rows_that_fit
from tinyattn.config import TrainConfig

CONFIG = TrainConfig(task="rte", plm="roberta-large", batch_size=48)

LIMITED = """
import json, resource, sys
from pathlib import Path
import torch
from orchestrator.trial import SweepTrial
from orchestrator.batch import Bench
from orchestrator.depot import SharedFolder
from orchestrator.worker import Worker
from tinyattn.config import TrainConfig
from tinyattn.workshop import Workshop

class Bare(SweepTrial):  # without Ray around it
    def __init__(self, worker): self.worker = worker

base = TrainConfig(task="agreement", plm="minilm", epochs=2, batch_size=2400, max_length=32,
                   max_train_rows=2400, adapter={"dropout": 0.0})
folder = Path(sys.argv[1]) / "sweeps" / "s"
warm = Bare(Worker(Bench(base, SharedFolder(folder)), 1))
warm.reset_config({"trial": "warm", "point": {"batch_size": 8, "max_train_rows": 64}})
warm.step()
warm.worker.workshop.data(base)
if sys.argv[2] != "none":
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(sys.argv[2]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
warm.reset_config({"trial": "first", "point": {}})
done = False
while not done:
    result = warm.step()
    keys = ("evaluation", "train_loss", "micro_batch_size", "outcome", "error")
    print(json.dumps({key: result.get(key) for key in keys}))
    done = result.get("done", False)
"""


def limited(runs: Path, megabytes: str) -> list[dict[str, Any]]:
    """A trial in a process that may allocate so much more than it has when it is warm."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(runs), megabytes],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_real_limit_halves_the_passes_and_changes_no_loss(tmp_path: Path) -> None:
    free = limited(tmp_path / "free", "none")
    assert {result["micro_batch_size"] for result in free} == {2400}
    tight = limited(tmp_path / "tight", "800")
    evaluations = {result["evaluation"]: result for result in tight}  # a restart repeats one
    assert list(evaluations) == [1, 2]
    assert tight[-1]["outcome"] == "completed"
    assert tight[-1]["micro_batch_size"] in (1200, 600, 300, 150)
    for a, b in zip(free, evaluations.values(), strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-4)
    lines = (tmp_path / "tight" / FILE).read_text().splitlines()
    tried = [json.loads(line)[1] for line in lines]
    assert tried == [2400 >> i for i in range(len(tried))]
    assert tried[-1] == 2 * tight[-1]["micro_batch_size"]


@pytest.mark.slow
def test_what_never_fits_is_an_outcome(tmp_path: Path) -> None:
    (only,) = limited(tmp_path, "1")
    assert only["outcome"] == "out_of_memory"
    assert "micro-batches of 1 rows" in only["error"]


def test_what_did_not_fit_is_halved_until_it_may(tmp_path: Path) -> None:
    path = tmp_path / FILE
    assert rows_that_fit(CONFIG, path) == 48
    note_too_many(CONFIG, 24, path)
    path.write_text(path.read_text() + '["torn')
    assert rows_that_fit(CONFIG, path) == 12
    assert rows_that_fit(CONFIG.with_overrides({"micro_batch_size": 8}), path) == 8
    assert rows_that_fit(CONFIG.with_overrides({"batch_size": 16}), path) == 16
    for other in ({"max_length": 256}, {"plm": "roberta-base"}, {"precision": "bf16"}):
        assert rows_that_fit(CONFIG.with_overrides(other), path) == 48
    assert rows_that_fit(CONFIG.with_overrides({"seed": 3, "adapter.num_heads": 4}), path) == 12
    assert rows_that_fit(CONFIG, path, device="NVIDIA RTX A4000 16 GiB") == 48


def test_a_disk_that_is_full_or_read_only_is_no_reason_to_stop(tmp_path: Path) -> None:
    note_too_many(CONFIG, 24, tmp_path / "missing" / FILE)
    assert rows_that_fit(CONFIG, tmp_path / "missing" / FILE) == 48
