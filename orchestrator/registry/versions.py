"""Versions of registered adapters, and `promote`: the rule by which one becomes the champion."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlflow.entities.model_registry import ModelVersion

from orchestrator.registry.champions import holder, model_name, models, move_alias, reigning
from orchestrator.registry.reign import FIRST, VACANT, Challenge, enter, record
from orchestrator.selection.baseline import find_alone
from orchestrator.selection.significance import (
    PairedTest,
    paired_test,
    permutations_for,
    primary_metric,
)
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.trial import is_alone
from orchestrator.state.ranking import best_of, no_candidate, passed_over, standing_of_run
from orchestrator.tracking.pages import run_page
from orchestrator.tracking.reader import FINAL_KINDS, TAG, TrackingReader, TrialRun
from orchestrator.tracking.writer import TrackingWriter
from tinyattn.errors import UsageError
from tinyattn.serving import save_model
from tinyattn.tasks import Task, compute_metrics

_IDLE = "; beware: always giving the commonest answer scores as much on the held-out rows"


def _fits(adapter: Path) -> str:
    return ""


@dataclass(frozen=True)
class HeldOut:
    """The held-out rows, on which nothing was chosen, and a function that runs adapters on them."""

    labels: np.ndarray
    """[N] class ids or scores."""
    outputs_of: Callable[[Path], np.ndarray]
    """Adapter folder → outputs [N, num_outputs] on the held-out rows."""
    groups: np.ndarray | None = None
    """[N] group of each row, as for `paired_test`; None: all rows are independent."""
    fingerprint: str = ""
    """Hash of these rows; a reign has a separate budget for each."""
    objection: Callable[[Path], str] = _fits
    """Adapter folder → reason why the adapter cannot be tested on these rows; empty: it can."""


def _trains_nothing() -> None:
    """Default of `train_alone`: the classifier alone has been trained, or cannot be."""


@dataclass(frozen=True)
class Benchmark:
    """All that `promote` needs to compare runs of a task."""

    task: Task
    heldout: HeldOut | None
    """The held-out rows; None under the protocol `paper`, which selects on all labelled rows."""
    train_alone: Callable[[], None] = _trains_nothing
    """Trains the classifier alone, the rival of a first champion, unless the sweep has it."""


@dataclass(frozen=True)
class Promotion:
    """The result of `promote`."""

    model: str
    version: int
    moved: bool
    """Whether this call moved the alias to this version."""
    previous: int | None
    """Version of the previous champion; None: there was none."""
    test: PairedTest | None
    """The paired test; None: none was made, since the version is champion already, or since a run
    without a rival was forced."""
    forced: bool
    """Whether `force` moved the alias against the rule."""
    reason: str
    """Message for the user."""
    challenge: Challenge | None = None
    """The challenge as which the test counted; None: it did not count."""


def promote(
    tracker: TrackingWriter,
    name: str,
    benchmark_of: Callable[[TrialRun], Benchmark],
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Promotion:
    """Register a run's adapter, and make it champion if it passes the test.

    It must be better than the champion on the held-out rows, at the level of its challenge
    (`reign.py`). While there is no champion, the rival is the sweep's classifier alone.

    Args:
        tracker: the MLflow store.
        name: a trial's run id, or a sweep's name for its winner.
        benchmark_of: returns a run's task and held-out rows.
        force: move the alias whatever the result, also without a held-out score. The test does not
            count as a challenge, and the new reign has its whole budget.
        say: called with a message if the test takes long.

    Raises:
        UsageError: the run is unknown or has no adapter; or, without `force`, it has no held-out
            score or no rival. The alias has not moved.
    """
    trial = candidate(tracker, name, force)
    _refuse_without_adapter(tracker, trial)
    _refuse_unmeasured(trial, force)
    benchmark = benchmark_of(trial)
    model = model_name(trial.task, trial.plm)
    previous = reigning(tracker, model) if model in models(tracker) else None
    rival = _rival(tracker, benchmark, trial, previous, force)
    with tempfile.TemporaryDirectory() as folder:
        adapter = tracker.download(trial.run_id, "adapter", Path(folder))
        rival_adapter, objection = _fetch(tracker, benchmark, rival, Path(folder))
        if objection and not force:
            raise UsageError(f"{objection}; --force promotes the run without a comparison")
        version = _register(tracker, model, trial, adapter, benchmark.task, Path(folder))
        number = int(version.version)
        if previous is not None and int(previous.version) == number:
            why = "it is the champion already"
            return Promotion(model, number, False, number, None, False, why)
        challenge = None if force else _enter(tracker, model, rival, benchmark, trial)
        test = challenge.test if challenge is not None else None
        if test is None and rival_adapter is not None:
            test = _compare(benchmark, adapter, rival_adapter, challenge, say)
        if challenge is not None and test is not None:
            record(tracker, model, challenge, test)
    level = FIRST if challenge is None else challenge.level
    supported = test is not None and test.p_value <= level
    forced = force and not supported
    moved = forced or supported
    old = int(previous.version) if previous is not None else None
    _tag_version(tracker, model, number, _evidence(trial, test, old if moved else None))
    if moved:
        if not force:
            _refuse_moved(tracker, model, previous)
        move_alias(tracker, model, number)
    reason = _reason(test, rival, trial, forced, level, objection)
    reason += _IDLE if _is_idle(benchmark, trial) else ""
    about = _description(trial, "champion" if moved else "not the champion", reason)
    tracker.client.update_model_version(model, str(number), about)
    return Promotion(model, number, moved, old, test, forced, reason, challenge)


@dataclass(frozen=True)
class _Rival:
    """The adapter that a newcomer is compared with."""

    version: int
    """Version of the champion; VACANT for the classifier alone."""
    run_id: str
    name: str


def _rival(
    tracker: TrackingWriter,
    benchmark: Benchmark,
    trial: TrialRun,
    previous: ModelVersion | None,
    force: bool,
) -> _Rival | None:
    """Return the champion, or the sweep's classifier alone; None: no test is possible.

    Raises:
        UsageError: without `force`: the run is itself a classifier alone, or none could be trained
            to its end.
    """
    if benchmark.heldout is None or trial.heldout_score is None:
        return None
    if previous is not None:
        return _Rival(int(previous.version), previous.run_id or "", f"version {previous.version}")
    if is_alone(trial.config) and not force:
        raise UsageError(
            f"trial {trial.name} is a classifier alone, which a first champion must be better "
            "than; --force promotes it anyway"
        )
    if not force:
        benchmark.train_alone()
    found = find_alone(tracker, trial)
    if found is None and not force:
        raise UsageError(
            f"a first champion must be better than its sweep's classifier alone, which sweep "
            f"'{trial.sweep}' lacks: its training failed with each learning rate tried; --force "
            "promotes the run without a comparison"
        )
    if found is None or found.run_id == trial.run_id:
        return None
    return _Rival(VACANT, found.run_id, f"the classifier alone ({found.trial.name}, its best run)")


def _enter(
    tracker: TrackingWriter,
    model: str,
    rival: _Rival | None,
    benchmark: Benchmark,
    trial: TrialRun,
) -> Challenge | None:
    """Count the challenge before its result is known; None if there is no rival."""
    if rival is None or benchmark.heldout is None:
        return None
    return enter(tracker, model, rival.version, benchmark.heldout.fingerprint, trial.run_id)


def _refuse_moved(tracker: TrackingWriter, model: str, previous: ModelVersion | None) -> None:
    """Raise UsageError if the alias was moved since the test began."""
    now = holder(tracker, model)
    if (now and now.version) != (previous and previous.version):
        raise UsageError(
            f"{model} got another champion while this run was compared; promote it again"
        )


def is_finalized(store: TrackingReader, name: str) -> bool:
    """Return whether `name` is a finalized sweep; True too for a run id, which needs no winner."""
    return all("winner" in sweep.tags for sweep in store.sweeps() if sweep.name == name)


def candidate(store: TrackingReader, name: str, force: bool = False) -> TrialRun:
    """Return the trial to promote for a run id or a sweep's name.

    For a sweep it is the run that its finalizer chose (tag `winner`), else its completed trial with
    the best selection score. Held-out scores choose nothing: they are kept for the test.

    Raises:
        UsageError: no run or sweep is called `name`, the sweep has no completed trial, or, without
            `force`, its finalizer has not ended.
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
    completed = [t for t in trials if t.trial.outcome is Outcome.COMPLETED and t.kind == "trial"]
    best = best_of(completed, standing_of_run)
    if best is None:
        raise UsageError(f"sweep '{name}' has no completed trial yet: there is nothing to promote")
    return best


