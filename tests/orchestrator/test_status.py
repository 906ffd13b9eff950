"""What another terminal sees of a sweep, from its store alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow_sweeps import Sweeps

from orchestrator.reporting.status import status
from orchestrator.spec.outcome import Outcome
from orchestrator.state.workspace import Workspace


@pytest.fixture
def workspace(sweeps: Sweeps, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "runs")


def shown(workspace: Workspace) -> dict[str, str]:
    """What is printed, by the first word of its lines; the last line of a word counts."""
    lines = str(status(workspace, "first")).splitlines()
    return {line[:8].strip(): line[9:] for line in lines}


def test_finalists_are_no_trials_of_the_search(workspace: Workspace, sweeps: Sweeps) -> None:
    sweeps.start()
    sweeps.trial("search_00001", [0.6, 0.8])
    sweeps.trial("search_00002", [0.5], Outcome.STOPPED)
    sweeps.tracker.end_sweep(Outcome.COMPLETED)
    sweeps.trial("finalists-ab12_00001", [0.7, 0.9], kind="finalist")
    sweeps.trial("finalists-ab12_00002", [0.6], None, kind="finalist")
    with workspace.lock("first"):
        lines = shown(workspace)
        assert lines["state"].startswith("finalizing, last sign of life")
    assert lines["trials"] == "1 completed, 1 stopped"
    assert lines["finalize"] == "1 completed, 1 running"
    assert lines["best"].startswith("80.00 ")
    assert lines["running"].startswith("finalist finalists-ab12_00002 since")
    gone = "completed, its finalize is gone; `tinyattn finalize first` goes on"
    assert shown(workspace)["state"] == gone
    assert shown(workspace)["finalize"] == "1 completed, 1 waiting"
    assert shown(workspace)["waiting"].startswith("finalist finalists-ab12_00002 since")
    assert "running" not in shown(workspace)


def test_a_driver_that_is_gone_on_this_and_on_another_machine(
    workspace: Workspace, sweeps: Sweeps
) -> None:
    sweeps.start()
    sweeps.trial("search_00001", [0.6], None)
    assert shown(workspace)["state"].startswith(
        "running, last sign of life"
    )  # its folder is elsewhere
    workspace.sweep_folder("first")
    assert "its driver is gone" in shown(workspace)["state"]
    assert "sweep resume first" in shown(workspace)["state"]
    assert shown(workspace)["trials"] == "1 waiting"
    with workspace.lock("first"):
        assert shown(workspace)["state"].startswith("running")
