"""Sweeps on a virtual cluster: the same decisions, virtual time."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.planning.curves import Recorded, Synthetic, unit
from orchestrator.planning.simulation import VirtualCluster, simulate
from orchestrator.spec.config import Sweep
from orchestrator.spec.outcome import Outcome
from tinyattn.config import build

SPACE = {
    "optimizer.lr": {"type": "log_uniform", "low": 1e-5, "high": 1e-1},
    "adapter.dropout": {"type": "choice", "values": [0.0, 0.1, 0.2]},
}


def a_sweep(mode: str = "promote", trials: int = 40, **search: Any) -> Sweep:
    data = {
        "name": "s",
        "train": {"task": "rte", "plm": "p"},
        "space": SPACE,
        "search": {"trials": trials, "sampler": "random", **search},
        "asha": {"grace": 2, "reduction": 3, "mode": mode},
    }
    return build(Sweep, data, "test")


class Level:
    """Every trial is as good as its dropout and never gets better."""

    def score(self, point: dict[str, Any], evaluation: int) -> float:
        return 0.5 + point["adapter.dropout"]

    def truth(self, point: dict[str, Any]) -> float:
        return self.score(point, 0)

    def noise(self, score: float) -> float:
        return 0.0


def test_without_stopping_time_and_compute_are_what_arithmetic_says() -> None:
    sweep = a_sweep(trials=10).model_copy(update={"asha": None})
    found = simulate(sweep, Level(), VirtualCluster(nodes=2, slots=2, seconds=10), 6)
    assert found.evaluations == found.whole == 60
    assert found.seconds == 3 * 6 * 10  # 10 trials on 4 slots are three rounds
    assert found.busy == pytest.approx(60 * 10 / (4 * 180))
    assert found.outcomes == {Outcome.COMPLETED: 10}
    assert found.truth == found.best_truth == pytest.approx(0.7)


@pytest.mark.parametrize("mode", ["stop", "promote"])
def test_lost_nodes_cost_time_and_no_trial(mode: str) -> None:
    sweep = a_sweep(mode)
    curves = Synthetic(sweep.space, 20)
    cluster = VirtualCluster(nodes=4, slots=2, seconds=60, losses=12)
    found = simulate(sweep, curves, cluster, 20)
    calm = simulate(sweep, curves, VirtualCluster(4, 2, 60), 20)
    assert found.lost > 3
    assert sum(found.outcomes.values()) == sum(calm.outcomes.values()) == 40
    assert Outcome.INTERRUPTED not in found.outcomes
    assert found.seconds > calm.seconds
    assert found.outcomes[Outcome.COMPLETED] >= 1


def test_it_is_the_same_every_time_and_no_clock_is_waited_for() -> None:
    sweep = a_sweep(trials=30)
    cluster = VirtualCluster(nodes=3, seconds=1e6, losses=2)
    begin = time.monotonic()
    first, second = (simulate(sweep, Synthetic(sweep.space, 20), cluster, 20) for _ in range(2))
    assert time.monotonic() - begin < 30
    assert str(first) == str(second)


def test_the_landscape_has_noise_of_its_rows_and_one_summit() -> None:
    space = a_sweep().space
    point = {"optimizer.lr": 1e-3, "adapter.dropout": 0.1}
    few, many = Synthetic(space, 20, rows=50), Synthetic(space, 20, rows=10**7)
    assert many.score(point, 400) == pytest.approx(many.truth(point), abs=2e-3)
    scores = [Synthetic(space, 20, rows=50, seed=0).score(point, e) for e in range(200, 400)]
    mean = sum(scores) / len(scores)
    spread = math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
    truth = few.truth(point)
    assert spread == pytest.approx(math.sqrt(truth * (1 - truth) / 50), rel=0.25)


def test_recorded_curves_are_those_of_the_nearest_trial() -> None:
    space = a_sweep().space
    low = {"optimizer.lr": 1e-5, "adapter.dropout": 0.0}
    high = {"optimizer.lr": 1e-1, "adapter.dropout": 0.2}
    curves = Recorded(space, [(low, [0.5, 0.6]), (high, [0.5, 0.9, 0.8])])
    near = {"optimizer.lr": 2e-2, "adapter.dropout": 0.2}
    assert [curves.score(near, e) for e in (1, 2, 3, 9)] == [0.5, 0.9, 0.8, 0.8]
    assert curves.truth(near) == 0.9
    assert curves.truth({"optimizer.lr": 1e-4, "adapter.dropout": 0.0}) == 0.6


def test_unit_places() -> None:
    space = a_sweep().space
    assert unit(space["optimizer.lr"], 1e-3) == pytest.approx(0.5)
    assert unit(space["adapter.dropout"], 0.2) == 1.0
    assert unit(space["adapter.dropout"], None) == 0.5


def test_the_command_line_shows_it() -> None:
    words = ["sweep", "simulate", "minilm", "search.trials=12", "--nodes", "2", "--losses", "1"]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    for word in ("trials ", "rungs ", "compute ", "time ", "lost ", "assumed ", "winner "):
        assert word in shown.output
    wrong = CliRunner().invoke(main, ["sweep", "simulate", "minilm", "--nodes", "0"])
    assert wrong.exit_code == 2
