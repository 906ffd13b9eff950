"""The classifier alone: the same PLM and training without an adapter.

A first champion has nobody to be better than, so it must be better than this at the best of
several learning rates. A sweep that was finalized has tried them; for another `promote` trains what
is missing, in MLflow runs of their own.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.home import Home
from orchestrator.outcome import Outcome
from orchestrator.ranking import candidates
from orchestrator.store import Store, TrialRecord
from orchestrator.tracking import Tracker
from tinyattn.config import TrainConfig
from tinyattn.errors import DivergedError
from tinyattn.workshop import Workshop

ALONE = {"adapter.layers": "none"}
"""Overrides that leave the classifier alone."""
RATES = (0.3, 1, 3, 10)
"""Learning rates that the classifier alone tries, as multiples of the adapter's. Without an adapter
it takes larger ones: the best were 10 to 100 times the finalist's on three of four tasks with
MiniLM. It needs no backward pass through the PLM, so that four of its trials cost as one."""
KIND = "baseline"
"""Kind of a run that was trained for a promotion."""
_INHERITED = ("carve", "data_fingerprint", "plm_fingerprint", "train_rows", "truncated_rows")
"""Tags of the trial that its classifier alone shares, for it has the same rows and PLM."""


def alone_settings(params: Mapping[str, Any], rate: float) -> list[dict[str, Any]]:
    """Return what the classifier alone tries: a trial's overrides at several learning rates."""
    return [{**params, **ALONE, "optimizer.lr": each} for each in _rates(rate)]


def _rates(rate: float) -> list[float]:
    """The learning rates that are tried beside an adapter that was trained at `rate`."""
    most = 10  # TrainConfig allows no more
    return list(dict.fromkeys(min(times * rate, most) for times in RATES))


def is_alone(trial: TrialRecord) -> bool:
    """Whether a trial trained the classifier alone."""
    return trial.config.get("adapter.layers") == ALONE["adapter.layers"]


def find_alone(store: Store, trial: TrialRecord) -> TrialRecord | None:
    """Return the best classifier alone of a trial's sweep, by selection score; None: it has none.

    It was trained on the same data to its end, and is scored on the held-out rows.
    """
    for other in candidates(_alones(store, trial)):
        whole = other.outcome is Outcome.COMPLETED and other.heldout_score is not None
        if whole and store.has_artifact(other.run_id, "adapter"):
            return other
    return None


def missing_rates(store: Store, trial: TrialRecord) -> list[float]:
    """Return the learning rates that a trial's sweep has yet to try for the classifier alone.

    They are multiples of the trial's own. None are missing either where all multiples of another
    rate were tried, as a finalizer does with that of its best finalist. One that diverged counts.
    """
    ended = (Outcome.COMPLETED, Outcome.DIVERGED)
    tried = [t.config["optimizer.lr"] for t in _alones(store, trial) if t.outcome in ended]

    def untried(rates: Iterable[float]) -> list[float]:
        return [r for r in rates if not any(math.isclose(r, t, rel_tol=1e-6) for t in tried)]

    if any(not untried(_rates(lowest / RATES[0])) for lowest in tried):
        return []
    return untried(_rates(trial.config["optimizer.lr"]))


def _alones(store: Store, trial: TrialRecord) -> list[TrialRecord]:
    """The classifiers alone of a trial's sweep on the trial's data."""
    data = trial.tags.get("data_fingerprint")
    trials = store.trials_of(store.find_sweep(trial.sweep))
    return [t for t in trials if is_alone(t) and t.tags.get("data_fingerprint") == data]


def train_alone(
    home: Home,
    tracker: Tracker,
    trial: TrialRecord,
    config: TrainConfig,
    workshop: Workshop,
    say: Callable[[str], None],
) -> None:
    """Train the classifier alone as `trial` was trained, at the rates that its sweep has not tried.

    It is trained in this process. Its runs end together: one that was interrupted leaves none of
    them to be taken for the best.

    Args:
        home: where the trial's sweep is kept; nobody may be working on it.
        tracker: writes the runs.
        trial: the adapter that is to be compared with it.
        config: of that trial.
        workshop: PLM and data.
        say: told the score of each.

    Raises:
        UsageError: another process works on the sweep.
        TinyAttnError: the training failed.
    """
    if not (missing := missing_rates(tracker, trial)):
        return
    from orchestrator.runner import closed_in_any_case  # imports Ray, and few promotions train

    single = config.with_overrides({"adapter.num_heads": 1, "start": None})
    tags = {key: trial.tags[key] for key in _INHERITED if key in trial.tags}
    tags["primary_metric"] = workshop.task(config).metrics[0]
    trained: dict[str, Path | None] = {}
    with home.lock(trial.sweep), tempfile.TemporaryDirectory() as scratch:
        outcome = tracker.find_sweep(trial.sweep).outcome or Outcome.INTERRUPTED
        with closed_in_any_case(tracker, f"promote {trial.run_id}", outcome):
            tracker.resume_sweep(trial.sweep, search_goes_on=False)
            for number, params in enumerate(alone_settings({}, config.optimizer.lr), start=1):
                if params["optimizer.lr"] not in missing:
                    continue
                name = f"{trial.trial_id}_alone{number}"
                alone, folder = single.with_overrides(params), Path(scratch) / name
                tracker.start_trial(name, config=alone, params=params, tags=tags, kind=KIND)
                score = _train(tracker, name, alone, workshop, folder)
                trained[name] = None if score is None else folder
                words = "diverged" if score is None else f"{100 * score:.2f} on the selection rows"
                say(f"classifier alone, optimizer.lr={alone.optimizer.lr:.3g}: {words}")
            for name, adapter in trained.items():
                ended = Outcome.DIVERGED if adapter is None else Outcome.COMPLETED
                tracker.end_trial(name, ended, adapter=adapter)
            tracker.settle()


def _train(
    tracker: Tracker, name: str, config: TrainConfig, workshop: Workshop, folder: Path
) -> float | None:
    """Train one, leave its adapter in `folder` and return its best score; None: it diverged."""
    from orchestrator.worker import result_of
    from tinyattn.trainer import Trainer  # DeepSpeed

    with contextlib.closing(Trainer(config, workshop)) as trainer:
        try:
            for evaluation in trainer:
                tracker.log_evaluation(name, result_of(trainer, evaluation))
        except DivergedError:
            return None
        trainer.save_adapter(folder)
        return evaluation.best_score
