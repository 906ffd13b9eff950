"""Sweeps that are killed, stopped and extended, through the real command line."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from sweep_truth import histories, untruths
from tiny_plm import save_tiny_plm

from orchestrator.home import Home

pytestmark = pytest.mark.slow
TRIALS = 6


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_plm(tmp_path_factory.mktemp("plm") / "tiny"))


def sweep_words(tiny: str, runs: Path, **more: object) -> list[str]:
    settings = {
        "plm": tiny, "name": "s", "max_length": 32, "max_train_rows": 400, "batch_size": 16,
        "epochs": 6, "search.trials": TRIALS, "asha.grace": 2, "search.sampler": "random",
    } | more  # fmt: skip
    words = [f"{key}={value}" for key, value in settings.items()]
    return ["sweep", "run", "agreement", *words, "--runs", str(runs)]


def start(*words: object, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "orchestrator.cli", *map(str, words)]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)


def call(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def lines_of(runs: Path) -> int:
    journal = runs / "sweeps" / "s" / "search.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def wait_for(condition: object, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("whole")
    done = call(*sweep_words(tiny, runs))
    assert done.returncode == 0, done.stderr
    assert untruths(runs, "s", TRIALS) == []
    return runs


def test_a_driver_killed_again_and_again_loses_and_repeats_nothing(
    tiny: str, undisturbed: Path, tmp_path: Path
) -> None:
    log, luck = tmp_path / "log", random.Random(5)
    driver = start(*sweep_words(tiny, tmp_path), log=log)
    for _ in range(3):
        known = lines_of(tmp_path)
        wait_for(lambda known=known: lines_of(tmp_path) >= known + 4)
        time.sleep(luck.random())
        workers = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
        driver.wait()
        psutil.wait_procs(workers, timeout=20)
        driver = start("sweep", "resume", "s", "--runs", tmp_path, log=log)
    assert driver.wait(timeout=240) == 0, log.read_text()
    assert untruths(tmp_path, "s", TRIALS) == []
    # Whatever ASHA made of the order of arrivals: what both ran has the same losses to the bit.
    whole, found = histories(undisturbed, "s"), histories(tmp_path, "s")
    assert found.keys() == whole.keys()
    for key, losses in found.items():
        shared = min(len(losses), len(whole[key]))
        assert losses[:shared] == whole[key][:shared]


def test_a_finished_sweep_is_extended_and_resuming_it_changes_nothing(undisturbed: Path) -> None:
    again = call("sweep", "resume", "s", "--runs", undisturbed)
    assert again.returncode == 0, again.stderr
    assert untruths(undisturbed, "s", TRIALS) == []
    fewer = call("sweep", "extend", "s", "trials=3", "--runs", undisturbed)
    assert fewer.returncode == 2
    assert "has 6 trials" in fewer.stderr
    more = call("sweep", "extend", "s", "trials=8", "--runs", undisturbed)
    assert more.returncode == 0, more.stderr
    assert untruths(undisturbed, "s", 8) == []


def test_stop_one_trial_then_the_sweep_then_go_on(tiny: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    driver = start(*sweep_words(tiny, tmp_path, epochs=400, **{"asha.grace": 700}), log=log)
    wait_for(lambda: b"#1 evaluation 2/" in log.read_bytes())
    second = call("sweep", "resume", "s", "--runs", tmp_path)
    assert second.returncode == 2
    assert "another process is working on sweep 's'" in second.stderr
    wrong = call("sweep", "stop", "s", "--trial", "77", "--runs", tmp_path)
    assert wrong.returncode == 2
    assert "'77' is not a running trial; running are search_0000" in wrong.stderr
    one = call("sweep", "stop", "s", "--trial", "1", "--runs", tmp_path)
    assert one.returncode == 0, one.stderr
    wait_for(lambda: b"#1 stopped: stopped by the user" in log.read_bytes())
    shown = call("sweep", "status", "s", "--runs", tmp_path).stdout
    assert "state    running, last sign of life" in shown
    assert "1 stopped" in shown
    assert call("sweep", "stop", "s", "--runs", tmp_path).returncode == 0
    assert driver.wait(timeout=60) == 1
    shown = call("sweep", "status", "s", "--runs", tmp_path).stdout
    assert "state    interrupted" in shown
    assert "2 interrupted, 1 stopped" in shown
    tracker = Home(tmp_path).tracker()
    states = {
        tracker.client.get_run(t.run_id).info.status
        for t in tracker.trials_of(tracker.find_sweep("s"))
    }
    assert states == {"KILLED", "FINISHED"}
    late = call("sweep", "stop", "s", "--runs", tmp_path)
    assert late.returncode == 2
    assert "nobody works on sweep 's'" in late.stderr


def test_a_killed_driver_shows_in_status_and_a_changed_file_is_named(
    tiny: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"train: {{task: agreement, plm: {tiny}, epochs: 30, max_length: 32}}\n"
        "space:\n  optimizer.lr: {type: log_uniform, low: 1e-4, high: 1e-2}\n"
        "search: {trials: 4, sampler: random}\n"
    )
    driver = start("sweep", "run", file, "name=s", "--runs", tmp_path, log=tmp_path / "log")
    wait_for(lambda: b" evaluation 2/" in (tmp_path / "log").read_bytes())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    shown = call("sweep", "status", "s", "--runs", tmp_path).stdout
    assert "its driver is gone" in shown
    file.write_text(file.read_text().replace("high: 1e-2", "high: 0.5"))
    refused = call("sweep", "resume", "s", "--runs", tmp_path)
    assert refused.returncode == 2
    assert "  space.optimizer.lr.high: 0.01 → 0.5\n" in refused.stderr
    assert "--as-it-ran" in refused.stderr
    file.write_text("train: [")
    refused = call("sweep", "resume", "s", "--runs", tmp_path)
    assert refused.returncode == 2
    assert "is no sweep any more" in refused.stderr
