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
import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.asker import Points, Source
from orchestrator.batch import Batch
from orchestrator.collapsing import Collapse, Loaded, collapse_in_place
from orchestrator.config import Sweep
from orchestrator.home import Home
from orchestrator.journal import refuse_damaged
from orchestrator.nodes import concurrency
from orchestrator.outcome import Outcome
from orchestrator.preflight import Facts, inspect
from orchestrator.provenance import refuse_other_data
from orchestrator.ranking import candidates, no_candidate, passed_over, standing_of
from orchestrator.runner import Ended, closed_in_any_case, run_batch
from orchestrator.search import OptunaSearcher
from orchestrator.significance import paired_test, primary_metric
from orchestrator.store import SweepRecord, TrialRecord
from orchestrator.sweep import run_tags
from orchestrator.tracking import Tracker
from orchestrator.verdict import Candidate, Collapsed, Verdict
from orchestrator.view import short
from tinyattn.batches import labels_of
from tinyattn.config import TrainConfig
from tinyattn.errors import TinyAttnError, UsageError
from tinyattn.model import Counts
from tinyattn.tasks import compute_metrics
from tinyattn.tasks.tokens import Rows
from tinyattn.workshop import Workshop

FRESH_SEED = 1000
"""Seeds of finalists count from here, away from those that searches use."""
BASELINE = {"adapter.layers": "none"}
"""Overrides of the classifier alone: the same PLM and training without an adapter."""


