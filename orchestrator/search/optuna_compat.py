"""Private parts of Optuna that the searcher uses, all of them in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_optuna_compat.py fails where Optuna changes one.
"""

from __future__ import annotations

from collections.abc import Container

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState


def storage_of(study: optuna.Study) -> BaseStorage:
    """Return the storage of a study, which `Study` keeps to itself. (optuna 5.0)"""
    return study._storage


def id_of(trial: optuna.Trial | FrozenTrial) -> int:
    """Return a trial's id in its storage.

    The public way, from study id and number, reads the whole journal file again. (optuna 5.0)
    """
    return trial._trial_id


def begin_trial(study: optuna.Study, sampling: optuna.Study) -> optuna.Trial:
    """Begin a trial of `study` whose values the sampler of `sampling`, a view of it, draws.

    As `study.ask()`, which would search all trials for an enqueued one first. (optuna 5.0)
    """
    number = study._storage.create_new_trial(study._study_id)
    return optuna.Trial(sampling, number)


class SamplingStudy(optuna.Study):
    """A study that shows samplers its trials in another state than the storage has them.

    Optuna's samplers read trials by `Study._get_trials` alone. (optuna 5.0)
    """

    def shown(self, trial: FrozenTrial) -> FrozenTrial:
        """Return a trial as samplers are to see it; the storage's own may not be changed."""
        return trial

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        """As Optuna's, without copies: samplers only read trials."""
        trials = [self.shown(trial) for trial in super()._get_trials(deepcopy=False)]
        return [trial for trial in trials if states is None or trial.state in states]
