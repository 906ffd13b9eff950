"""Sweeps seen and stopped from another terminal, through the real command line."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from live import call, start, sweep_words, wait_for
from tiny_plm import save_tiny_plm

from orchestrator.state.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_plm(tmp_path_factory.mktemp("plm") / "tiny"))


def test_stop_one_trial_then_the_sweep_then_go_on(tiny: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    driver = start(*sweep_words(tiny, tmp_path, epochs=400, **{"asha.grace": 700}), log=log)
    wait_for(lambda: b"search_00001 evaluation 2/" in log.read_bytes())
    second = call("sweep", "resume", "s", "--runs", tmp_path)
    assert second.exit_code == 2
    assert "another process is working on sweep 's'" in second.stderr
    wrong = call("sweep", "stop", "s", "--trial", "77", "--runs", tmp_path)
    assert wrong.exit_code == 2
    assert "'77' is not a running trial; running are search_0000" in wrong.stderr
    one = call("sweep", "stop", "s", "--trial", "1", "--runs", tmp_path)
    assert one.exit_code == 0, one.stderr
    wait_for(lambda: b"search_00001 stopped by the user" in log.read_bytes())
    shown = call("sweep", "status", "s", "--runs", tmp_path).stdout
    assert "state    running, last sign of life" in shown
    assert "1 stopped" in shown
    assert call("sweep", "stop", "s", "--runs", tmp_path).exit_code == 0
    assert driver.wait(timeout=60) == 1
    shown = call("sweep", "status", "s", "--runs", tmp_path).stdout
    assert "state    interrupted" in shown
    assert "2 interrupted, 1 stopped" in shown
    tracker = Workspace(tmp_path).tracker()
    states = {
        tracker.client.get_run(t.run_id).info.status
        for t in tracker.trials_of(tracker.find_sweep("s"))
    }
    assert states == {"KILLED", "FINISHED"}
    late = call("sweep", "stop", "s", "--runs", tmp_path)
    assert late.exit_code == 2
    assert "no process works on sweep 's'" in late.stderr


@pytest.mark.rare
def test_a_killed_driver_shows_in_status_and_a_changed_file_is_named(
    tiny: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"train: {{task: agreement, plm: {tiny}, epochs: 30, max_length: 32}}\n"
        "space:\n  optimizer.lr: {type: log_uniform, low: 1e-4, high: 1e-2}\n"
        "search: {trials: 4, sampler: random}\n"
    )
    words = (file, "name=s", "resources.concurrent=1", "--runs", tmp_path)
    driver = start("sweep", "run", *words, log=tmp_path / "log")
    wait_for(lambda: b" evaluation 2/" in (tmp_path / "log").read_bytes())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    shown = call("sweep", "status", "s", "--runs", tmp_path).stdout
    assert "its driver is gone" in shown
    file.write_text(file.read_text().replace("high: 1e-2", "high: 0.5"))
    refused = call("sweep", "resume", "s", "--runs", tmp_path)
    assert refused.exit_code == 2
    assert "  space.optimizer.lr.high: 0.01 → 0.5\n" in refused.stderr
    assert "--as-it-ran" in refused.stderr
    file.write_text("train: [")
    refused = call("sweep", "resume", "s", "--runs", tmp_path)
    assert refused.exit_code == 2
    assert "is no sweep any more" in refused.stderr
