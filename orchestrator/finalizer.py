"""From a sweep's best one-head trials to the adapter worth promoting.

    finalists   the best k configurations again on fresh seeds: mean ± std, and a classifier alone
    experts     the winner's head perturbed into M heads (equations 5-8), trained by a small search
    collapse    each expert back into one head; the collapsed adapter is what would be deployed
    verdict     the collapsed M heads against the one head: they must lead on the selection rows
                and not fall behind on the held-out rows

All training goes through run_batch, as in the sweep itself.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from orchestrator.config import Sweep
from orchestrator.home import Home
from orchestrator.outcome import Outcome
from orchestrator.preflight import Facts, inspect
from orchestrator.registry import primary_metric
from orchestrator.runner import Batch, Ended, closed_in_any_case, concurrency, run_batch
from orchestrator.search import OptunaSearcher
from orchestrator.significance import paired_test
from orchestrator.store import SweepRecord, TrialRecord
from orchestrator.sweep import run_tags
from orchestrator.tracking import Tracker
from tinyattn.batches import Batches, labels_of
from tinyattn.checkpoint import read_card
from tinyattn.config import TrainConfig
from tinyattn.errors import TinyAttnError, UsageError
from tinyattn.experts import CollapseMethod, collapse
from tinyattn.model import AdaptedModel
from tinyattn.tasks import compute_metrics
from tinyattn.tasks.tokens import Split
from tinyattn.trainer import outputs_of
from tinyattn.workshop import Workshop

FRESH_SEED = 1000
"""Seeds of finalists count from here, away from those that searches use."""
BASELINE = {"adapter.layers": "none"}
"""Overrides of the classifier alone: the same PLM and training without an adapter."""


@dataclass(frozen=True)
class Candidate:
    """An adapter and its scores, shares of 1; held-out is None under the protocol `paper`."""

    name: str
    run_id: str
    select: float
    heldout: float | None
    adapter: Path | None = None
    std: float | None = None
    """Standard deviation of `select` over seeds, where there are several."""
    heldout_std: float | None = None
    parameters: int = 0
    """Trainable: adapter and classifier."""


@dataclass(frozen=True)
class Collapsed:
    """An expert and what is left of it in one head."""

    expert: Candidate
    single: Candidate
    method: CollapseMethod
    logit_distance: float
    """Root mean square difference of the logits on the selection rows, relative to their size."""


@dataclass(frozen=True)
class Verdict:
    """What finalizing found."""

    classifier_alone: Candidate | None
    finalists: list[Candidate]
    """A row a configuration: mean and std over seeds; the best first."""
    one_head: Candidate
    """The winner's best seed."""
    best: Collapsed | None
    """The best expert by its collapsed selection score; None: no expert reached a score."""
    p_value: float | None
    """Of the collapsed adapter being no better than one head, paired on the rows compared."""
    helps: bool
    """Whether the collapsed adapter takes the place of one head."""
    compared_on: str
    """`held-out` or, under the protocol `paper`, `dev`."""

    @property
    def winner(self) -> Candidate:
        """The adapter to promote."""
        return self.best.single if self.best is not None and self.helps else self.one_head


def finalize(sweep: Sweep, home: Home) -> Verdict:
    """Finalize a sweep that has run; Ray must be running.

    Args:
        sweep: the sweep as it ran, perhaps with other values under `finalize`.
        home: where it ran.

    Raises:
        UsageError: there is no such sweep, or none of its one-head trials reached a score.
        TinyAttnError: a trial needs more than there is, or all finalists failed.
    """
    concurrency(sweep.resources)
    home.require_space()
    tracker = home.tracker()
    tracker.find_sweep(sweep.name)  # a name that is wrong makes no folder for its lock
    with home.lock(sweep.name):  # what is read here, no other process is about to change
        record = tracker.find_sweep(sweep.name)
        best = best_one_head(tracker, record, sweep.finalize.finalists)
        facts = inspect(sweep, Workshop(home.data_dir, device="cpu"))
        _refuse_other_data(record, facts)
        # A sweep that nobody holds and that has no outcome was left by a process that died.
        with closed_in_any_case(tracker, sweep=record.outcome or Outcome.INTERRUPTED):
            tracker.resume_sweep(sweep.name)
            verdict = _Finalizing(sweep, home, tracker, facts).run(best)
            tracker.tag(record.run_id, {"winner": verdict.winner.run_id})
    return verdict


