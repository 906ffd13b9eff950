"""Registers adapters, and moves the alias `champion` only to a better one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlflow.entities.model_registry import ModelVersion

from orchestrator.champions import holder, model_name, models, move_alias
from orchestrator.outcome import Outcome
from orchestrator.ranking import best_of, standing_of
from orchestrator.serving import save_model
from orchestrator.significance import PairedTest, paired_test, primary_metric
from orchestrator.store import TAG, Store, TrialRecord
from orchestrator.tracking import Tracker
from tinyattn.errors import UsageError
from tinyattn.tasks import Task, compute_metrics

SIGNIFICANCE = 0.05


FINAL_KINDS = ("finalist", "expert", "collapsed")
"""Kinds of the finalizer's runs."""
_IDLE = "; beware: always giving the commonest answer scores as much on the held-out rows"


@dataclass(frozen=True)
class HeldOut:
    """Rows that chose nothing, and how an adapter answers on them."""

    labels: np.ndarray
    """[N] class ids or scores."""
    outputs_of: Callable[[Path], np.ndarray]
    """Adapter folder → outputs [N, num_outputs] on the held-out rows."""
    groups: np.ndarray | None = None
    """[N] the same number for rows that belong together; None: none do."""


@dataclass(frozen=True)
class Benchmark:
    """What runs of one task are compared by."""

    task: Task
    heldout: HeldOut | None
    """None: the protocol `paper` chooses by all labelled rows that are not for training."""


@dataclass(frozen=True)
class Promotion:
    """What `promote` did."""

    model: str
    version: int
    moved: bool
    """Whether the alias now points to this version because of this call."""
    previous: int | None
    """The champion before; None: there was none."""
    test: PairedTest | None
    """None: there was nothing to compare with, or a run without held-out score was forced."""
    forced: bool
    """Whether `force` moved the alias against the rule."""
    reason: str
    """One sentence for the user."""


def promote(
    tracker: Tracker,
    name: str,
    benchmark_of: Callable[[TrialRecord], Benchmark],
    *,
    force: bool = False,
) -> Promotion:
    """Register a run's adapter and make it champion where the evidence supports it.

    Args:
        tracker: the store.
        name: a trial's run id, or a sweep's name: its winner.
        benchmark_of: gives the run's task and its held-out rows.
        force: move the alias whatever the test says, also without a held-out score.

    Raises:
        UsageError: no such run, no adapter, or no held-out score and no `force`. Nothing changed.
    """
    trial = candidate(tracker, name, force)
    _refuse_without_adapter(tracker, trial)
    _refuse_unmeasured(trial, force)
    benchmark = benchmark_of(trial)
    model = model_name(trial.task, trial.plm)
    with tempfile.TemporaryDirectory() as folder:
        adapter = tracker.download(trial.run_id, "adapter", Path(folder))
        previous = holder(tracker, model)
        test = _compare(tracker, benchmark, adapter, previous, trial, Path(folder))
        version = _register(tracker, model, trial, adapter, benchmark.task, Path(folder))
    number = int(version.version)
    if previous is not None and int(previous.version) == number:
        return Promotion(model, number, False, number, None, False, "it is the champion already")
    supported = previous is None or (test is not None and test.p_value < SIGNIFICANCE)
    measured = trial.heldout_score is not None
    idle = _is_idle(benchmark, trial)
    forced = force and not (supported and measured)
    moved = forced or supported
    old = int(previous.version) if previous is not None else None
    _tag_version(tracker, model, number, _evidence(trial, test, old if moved else None))
    if moved:
        move_alias(tracker, model, number)
    reason = _reason(test, old, forced, measured) + (_IDLE if idle else "")
    return Promotion(model, number, moved, old, test, forced, reason)


def is_finalized(store: Store, name: str) -> bool:
    """Whether what `name` means was chosen by a finalizer, or by whoever named a run."""
    return all("winner" in sweep.tags for sweep in store.sweeps() if sweep.name == name)


def candidate(store: Store, name: str, force: bool = False) -> TrialRecord:
    """Return the trial that `name` means: a run id, or a sweep's winner.

    A sweep's winner is the run that its finalizer chose (tag `winner`), else its completed trial
    with the best selection score: never the best held-out score, which is kept for judging. A
    finalizer that was begun and not ended is a UsageError, unless forced.
    """
    if not any(sweep.name == name for sweep in store.sweeps()):
        try:
            return store.trial(name)
        except UsageError:
            store.find_sweep(name)  # raises, with the names of the sweeps there are
    sweep = store.find_sweep(name)
    if "winner" in sweep.tags:
        return store.trial(sweep.tags["winner"])
    trials = store.trials_of(sweep)
    if not force and any(trial.kind in FINAL_KINDS for trial in trials):
        raise UsageError(
            f"sweep '{name}' was not finalized to the end; `tinyattn finalize {name}` goes on "
            "where it was, --force promotes the search's best trial"
        )
    completed = [t for t in trials if t.outcome is Outcome.COMPLETED and t.kind == "trial"]
    best = best_of(completed, standing_of)
    if best is None:
        raise UsageError(f"sweep '{name}' has no completed trial yet: there is nothing to promote")
    return best


