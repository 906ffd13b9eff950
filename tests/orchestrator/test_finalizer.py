"""The finalizer without training; whole runs of it are in tests/integration/test_pipeline.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow_sweeps import Sweeps

from orchestrator import finalizer
from orchestrator.config import Sweep
from orchestrator.home import Home
from orchestrator.outcome import BY_USER, Outcome
from tinyattn.config import TrainConfig
from tinyattn.errors import UsageError

SWEEP = Sweep(
    name="first", train=TrainConfig(task="sst2", plm="roberta-large"),
    space={"optimizer.lr": {"type": "log_uniform", "low": 1e-4, "high": 1e-2}},
)  # fmt: skip


def begin(home: Home, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Finalize up to the first batch; returns what is said until then."""

    def stop(self: object, best: object) -> None:
        raise UsageError("the first batch would begin")

    facts, said = SimpleNamespace(data_fingerprint="d"), list[str]()
    monkeypatch.setattr(finalizer, "concurrency", lambda resources: 1)
    monkeypatch.setattr(finalizer, "inspect", lambda sweep, workshop: facts)
    monkeypatch.setattr(finalizer, "refuse_other_data", lambda *_: None)
    monkeypatch.setattr(finalizer._Finalizing, "run", stop)
    with pytest.raises(UsageError, match="would begin"):
        finalizer.finalize(SWEEP, home, said.append)
    return said


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.INTERRUPTED])
def test_a_search_that_was_interrupted_is_named(
    sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    sweeps.start("first")
    sweeps.trial("whole", [0.6, 0.7])
    if outcome is Outcome.INTERRUPTED:
        sweeps.trial("open", [0.6], outcome)
    sweeps.tracker.close_all(outcome)
    said = begin(Home(tmp_path / "runs"), monkeypatch)
    assert said == (
        []
        if outcome is Outcome.COMPLETED
        else [
            "note: the search has not come to its end (interrupted); finalists are the best of "
            "the trials that had"
        ]
    )


def test_a_leader_that_the_user_stopped_is_named_before_the_finalists(
    sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps.start("first")
    sweeps.trial("search_00001", [0.9], None)
    sweeps.tracker.end_trial("search_00001", Outcome.STOPPED, error=BY_USER)
    sweeps.trial("search_00002", [0.7])
    sweeps.tracker.close_all(Outcome.COMPLETED)
    said = begin(Home(tmp_path / "runs"), monkeypatch)
    assert said == ["note: #1 has 90.00, but the user stopped it: no candidate"]


def test_nothing_that_ended_leads_to_resuming(
    sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps.start("first")
    sweeps.trial("open", [0.6], Outcome.INTERRUPTED)
    sweeps.tracker.close_all(Outcome.INTERRUPTED)
    monkeypatch.setattr(finalizer, "concurrency", lambda resources: 1)
    with pytest.raises(UsageError, match="`tinyattn sweep resume first` goes on with it"):
        finalizer.finalize(SWEEP, Home(tmp_path / "runs"))
