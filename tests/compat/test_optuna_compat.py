"""What this project uses of Optuna beyond its public interface is there, and does the same."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from orchestrator.search.optuna_compat import SamplingStudy, begin_trial, id_of, storage_of
from orchestrator.search.searcher import importances


class Pruned(SamplingStudy):
    """Samplers see all that runs as pruned."""

    def shown(self, trial: FrozenTrial) -> FrozenTrial:
        trial = copy.copy(trial)
        trial.state = TrialState.PRUNED if trial.state == TrialState.RUNNING else trial.state
        return trial


def test_ids_are_those_of_the_storage() -> None:
    study = optuna.create_study()
    study.enqueue_trial({})
    asked = study.ask()
    storage = storage_of(study)
    assert storage.get_trial(id_of(asked)).number == asked.number
    assert id_of(study.get_trials()[0]) == id_of(asked)


def test_a_trial_that_begins_is_the_studys_and_drawn_by_the_other_view() -> None:
    study = optuna.create_study()
    sampling = SamplingStudy(study.study_name, storage_of(study))
    sampling.sampler = RandomSampler(seed=3)
    found = begin_trial(study, sampling).suggest_float("x", 0, 1)
    again = optuna.create_study(sampler=RandomSampler(seed=3)).ask().suggest_float("x", 0, 1)
    assert found == again
    assert [trial.state for trial in study.get_trials()] == [TrialState.RUNNING]


@pytest.mark.parametrize("group", [True, False])
def test_the_sampler_learns_from_trials_as_they_are_shown(
    monkeypatch: pytest.MonkeyPatch, group: bool
) -> None:
    """TPE hands the pruned trials that it learns from to the split into good and bad ones."""
    study = optuna.create_study(direction="maximize")
    for number in range(6):
        study.ask().suggest_float("x", number, number + 1)
    sampling = Pruned(study.study_name, storage_of(study))
    learnt: list[Sequence[Any]] = []

    def gamma(count: int) -> int:
        learnt.append(range(count))
        return 1

    sampling.sampler = TPESampler(
        n_startup_trials=2, gamma=gamma, multivariate=True, group=group, constant_liar=True, seed=0
    )
    begin_trial(study, sampling).suggest_float("x", 0, 10)
    assert [len(found) for found in learnt] == [6]


def test_importances_leave_optunas_level_as_it_was() -> None:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        found = importances([({"x": float(i), "y": 0.5 * (i % 2)}, float(i)) for i in range(8)])
        assert list(found) == ["x", "y"]
        assert optuna.logging.get_verbosity() == optuna.logging.WARNING
    finally:
        optuna.logging.set_verbosity(before)