def _refuse_without_adapter(store: Store, trial: TrialRecord) -> None:
    """Raise UsageError for a run that kept no adapter."""
    if not store.has_artifact(trial.run_id, "adapter"):
        raise UsageError(
            f"run {trial.run_id} kept no adapter: there is nothing to promote; choose a completed "
            "trial from `tinyattn leaderboard`"
        )


def _refuse_unmeasured(trial: TrialRecord, force: bool) -> None:
    """Raise UsageError for a run that has no held-out score, unless forced."""
    if trial.heldout_score is not None or force:
        return
    if trial.protocol == "paper":
        why = (
            "protocol 'paper' selects on the official dev set, so no held-out rows are left to "
            "judge it by; run the sweep with protocol=heldout"
        )
    elif trial.outcome is Outcome.COMPLETED:
        found = ", ".join(trial.heldout) or "nothing"
        metric = trial.primary_metric or "the task's primary metric"
        why = f"{metric} was not measured on the held-out rows, only {found}"
    else:
        outcome = trial.outcome.value if trial.outcome else "still running"
        why = f"it is {outcome}: only a completed trial is scored on the held-out rows"
    raise UsageError(f"run {trial.run_id} has no held-out score: {why}; --force promotes it anyway")


def _compare(
    tracker: Tracker,
    benchmark: Benchmark,
    adapter: Path,
    previous: ModelVersion | None,
    trial: TrialRecord,
    folder: Path,
) -> PairedTest | None:
    """Test the newcomer against the champion, where there is another one."""
    heldout = benchmark.heldout
    if previous is None or previous.run_id == trial.run_id:
        return None
    if heldout is None or trial.heldout_score is None:
        return None
    (folder / "old").mkdir()
    old_adapter = tracker.download(previous.run_id or "", "adapter", folder / "old")
    new, old = heldout.outputs_of(adapter), heldout.outputs_of(old_adapter)
    metric = primary_metric(benchmark.task)
    return paired_test(metric, new, old, heldout.labels, groups=heldout.groups)


def _register(
    tracker: Tracker, model: str, trial: TrialRecord, adapter: Path, task: Task, folder: Path
) -> ModelVersion:
    """Return the run's version of the registered model, making both where needed."""
    known = [v for v in _versions(tracker, model) if v.run_id == trial.run_id]
    if known:  # MLflow would make a second version of the same run
        return known[0]
    save_model(adapter, folder / "model", task=task)
    tracker.log_folder(trial.run_id, folder / "model", "model")
    if model not in models(tracker):
        tags = {TAG + "task": trial.task, TAG + "plm": trial.plm}
        tracker.client.create_registered_model(model, tags)
    source = f"runs:/{trial.run_id}/model"
    return tracker.client.create_model_version(model, source, trial.run_id)


def _evidence(trial: TrialRecord, test: PairedTest | None, previous: int | None) -> dict[str, str]:
    """Return what a version's tags say about why it is where it is."""
    tags = {
        "run": trial.run_id,
        "sweep": trial.sweep,
        "trial": trial.trial_id,
        "kind": trial.kind,
        "protocol": trial.protocol,
        "score": str(trial.best_score),
        "heldout": json.dumps(trial.heldout),
    }
    if test is not None:
        tags |= {"p_value": str(test.p_value), "heldout_score": str(test.new_score)}
    if previous is not None:
        tags["previous_champion"] = str(previous)
    if "lineage" in trial.tags:
        tags["lineage"] = trial.tags["lineage"]
    return tags


def _is_idle(benchmark: Benchmark, trial: TrialRecord) -> bool:
    """Whether one answer for all rows would score as much on the held-out rows."""
    if benchmark.heldout is None or trial.heldout_score is None:
        return False
    labels, task = benchmark.heldout.labels, benchmark.task
    if task.is_regression:  # correlation with a constant is none
        return trial.heldout_score <= 0
    always = np.zeros((len(labels), task.num_outputs), dtype=np.float32)
    always[:, np.bincount(labels.astype(int)).argmax()] = 1
    return trial.heldout_score <= compute_metrics(task, always, labels)[task.metrics[0]] + 1e-9


def _reason(test: PairedTest | None, old: int | None, forced: bool, measured: bool) -> str:
    if test is None:
        why = "there was no champion yet" if measured else "it has no held-out score"
    else:
        why = (
            f"{test.new_score:.4f} against {test.old_score:.4f} of version {old} on the held-out "
            f"rows, p = {test.p_value:.4f}"
        )
    if forced:
        return f"forced, though {why}"
    if test is not None and test.p_value >= SIGNIFICANCE:
        return f"{why}: not below {SIGNIFICANCE}, the champion stays"
    return why


def _tag_version(tracker: Tracker, model: str, version: int, tags: dict[str, str]) -> None:
    for key, value in tags.items():
        tracker.client.set_model_version_tag(model, str(version), TAG + key, value)


def _versions(store: Store, model: str) -> list[ModelVersion]:
    return list(store.client.search_model_versions(f"name='{model}'"))