def _refuse_other_data(record: SweepRecord, facts: Facts) -> None:
    """Raise UsageError where the task's rows are not those that the sweep was trained on."""
    before = record.tags.get("data_fingerprint", facts.data_fingerprint)
    if before != facts.data_fingerprint:
        raise UsageError(
            f"sweep '{record.name}' ran on data with fingerprint {before}, here are "
            f"{facts.data_fingerprint}: rows it trained on could be held out now; use its data"
        )


def best_one_head(tracker: Tracker, sweep: SweepRecord, count: int) -> list[TrialRecord]:
    """The best trials of the search with one head, completed ones first.

    Raises:
        UsageError: there is none with a score.
    """
    trials = [
        trial
        for trial in tracker.trials_of(sweep)
        if trial.kind == "trial"
        and trial.config.get("adapter.num_heads") == 1
        and trial.outcome in (Outcome.COMPLETED, Outcome.STOPPED)
        and trial.best_score is not None
    ]
    if not trials:
        raise UsageError(
            f"sweep '{sweep.name}' has no one-head trial with a score: there is nothing to "
            "finalize; let it run to its end first"
        )
    trials.sort(key=lambda t: (t.outcome is not Outcome.COMPLETED, -(t.best_score or 0)))
    return trials[:count]


class _Finalizing:
    """One run of the finalizer: what its steps share."""

    def __init__(self, sweep: Sweep, home: Home, tracker: Tracker, facts: Facts) -> None:
        self.sweep, self.home, self.tracker, self.facts = sweep, home, tracker, facts
        self.folder = home.sweep_folder(sweep.name)

    @functools.cached_property
    def workshop(self) -> Workshop:
        """PLM and data in this process, loaded when no trial needs the device any more."""
        return Workshop(self.home.data_dir)

    def run(self, best: Sequence[TrialRecord]) -> Verdict:
        """Finalists, experts, collapse, verdict."""
        alone, finalists, one_head, config = self._finalists(best)
        experts = self._experts(one_head, config)
        collapsed = [self._collapse(expert, config) for expert in experts]
        best_expert = max(collapsed, key=lambda found: found.single.select, default=None)
        p_value, helps = self._compare(one_head, best_expert, config)
        return Verdict(
            classifier_alone=alone,
            finalists=finalists,
            one_head=one_head,
            best=best_expert,
            p_value=p_value,
            helps=helps,
            compared_on="dev" if self.sweep.train.protocol == "paper" else "held-out",
        )

    # ---- finalists ----

    def _finalists(
        self, best: Sequence[TrialRecord]
    ) -> tuple[Candidate | None, list[Candidate], Candidate, TrainConfig]:
        """Run the best configurations on fresh seeds, and the best one's classifier alone."""
        seeds = [FRESH_SEED + i for i in range(self.sweep.finalize.seeds)]
        points = [{**t.params, "seed": seed} for t in best for seed in seeds]
        points += [{**best[0].params, **BASELINE, "seed": seed} for seed in seeds]
        batch = self._batch("finalists", "finalist", self.sweep.train, len(points))
        ended = run_batch(
            batch,
            folder=self.folder,
            tracker=self.tracker,
            points=points,
            data_dir=self.home.data_dir,
        )
        done = [trial for trial in ended if trial.outcome is Outcome.COMPLETED]
        baseline = [trial for trial in done if _is_baseline(trial)]
        alone = self._mean_candidate("classifier alone", baseline) if baseline else None
        groups = [
            [trial for trial in done if {**trial.params, "seed": 0} == {**t.params, "seed": 0}]
            for t in best
        ]
        groups = [group for group in groups if group]
        if not groups:
            raise TinyAttnError("no finalist completed; the runs in MLflow say why")
        groups.sort(key=lambda group: -statistics.mean(t.result["best_score"] for t in group))
        winner = max(groups[0], key=lambda trial: trial.result["best_score"])
        rows = [self._mean_candidate(f"1 head, rank {i}", g) for i, g in enumerate(groups, 1)]
        config = self.sweep.trial_config(winner.params)
        return alone, rows, self._candidate("1 head", winner), config

    # ---- experts ----

    def _experts(self, one_head: Candidate, config: TrainConfig) -> list[Ended]:
        """Search for the training that makes M perturbed copies of the head better than one."""
        final = self.sweep.finalize
        assert one_head.adapter is not None
        base = config.with_overrides(
            {
                "adapter.num_heads": final.heads,
                "start": {"adapter": str(one_head.adapter), "noise": final.noise},
            }
        )
        trials = final.search.trials if final.space else 1
        batch = self._batch("experts", "expert", base, trials, lineage=one_head.run_id)
        searcher = None
        if final.space:
            path = self.folder / f"experts-{one_head.run_id[:8]}.journal"
            searcher = OptunaSearcher(final.space, final.search, path, self.sweep.name)
        ended = run_batch(
            batch,
            folder=self.folder,
            tracker=self.tracker,
            searcher=searcher,
            points=() if final.space else [{}],
            data_dir=self.home.data_dir,
        )
        return [trial for trial in ended if trial.outcome is Outcome.COMPLETED]

    # ---- collapse ----

    def _collapse(self, trial: Ended, config: TrainConfig) -> Collapsed:
        """Collapse an expert by each method, keep the best on the selection rows, and track it."""
        assert trial.adapter is not None
        data = self.workshop.data(config)
        expert = self._candidate(f"{self.sweep.finalize.heads} heads", trial)
        with _Loaded(trial.adapter, config, self.workshop) as loaded:
            wide = loaded.model.adapter()
            before = loaded.outputs(data.select)
            primary = data.task.metrics[0]
            scored = {}
            for method in get_args(CollapseMethod):
                loaded.use(collapse(wide, loaded.model.plm, method))
                after = loaded.outputs(data.select)
                score = compute_metrics(data.task, after, labels_of(data.select))[primary]
                scored[method] = (score, after)
            best: CollapseMethod = max(scored, key=lambda method: scored[method][0])
            score, after = scored[best]
            loaded.use(collapse(wide, loaded.model.plm, best))
            distance = float(np.linalg.norm(after - before) / np.linalg.norm(before))
            heldout: dict[str, float] = {}
            if data.heldout is not None:
                outputs = loaded.outputs(data.heldout)
                heldout = compute_metrics(data.task, outputs, labels_of(data.heldout))
            run_id, folder = self._track_collapsed(
                trial, config, loaded, score, heldout, best, distance
            )
            counts = loaded.model.counts()
        single = Candidate(
            f"{self.sweep.finalize.heads} heads collapsed",
            run_id,
            score,
            heldout.get(primary),
            folder,
            parameters=counts.trainable,
        )
        return Collapsed(expert, single, best, distance)

    def _track_collapsed(
        self,
        trial: Ended,
        config: TrainConfig,
        loaded: _Loaded,
        score: float,
        heldout: dict[str, float],
        method: str,
        distance: float,
    ) -> tuple[str, Path]:
        """Save a collapsed adapter and give it an MLflow run of its own."""
        trial_id = f"{trial.trial_id}_collapsed"
        folder = self.folder / "adapters" / trial_id
        primary = loaded.task.metrics[0]
        scores = {f"select/{primary}": score}
        scores |= {f"heldout/{name}": value for name, value in heldout.items()}
        lineage = {"expert_run": trial.run_id, "method": method}
        loaded.save(folder, scores, lineage)
        run_id = self.tracker.start_trial(
            trial_id,
            config=config.with_overrides(trial.params),
            params={**trial.params, "collapse": method},
            tags={**run_tags(self.facts), "lineage": trial.run_id, "collapse_method": method},
            kind="collapsed",
        )
        counts = loaded.model.counts()
        result = {
            "evaluation": 1,
            "score": score,
            "best_score": score,
            "seconds": 0.0,
            "adapter_params": counts.adapter,
            "classifier_params": counts.classifier,
            "collapse_logit_distance": distance,
            "collapse_score_change": score - trial.result["best_score"],
            "heldout": heldout,
        }
        self.tracker.log_evaluation(trial_id, result)
        self.tracker.end_trial(trial_id, Outcome.COMPLETED, adapter=folder)
        return run_id, folder

    # ---- verdict ----

    def _compare(
        self, one_head: Candidate, best: Collapsed | None, config: TrainConfig
    ) -> tuple[float | None, bool]:
        """Compare the collapsed adapter with one head, paired on rows that neither trained on."""
        if best is None:
            return None, False
        data = self.workshop.data(config)
        split = data.heldout or data.select
        outputs = []
        for candidate in (best.single, one_head):
            assert candidate.adapter is not None
            with _Loaded(candidate.adapter, config, self.workshop) as loaded:
                outputs.append(loaded.outputs(split))

        labels = labels_of(split)
        test = paired_test(primary_metric(data.task), outputs[0], outputs[1], labels)
        # Selection rows choose, as everywhere; held-out rows may only speak against.
        better = best.single.select > one_head.select
        return test.p_value, better and test.new_score >= test.old_score

    def _candidate(self, name: str, trial: Ended) -> Candidate:
        result = trial.result
        heldout = (result.get("heldout") or {}).get(self.facts.primary_metric)
        return Candidate(
            name,
            trial.run_id,
            float(result["best_score"]),
            None if heldout is None else float(heldout),
            trial.adapter,
            parameters=int(result["adapter_params"] + result["classifier_params"]),
        )

    def _mean_candidate(self, name: str, group: list[Ended]) -> Candidate:
        """Mean and standard deviation over seeds; run and adapter are the best seed's."""
        each = [self._candidate(name, trial) for trial in group]
        scores = [one.select for one in each]
        heldout = [one.heldout for one in each if one.heldout is not None]
        return replace(
            max(each, key=lambda one: one.select),
            select=statistics.mean(scores),
            heldout=statistics.mean(heldout) if heldout else None,
            std=statistics.stdev(scores) if len(scores) > 1 else None,
            heldout_std=statistics.stdev(heldout) if len(heldout) > 1 else None,
        )

    def _batch(self, name: str, kind: str, base: TrainConfig, trials: int, **tags: str) -> Batch:
        return Batch(
            name=f"{name}-{len(list(self.folder.glob(f'{name}-*'))) + 1}",
            title=f"{self.sweep.name} {name}",
            kind=kind,
            base=base,
            trials=trials,
            evaluations=self.facts.evaluations,
            resources=self.sweep.resources,
            tags={**run_tags(self.facts), **tags},
        )