def ahead_of_candidate(store: TrackingReader, name: str) -> list[str]:
    """Return a message for each trial that scored more than the sweep's candidate.

    For a finalized sweep the list is empty: its finalizer has shown these messages.
    """
    if not any(s.name == name and "winner" not in s.tags for s in store.sweeps()):
        return []
    searched = [t for t in store.trials_of(store.find_sweep(name)) if t.kind == "trial"]
    said = []
    if (ahead := passed_over(searched, standing_of_run)) is not None:
        said.append(no_candidate(ahead.trial.name, ahead.trial.best_score))
    best = best_of(searched, standing_of_run)
    if best is not None and (leader := best.trial).outcome is not Outcome.COMPLETED:
        said.append(
            f"{leader.name} leads with {100 * (leader.best_score or 0.0):.2f}, but it "
            f"{'was ' + leader.outcome.value if leader.outcome else 'is still running'}: only a "
            "completed trial has a held-out score to be promoted by"
        )
    return said


def _refuse_without_adapter(store: TrackingReader, trial: TrialRun) -> None:
    """Raise UsageError for a run that kept no adapter."""
    if not store.has_artifact(trial.run_id, "adapter"):
        raise UsageError(
            f"trial {trial.name} kept no adapter: there is nothing to promote; choose a completed "
            "trial from `tinyattn leaderboard`"
        )


