"""What another terminal sees of a sweep, from its store alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow_sweeps import Sweeps

from orchestrator.control import status
from orchestrator.home import Home
from orchestrator.outcome import Outcome


@pytest.fixture
def home(sweeps: Sweeps, tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


def shown(home: Home) -> dict[str, str]:
    """What is printed, by the first word of its lines; the last line of a word counts."""
    lines = str(status(home, "first")).splitlines()
    return {line[:8].strip(): line[9:] for line in lines}


def test_finalists_are_no_trials_of_the_search(home: Home, sweeps: Sweeps) -> None:
    sweeps.start()
    sweeps.trial("search_00001", [0.6, 0.8])
    sweeps.trial("search_00002", [0.5], Outcome.STOPPED)
    sweeps.tracker.end_sweep(Outcome.COMPLETED)
    sweeps.trial("finalists-ab12_00001", [0.7, 0.9], kind="finalist")
    sweeps.trial("finalists-ab12_00002", [0.6], None, kind="finalist")
    with home.lock("first"):
        lines = shown(home)
        assert lines["state"].startswith("finalizing, last sign of life")
    assert lines["trials"] == "1 completed, 1 stopped"
    assert lines["finalize"] == "1 completed, 1 running"
    assert lines["best"].startswith("80.00 ")
    assert lines["running"].startswith("finalist #2 since")
    gone = "completed, its finalize is gone; `tinyattn finalize first` goes on"
    assert shown(home)["state"] == gone
    assert shown(home)["finalize"] == "1 completed, 1 waiting"
    assert shown(home)["waiting"].startswith("finalist #2 since")
    assert "running" not in shown(home)


def test_a_driver_that_is_gone_on_this_and_on_another_machine(home: Home, sweeps: Sweeps) -> None:
    sweeps.start()
    sweeps.trial("search_00001", [0.6], None)
    assert shown(home)["state"].startswith("running, last sign of life")  # its folder is elsewhere
    home.sweep_folder("first")
    assert "its driver is gone" in shown(home)["state"]
    assert "sweep resume first" in shown(home)["state"]
    assert shown(home)["trials"] == "1 waiting"
    with home.lock("first"):
        assert shown(home)["state"].startswith("running")