class _Loaded:
    """A saved adapter on its PLM, for the length of a `with` block."""

    def __init__(self, folder: Path, config: TrainConfig, workshop: Workshop) -> None:
        self.folder, self.workshop = folder, workshop
        self.plm = workshop.plm(config.plm, config.precision)
        self.task = workshop.data(config).task
        self.card = read_card(folder)

    def __enter__(self) -> _Loaded:
        self.model = AdaptedModel(self.plm.model, self.card.adapter.placement)
        self.model.load(self.folder, self.plm)
        return self

    def __exit__(self, *_: object) -> None:
        self.model.detach()

    def use(self, adapter: Any) -> None:
        """Run with this adapter instead of the loaded one."""
        self.model.adapters["used"] = adapter.to(self.workshop.device)
        self.model.switch("used")

    def outputs(self, split: Split) -> np.ndarray:
        """Logits [N, num_outputs]."""
        rows = Batches(split, self.plm.tokenizer)
        return outputs_of(self.model, rows, self.workshop.device)[0]

    def save(self, folder: Path, scores: dict[str, float], lineage: dict[str, Any]) -> None:
        """Save the adapter in use."""
        lineage = {**self.card.lineage, **lineage}
        self.model.save(folder, self.plm, task=self.card.task, scores=scores, lineage=lineage)


def _is_baseline(trial: Ended) -> bool:
    return trial.params.get("adapter.layers") == BASELINE["adapter.layers"]