def _refuse_unmeasured(run: TrialRun, force: bool) -> None:
    """Raise UsageError for a run that has no held-out score, unless forced."""
    if run.heldout_score is not None or force:
        return
    if run.protocol == "paper":
        why = (
            "protocol 'paper' selects on the official dev set, so no held-out rows are left to "
            "judge it by; run the sweep with protocol=heldout"
        )
    elif run.trial.outcome is Outcome.COMPLETED:
        found = ", ".join(run.trial.heldout) or "nothing"
        metric = run.primary_metric or "the task's primary metric"
        why = f"{metric} was not measured on the held-out rows, only {found}"
    else:
        outcome = run.trial.outcome.value if run.trial.outcome else "still running"
        why = f"it is {outcome}: only a completed trial is scored on the held-out rows"
    raise UsageError(f"trial {run.name} has no held-out score: {why}; --force promotes it anyway")


def _fetch(
    tracker: TrackingWriter, benchmark: Benchmark, rival: _Rival | None, folder: Path
) -> tuple[Path | None, str]:
    """Return the rival's adapter and '', or None and the reason why it cannot be compared."""
    if rival is None or benchmark.heldout is None:
        return None, ""
    (folder / "old").mkdir()
    adapter = tracker.download(rival.run_id, "adapter", folder / "old")
    objection = benchmark.heldout.objection(adapter)
    return (None if objection else adapter), objection


def _compare(
    benchmark: Benchmark,
    adapter: Path,
    old: Path,
    challenge: Challenge | None,
    say: Callable[[str], None],
) -> PairedTest:
    """Test the newcomer against its rival, finely enough for the challenge's level."""
    heldout = benchmark.heldout
    assert heldout is not None
    level = FIRST if challenge is None else challenge.level
    return paired_test(
        primary_metric(benchmark.task),
        heldout.outputs_of(adapter),
        heldout.outputs_of(old),
        heldout.labels,
        groups=heldout.groups,
        permutations=permutations_for(level),
        level=level,
        say=say,
    )


