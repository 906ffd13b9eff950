"""ASHA against a plain brute force of its rule; ties, NaN, skipped and repeated rungs."""

from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace

import pytest
from ray.tune.schedulers import TrialScheduler

from orchestrator.scheduler import Asha, rungs

STOP, CONTINUE = TrialScheduler.STOP, TrialScheduler.CONTINUE


def at(evaluation: int, best: float, **more: object) -> dict:
    return {"evaluation": evaluation, "score": best, "best_score": best, **more}


@pytest.mark.parametrize(
    ("grace", "reduction", "total", "expected"),
    [
        (2, 3, 40, [2, 6, 18]),
        (1, 3, 9, [1, 3]),  # 9 itself is the end, not a rung
        (1, 3, 10, [1, 3, 9]),
        (4, 2, 4, []),
        (5, 2, 4, []),
        (3, 4, 50, [3, 12, 48]),
    ],
)
def test_rungs(grace, reduction, total, expected):
    assert rungs(grace, reduction, total) == expected


def brute_force(arrivals: list[tuple[str, int, float]], levels: list[int], eta: int) -> dict:
    """Who is stopped where: sort all who came to a rung, the later arrival behind on ties.

    Written from the paper's rule (top ⌊n/η⌋, at least one) by position in a sorted list, not by
    counting as the scheduler does.
    """
    came: dict[int, list[tuple[float, int, str]]] = {level: [] for level in levels}
    stopped: dict[str, int] = {}
    for order, (trial, evaluation, best) in enumerate(arrivals):
        if trial in stopped or evaluation not in came:
            continue
        came[evaluation].append((-best, order, trial))
        ranked = [name for *_, name in sorted(came[evaluation])]
        if ranked.index(trial) + 1 > max(1, math.floor(len(ranked) / eta)):
            stopped[trial] = evaluation
    return stopped


def interleaved(rng: random.Random, trials: int, total: int) -> list[tuple[str, int, float]]:
    """Random arrival order; scores from few values, so that ties are common."""
    best = [0.0] * trials
    at_evaluation = [0] * trials
    arrivals = []
    while open_ := [i for i in range(trials) if at_evaluation[i] < total]:
        i = rng.choice(open_)
        at_evaluation[i] += 1
        best[i] = max(best[i], rng.randrange(6) / 10 + at_evaluation[i] // 4 / 10)
        arrivals.append((f"t{i}", at_evaluation[i], best[i]))
    return arrivals


@pytest.mark.parametrize("eta", [2, 3, 4])
def test_against_brute_force(eta):
    stops = 0
    for seed in range(60):
        arrivals = interleaved(random.Random(seed), trials=17, total=14)
        asha = Asha(1, eta, 14)
        for trial, evaluation, best in arrivals:
            before = trial in asha.stopped
            decision = asha.decide(trial, at(evaluation, best))
            assert (decision == STOP) == (before or trial in asha.stopped)
        assert asha.stopped == brute_force(arrivals, rungs(1, eta, 14), eta)
        stops += len(asha.stopped)
    assert stops > 60 * 8  # the comparison was not of empty dicts


def test_a_crowd_of_ties_does_not_survive_for_being_many():
    """Four fifths at the majority class 0.527, which stock ASHA keeps half of."""
    asha = Asha(1, 3, 20)
    rng = random.Random(0)
    scores = [0.527] * 48 + [0.53 + i / 100 for i in range(12)]
    rng.shuffle(scores)
    decisions = [asha.decide(f"t{i}", at(1, score)) for i, score in enumerate(scores)]
    kept = [score for score, decision in zip(scores, decisions, strict=True) if decision != STOP]
    assert kept.count(0.527) <= 1
    assert max(scores) in kept


def test_alone_goes_on_and_equal_follower_stops():
    asha = Asha(1, 3, 9)
    assert asha.decide("a", at(1, 0.5)) == CONTINUE
    assert asha.decide("b", at(1, 0.5)) == STOP
    assert asha.decide("c", at(1, 0.6)) == CONTINUE
    assert asha.stopped == {"b": 1}


def test_between_rungs_and_at_the_end_nobody_is_stopped():
    asha = Asha(2, 3, 12)
    asha.decide("good", at(2, 0.9))
    asha.decide("good", at(6, 0.9))
    assert asha.decide("bad", at(1, 0.1)) == CONTINUE
    assert asha.decide("better", at(2, 1.0)) == CONTINUE
    assert asha.decide("better", at(5, 1.0)) == CONTINUE
    assert asha.decide("better", at(6, 1.0)) == CONTINUE
    assert asha.decide("better", at(12, 0.0)) == CONTINUE


@pytest.mark.parametrize(
    "result",
    [
        at(1, math.nan),
        at(1, math.inf),
        {"evaluation": 1, "score": math.nan, "best_score": 0.9},
        at(1, 0.9, outcome="diverged"),
    ],
)
def test_not_finite_stops_at_once_and_leaves_no_record(result):
    asha = Asha(2, 3, 9)
    assert asha.decide("a", result) == STOP
    assert asha.decide("b", {**result, "evaluation": 2}) == STOP
    assert asha.rungs == {2: {}, 6: {}}
    assert asha.stopped == {}
    json.dumps(asha.get_state(), allow_nan=False)


def test_a_skipped_rung_is_judged_at_the_highest_only():
    asha = Asha(1, 3, 20)
    asha.decide("a", at(1, 0.9))
    assert asha.decide("late", at(5, 0.1)) == CONTINUE  # alone at rung 3, absent from rung 1
    assert asha.rungs == {1: {"a": 0.9}, 3: {"late": 0.1}, 9: {}}
    assert asha.decide("late", at(1, 0.1)) == CONTINUE  # back at a lower rung: judged before


def test_a_rung_reported_again_is_recorded_once():
    asha = Asha(1, 2, 8)
    asha.decide("a", at(1, 0.5))
    assert asha.decide("b", at(1, 0.6)) == CONTINUE
    assert asha.decide("a", at(1, 0.4)) == CONTINUE  # resumed from before the rung
    assert asha.rungs[1] == {"a": 0.5, "b": 0.6}
    assert asha.decide("c", at(1, 0.1)) == STOP
    assert asha.decide("c", at(1, 0.9)) == STOP  # its stop was not carried out: it still holds


def test_state_survives_json_and_decides_alike():
    arrivals = interleaved(random.Random(3), trials=20, total=14)
    whole, first = Asha(1, 3, 14), Asha(1, 3, 14)
    half = len(arrivals) // 2
    for trial, evaluation, best in arrivals[:half]:
        whole.decide(trial, at(evaluation, best))
        first.decide(trial, at(evaluation, best))
    second = Asha(1, 3, 14)
    second.set_state(json.loads(json.dumps(first.get_state())))
    for trial, evaluation, best in arrivals[half:]:
        result = at(evaluation, best)
        assert second.decide(trial, result) == whole.decide(trial, result)
    assert second.stopped == whole.stopped
    assert second.rungs == whole.rungs
    first.decide("new", at(1, 5.0))
    assert "new" not in second.rungs[1]  # no memory is shared


def test_results_without_an_evaluation_pass():
    asha = Asha(1, 3, 9)
    trial = SimpleNamespace(trial_id="a")
    assert asha.on_trial_result(None, trial, {"done": True, "outcome": "failed"}) == CONTINUE
    assert asha.on_trial_result(None, trial, at(1, 0.5)) == CONTINUE
    assert "trials recorded at each rung: 1: 1, 3: 0" in asha.debug_string()
