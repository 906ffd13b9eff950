"""A trial of two processes on two machines: one process's losses, whatever happens to a machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines import Bench, Machine, until, words
from sweep_truth import histories, untruths

from orchestrator.spec.trial import Trial
from orchestrator.state.event_log import read_event_log

pytestmark = pytest.mark.slow
TRIALS = 2
SIZES = {"max_length": 32, "max_train_rows": 400, "batch_size": 16, "epochs": 12}


def start(bench: Bench, tiny: str, name: str, log: Path, **settings: object) -> Callable[[], int]:
    """Start a sweep on the head; the answer waits for its end."""
    chosen = {
        "plm": tiny, "name": name, **SIZES, "search.trials": TRIALS, "search.sampler": "random",
        "search.seed": 3, "asha": "null", "adapter.dropout": 0.0, **settings,
    }  # fmt: skip
    settings_words = (f"{key}={value}" for key, value in chosen.items())
    cluster = ["--on", bench.folder / "cluster.yaml"]
    driver = bench.machines[0].start(
        *words("sweep", "run", "agreement", *settings_words, *cluster), log=log
    )
    return lambda: driver.wait(timeout=500)


@pytest.fixture(scope="module")
def runs(bench: Bench) -> Iterator[Path]:
    """Three machines of which two have a core for trials each, and the head none."""
    nodes = [{"host": m.address, "cpus": 1, "gpus": 0} for m in bench.machines]
    head = {**nodes[0], "cpus": 0}
    file = bench.cluster_file(name="ranks", head=head, nodes=nodes[1:], mlflow=None)
    bench.machines[0].run(*words("cluster", "up", file))
    yield bench.folder / "storage" / "runs"
    bench.machines[0].run(*words("cluster", "down", file), check=False)


@pytest.fixture(scope="module")
def alone(bench: Bench, runs: Path, tiny: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a sweep each of whose trials was one process."""
    log = tmp_path_factory.mktemp("alone") / "log"
    assert start(bench, tiny, "alone", log)() == 0, log.read_text()
    return "alone"


def the_same(runs: Path, name: str, other: str) -> None:
    """Hold the losses of two sweeps against each other, of which one had several ranks."""
    assert untruths(runs, name, TRIALS) == []
    found, expected = histories(runs, name), histories(runs, other)
    assert found.keys() == expected.keys()
    for key, losses in expected.items():
        assert found[key] == pytest.approx(losses, rel=1e-5), key


def trials(runs: Path, name: str) -> list[Trial]:
    event_log = runs / "sweeps" / name / "search.jsonl"
    return list(read_event_log(event_log).values()) if event_log.exists() else []


def test_two_ranks_on_two_machines_train_as_one(
    bench: Bench, runs: Path, alone: str, tiny: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    wait = start(bench, tiny, "two", log, **{"resources.ranks": 2})
    until(lambda: all(rank_on(machine) for machine in bench.machines[1:]), 120)
    assert wait() == 0, log.read_text()
    the_same(runs, "two", alone)


def rank_on(machine: Machine) -> bool:
    """Whether the process of a rank is on a machine."""
    return "RankActor" in machine.run("ps", "axo", "args").stdout


@pytest.mark.parametrize(
    ("loss", "of_supervisor"), [("cable", False), ("cable", True), ("power", True)]
)
def test_a_trial_that_loses_a_ranks_machine_goes_on_with_another(
    bench: Bench, runs: Path, alone: str, tiny: str, tmp_path: Path, loss: str, of_supervisor: bool
) -> None:
    """From its last evaluation; the other rank waits in a collective and must be freed."""
    name, log = f"{loss}-{of_supervisor}", tmp_path / "log"
    wait = start(bench, tiny, name, log, **{"resources.ranks": 2})
    until(lambda: any(len(trial.results) > 3 for trial in trials(runs, name)), 200)
    supervisor = trials(runs, name)[0].results[-1].node_ip
    ranks = [machine for machine in bench.machines if machine.is_on and rank_on(machine)]
    (lost,) = (machine for machine in ranks if (machine.address == supervisor) is of_supervisor)
    (lost.pull_cable if loss == "cable" else lost.power_off)()
    try:
        bench.add(len(bench.machines))
        left = [m for m in bench.machines[1:] if m is not lost and m.is_on]
        nodes = [{"host": m.address, "cpus": 1, "gpus": 0} for m in left]
        before = json.loads((bench.folder / "cluster.yaml").read_text())
        file = bench.cluster_file(**(before | {"nodes": nodes}))
        bench.machines[0].run(*words("cluster", "up", file))
        assert wait() == 0, log.read_text()
        assert "search_00001 starts again" in log.read_text()
        the_same(runs, name, alone)
    finally:
        lost.plug_cable()
    if loss == "cable":
        until(lambda: not rank_on(lost), 60)  # its Ray ends and begins anew
