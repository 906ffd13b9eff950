"""The classifier alone: the same PLM and training without an adapter.

A first champion has nobody to be better than, so it must be better than this. A sweep that was
finalized has one; for another `promote` trains one, in an MLflow run of its own.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from orchestrator.home import Home
from orchestrator.outcome import Outcome
from orchestrator.ranking import candidates
from orchestrator.store import Store, TrialRecord
from orchestrator.tracking import Tracker
from tinyattn.config import TrainConfig
from tinyattn.workshop import Workshop

ALONE = {"adapter.layers": "none"}
"""Overrides that leave the classifier alone."""
KIND = "baseline"
"""Kind of a run that was trained for a promotion."""
_INHERITED = ("data_fingerprint", "plm_fingerprint", "train_rows", "truncated_rows")


def is_alone(trial: TrialRecord) -> bool:
    """Whether a trial trained the classifier alone."""
    return trial.config.get("adapter.layers") == ALONE["adapter.layers"]


def find_alone(store: Store, trial: TrialRecord) -> TrialRecord | None:
    """Return the best classifier alone of a trial's sweep, by selection score; None: it has none.

    It was trained on the same data to its end, and is scored on the held-out rows.
    """
    data = trial.tags.get("data_fingerprint")
    for other in candidates(store.trials_of(store.find_sweep(trial.sweep))):
        whole = other.outcome is Outcome.COMPLETED and other.heldout_score is not None
        same = other.tags.get("data_fingerprint") == data
        if is_alone(other) and whole and same and store.has_artifact(other.run_id, "adapter"):
            return other
    return None


def train_alone(
    home: Home,
    tracker: Tracker,
    trial: TrialRecord,
    config: TrainConfig,
    workshop: Workshop,
    say: Callable[[str], None],
) -> None:
    """Train the classifier alone as `trial` was trained, in this process, and track it.

    Args:
        home: where the trial's sweep is kept; nobody may be working on it.
        tracker: writes the run.
        trial: the adapter that is to be compared with it.
        config: of that trial.
        workshop: PLM and data.
        say: told each evaluation.

    Raises:
        UsageError: another process works on the sweep.
        TinyAttnError: the training failed.
    """
    # They import Ray and DeepSpeed, which takes seconds, and most promotions train nothing.
    from orchestrator.runner import closed_in_any_case
    from orchestrator.worker import result_of
    from tinyattn.trainer import Trainer

    alone = config.with_overrides({**ALONE, "adapter.num_heads": 1, "start": None})
    name = f"{trial.trial_id}_alone"
    with home.lock(trial.sweep):
        outcome = tracker.find_sweep(trial.sweep).outcome or Outcome.INTERRUPTED
        with closed_in_any_case(tracker, f"promote {trial.run_id}", outcome):
            tracker.resume_sweep(trial.sweep, search_goes_on=False)
            tags = {key: trial.tags[key] for key in _INHERITED if key in trial.tags}
            metric = workshop.task(alone).metrics[0]
            tags["primary_metric"] = metric
            tracker.start_trial(name, config=alone, params=ALONE, tags=tags, kind=KIND)
            with (
                tempfile.TemporaryDirectory() as scratch,
                contextlib.closing(Trainer(alone, workshop)) as trainer,
            ):
                for evaluation in trainer:
                    tracker.log_evaluation(name, result_of(trainer, evaluation))
                    say(
                        f"classifier alone, evaluation {evaluation.index}/{evaluation.total}: "
                        f"{metric} {100 * evaluation.score:.2f}"
                    )
                folder = Path(scratch) / "adapter"
                trainer.save_adapter(folder)
                tracker.end_trial(name, Outcome.COMPLETED, adapter=folder)
            tracker.settle()