def _register(
    tracker: TrackingWriter, model: str, trial: TrialRun, adapter: Path, task: Task, folder: Path
) -> ModelVersion:
    """Return the run's version of the registered model; register version and model if needed."""
    known = [v for v in _versions(tracker, model) if v.run_id == trial.run_id]
    if known:  # else MLflow would make a second version of the same run
        return known[0]
    save_model(adapter, folder / "model", task=task)
    tracker.log_folder(trial.run_id, folder / "model", "model")
    if model not in models(tracker):
        tags = {TAG + "task": trial.task, TAG + "plm": trial.plm}
        tracker.client.create_registered_model(model, tags)
    source = f"runs:/{trial.run_id}/model"
    return tracker.client.create_model_version(model, source, trial.run_id)


def _evidence(run: TrialRun, test: PairedTest | None, previous: int | None) -> dict[str, str]:
    """Return the tags of a version that record the evidence for its promotion."""
    tags = {
        "run": run.run_id,
        "sweep": run.sweep,
        "trial": run.trial.name,
        "kind": run.kind,
        "protocol": run.protocol,
        "score": str(run.trial.best_score),
        "heldout": json.dumps(run.trial.heldout),
    }
    if test is not None:
        tags |= {"p_value": str(test.p_value), "heldout_score": str(test.new_score)}
    if previous is not None:
        tags["previous_champion"] = str(previous)
    if "lineage" in run.tags:
        tags["lineage"] = run.tags["lineage"]
    return tags


def _is_idle(benchmark: Benchmark, trial: TrialRun) -> bool:
    """Whether the same answer for all rows would score as much on the held-out rows."""
    if benchmark.heldout is None or trial.heldout_score is None:
        return False
    labels, task = benchmark.heldout.labels, benchmark.task
    if task.is_regression:  # a constant has correlation 0
        return trial.heldout_score <= 0
    always = np.zeros((len(labels), task.num_outputs), dtype=np.float32)
    always[:, np.bincount(labels.astype(int)).argmax()] = 1
    return trial.heldout_score <= compute_metrics(task, always, labels)[task.metrics[0]] + 1e-9


def _reason(
    test: PairedTest | None,
    rival: _Rival | None,
    trial: TrialRun,
    forced: bool,
    level: float,
    objection: str,
) -> str:
    if objection:
        return f"forced, though it could not be compared: {objection}"
    if test is None or rival is None:
        scored = trial.heldout_score is not None
        why = "it was compared with nothing" if scored else "it has no held-out score"
        return f"forced, though {why}"
    p = f"{test.p_value:.4f}" if test.p_value >= 0.001 else f"{test.p_value:.1e}"
    why = (
        f"{100 * test.new_score:.2f} against {100 * test.old_score:.2f} of {rival.name} on the "
        f"held-out rows, p = {p}"
    )
    if forced:
        return f"forced, though {why}"
    if test.p_value > level:
        stays = "there is no champion yet" if rival.version == VACANT else "the champion stays"
        return f"{why}, above {level:.2g}: {stays}"
    return why


def _description(run: TrialRun, state: str, reason: str) -> str:
    """Return the description of a version for its page in MLflow, in Markdown."""
    page = run_page(run.experiment_id, run.run_id)
    scores = [("selection", run.trial.best_score), ("held-out", run.heldout_score)]
    words = ", ".join(f"{100 * value:.2f} {rows}" for rows, value in scores if value is not None)
    return (
        f"**{run.task}** on {run.plm}: {run.kind} [{run.name}]({page}), "
        f"{words or 'no score'}.\n\nAt its promotion: {state}. {reason}\n\n"
        f"On a file of rows, as champion: `tinyattn predict {run.task} FILE`"
    )


def _tag_version(tracker: TrackingWriter, model: str, version: int, tags: dict[str, str]) -> None:
    for key, value in tags.items():
        tracker.client.set_model_version_tag(model, str(version), TAG + key, value)


def _versions(store: TrackingReader, model: str) -> list[ModelVersion]:
    return list(store.client.search_model_versions(f"name='{model}'"))