def finalize(sweep: Sweep, home: Home, say: Callable[[str], None] = lambda line: None) -> Verdict:
    """Finalize a sweep that has run; Ray must be running.

    Args:
        sweep: the sweep as it ran, perhaps with other values under `finalize`.
        home: where it ran.
        say: told what is going on where no trial runs.

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
        searched = [trial for trial in tracker.trials_of(record) if trial.kind == "trial"]
        if (ahead := passed_over(searched, standing_of)) is not None:
            say(f"note: {no_candidate(short(ahead.trial_id), ahead.best_score)}")
        facts = inspect(sweep, Workshop(home.data_dir, device="cpu"))
        refuse_other_data(f"sweep '{record.name}'", record.tags, facts.data_fingerprint)
        # A sweep that nobody holds and that has no outcome was left by a process that died.
        outcome = record.outcome or Outcome.INTERRUPTED
        if outcome is not Outcome.COMPLETED:
            say(
                f"note: the search has not come to its end ({outcome}); finalists are the best of "
                "the trials that had"
            )
        refuse_damaged(home.path_of(sweep.name), tracker.names_of_trials(sweep.name))
        with closed_in_any_case(tracker, f"finalize {sweep.name}", outcome):
            tracker.resume_sweep(sweep.name, search_goes_on=False)
            verdict = _Finalizing(sweep, home, tracker, facts, say).run(best)
            tracker.tag(record.run_id, {"winner": verdict.winner.run_id})
    return verdict


def best_one_head(tracker: Tracker, sweep: SweepRecord, count: int) -> list[TrialRecord]:
    """The best trials of the search with one head.

    Raises:
        UsageError: there is none with a score.
    """
    trials = [
        trial
        for trial in candidates(tracker.trials_of(sweep))
        if trial.kind == "trial"
        and trial.config.get("adapter.num_heads") == 1
        and trial.outcome is not None
    ]
    if not trials:
        whole = sweep.outcome is Outcome.COMPLETED
        raise UsageError(
            f"sweep '{sweep.name}' has no one-head trial that ended with a score: there is nothing "
            "to finalize"
            + ("" if whole else f"; `tinyattn sweep resume {sweep.name}` goes on with it")
        )
    return trials[:count]


class _Finalizing:
    """One run of the finalizer: what its steps share."""

    def __init__(
        self, sweep: Sweep, home: Home, tracker: Tracker, facts: Facts, say: Callable[[str], None]
    ) -> None:
        self.sweep, self.home, self.tracker, self.facts = sweep, home, tracker, facts
        self.say = say
        self.depot = home.depot(sweep.name)

    @functools.cached_property
    def workshop(self) -> Workshop:
        """PLM and data in this process, loaded when no trial needs the device any more."""
        return Workshop(self.home.data_dir)

    def run(self, best: Sequence[TrialRecord]) -> Verdict:
        """Finalists, experts, collapse, verdict."""
        alone, finalists, one_head, config = self._finalists(best)
        experts = self._experts(one_head, config)
        collapsed = []
        for number, expert in enumerate(experts, start=1):
            self.say(f"collapsing the heads of expert {number} of {len(experts)}")
            collapsed.append(self._collapse(expert, config))
        self.say("comparing one head and collapsed heads on the rows that judge")
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
        batch = self._batch("finalists", "finalist", self.sweep.train, len(points), what=points)
        ended = self._run(batch, Points(points))
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
                "start": {
                    "adapter": self.depot.address(one_head.adapter),
                    "noise": final.noise,
                },
            }
        )
        trials = final.search.trials if final.space else 1
        what = final.model_dump(mode="json", include={"space", "search"})
        batch = self._batch("experts", "expert", base, trials, what, lineage=one_head.run_id)
        source: Source = Points([{}])
        if final.space:
            study = self.depot.folder / f"{batch.name}.study"
            source = OptunaSearcher(final.space, final.search, study, self.sweep.name)
        ended = self._run(batch, source)
        return [trial for trial in ended if trial.outcome is Outcome.COMPLETED]

    def _run(self, batch: Batch, source: Source) -> list[Ended]:
        return run_batch(
            batch, source, depot=self.depot, tracker=self.tracker, data_dir=self.home.data_dir
        )

    def _batch(
        self, name: str, kind: str, base: TrainConfig, trials: int, what: Any, **tags: str
    ) -> Batch:
        """A batch named after its content, so that the same one goes on where it was left."""
        content = json.dumps([base.model_dump(mode="json"), what], sort_keys=True)
        return Batch(
            name=f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:6]}",
            title=f"{self.sweep.name} {name}",
            kind=kind,
            base=base,
            trials=trials,
            evaluations=self.facts.evaluations,
            resources=self.sweep.resources,
            tags={**run_tags(self.facts), **tags},
        )

    # ---- collapse ----

    def _collapse(self, trial: Ended, config: TrainConfig) -> Collapsed:
        """Collapse an expert, save the one head, and give it an MLflow run of its own."""
        assert trial.adapter is not None
        data = self.workshop.data(config)
        primary = data.task.metrics[0]

        def scores(split: Rows, outputs: np.ndarray) -> dict[str, float]:
            return compute_metrics(data.task, outputs, labels_of(split))

        expert = self._candidate(f"{self.sweep.finalize.heads} heads", trial)
        trial_id = f"{trial.trial_id}_collapsed"
        folder = self.depot.folder / "adapters" / trial_id
        with Loaded(trial.adapter, config, self.workshop) as loaded:
            found = collapse_in_place(
                loaded, data.select, lambda outputs: scores(data.select, outputs)[primary]
            )
            held = data.heldout
            heldout = {} if held is None else scores(held, loaded.outputs(held))
            counts = loaded.counts()
            named = {f"select/{primary}": found.score}
            named |= {f"heldout/{name}": value for name, value in heldout.items()}
            loaded.save(folder, named, {"expert_run": trial.run_id, "method": found.method})
        run_id = self._track_collapsed(trial, config, found, counts, heldout, trial_id, folder)
        single = Candidate(
            f"{expert.name} collapsed",
            run_id,
            found.score,
            heldout.get(primary),
            folder,
            parameters=counts.trainable,
        )
        return Collapsed(expert, single, found)

    def _track_collapsed(
        self,
        expert: Ended,
        config: TrainConfig,
        found: Collapse,
        counts: Counts,
        heldout: dict[str, float],
        trial_id: str,
        folder: Path,
    ) -> str:
        """Return the run of a collapsed adapter, which descends from its expert's."""
        self.tracker.start_trial(
            trial_id,
            config=config.with_overrides(expert.params),
            params={**expert.params, "collapse": found.method},
            tags={
                **run_tags(self.facts),
                "lineage": expert.run_id,
                "collapse_method": found.method,
            },
            kind="collapsed",
        )
        result = {
            "evaluation": 1,
            "score": found.score,
            "best_score": found.score,
            "seconds": 0.0,
            "adapter_params": counts.adapter,
            "classifier_params": counts.classifier,
            "collapse_logit_distance": found.logit_distance,
            "collapse_score_change": found.score - expert.result["best_score"],
            "heldout": heldout,
        }
        self.tracker.log_evaluation(trial_id, result)
        self.tracker.end_trial(trial_id, Outcome.COMPLETED, adapter=folder)
        self.tracker.settle()
        return self.tracker.run_of(trial_id)

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
            with Loaded(candidate.adapter, config, self.workshop) as loaded:
                outputs.append(loaded.outputs(split))
        test = paired_test(primary_metric(data.task), outputs[0], outputs[1], labels_of(split))
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


def _is_baseline(trial: Ended) -> bool:
    return trial.params.get("adapter.layers") == BASELINE["adapter.layers"]
