"""The finalizer: from a sweep's best one-head trials to the adapter worth promoting.

    finalists   the best k configurations again on fresh seeds: mean ± std; and the classifier
                alone, which may choose a learning rate of its own
    experts     the winner's head perturbed into M heads (equations 5-8), trained by a small search
    collapse    each expert back into one head by each method; a collapsed adapter is what would be
                deployed
    verdict     the best collapsed adapter against the one head (keeping.py): it must lead on the
                selection rows by more than chance and not fall behind on the held-out rows

All training goes through run_batch, as in the sweep itself.
"""

from __future__ import annotations

import functools
import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.driver.trial_queue import Points, Source
from orchestrator.execution.nodes import concurrency
from orchestrator.execution.tuner import Ended, closed_in_any_case, run_batch
from orchestrator.planning.preflight import inspect, run_tags, warmup_note
from orchestrator.reporting.mlflow_page import publish
from orchestrator.search.searcher import OptunaSearcher
from orchestrator.selection.baseline import ALONE, RATES, alone_settings
from orchestrator.selection.collapsing import Collapse, Loaded, collapses_of
from orchestrator.selection.keeping import Contest, Judgement, contests
from orchestrator.selection.significance import primary_metric
from orchestrator.selection.verdict import Candidate, Collapsed, Verdict, findings
from orchestrator.spec.batch import TrialBatch
from orchestrator.spec.config import Sweep
from orchestrator.spec.facts import Facts
from orchestrator.spec.outcome import Outcome
from orchestrator.state.event_log import refuse_damaged
from orchestrator.state.ranking import candidates, no_candidate, passed_over, standing_of
from orchestrator.state.workspace import Workspace
from orchestrator.tracking.provenance import refuse_other_data
from orchestrator.tracking.reader import SweepRecord, TrialRecord
from orchestrator.tracking.writer import TrackingWriter
from tinyattn.batching.batches import groups_of, labels_of
from tinyattn.config import TrainConfig
from tinyattn.errors import TinyAttnError, UsageError
from tinyattn.training.evaluation import final_metrics
from tinyattn.training.model_cache import ModelCache

FRESH_SEED = 1000
"""First seed of the finalists, far from the seeds that searches use."""


def finalize(
    sweep: Sweep, workspace: Workspace, say: Callable[[str], None] = lambda line: None
) -> Verdict:
    """Finalize a sweep that has run; Ray must be running.

    Args:
        sweep: the sweep as it ran, perhaps with other values under `finalize`.
        workspace: where the sweep is kept.
        say: takes progress messages while no trial runs.

    Raises:
        UsageError: the sweep is not there, or none of its one-head trials reached a score.
        TinyAttnError: a trial needs more resources than there are, or all finalists failed.
    """
    concurrency(sweep.resources)
    workspace.require_space()
    tracker = workspace.tracker()
    tracker.find_sweep(sweep.name)  # a name that is wrong makes no folder for its lock
    go_on = f"finalize {sweep.name}"
    with workspace.lock(
        sweep.name, go_on
    ):  # what is read here, no other process is about to change
        record = tracker.find_sweep(sweep.name)
        best = best_one_head(tracker, record, sweep.finalize.finalists)
        searched = [trial for trial in tracker.trials_of(record) if trial.kind == "trial"]
        if (ahead := passed_over(searched, standing_of)) is not None:
            say(f"note: {no_candidate(ahead.trial_id, ahead.best_score)}")
        facts = inspect(sweep, ModelCache(workspace.data_dir, device="cpu"))
        refuse_other_data(f"sweep '{record.name}'", record.tags, facts.data_fingerprint)
        for note in warmup_note(sweep, facts):
            say(note)
        # A sweep that nobody holds and that has no outcome was left by a process that died.
        outcome = record.outcome or Outcome.INTERRUPTED
        if outcome is not Outcome.COMPLETED:
            say(
                f"note: the search has not come to its end ({outcome}); finalists are the best of "
                "the trials that had"
            )
        refuse_damaged(workspace.path_of(sweep.name), tracker.names_of_trials(sweep.name))
        with closed_in_any_case(tracker, go_on, outcome):
            tracker.resume_sweep(sweep.name, search_goes_on=False)
            verdict = _Finalizing(sweep, workspace, tracker, facts, say).run(best)
            tracker.keep_verdict(record.run_id, findings(verdict).to_json())
            tracker.tag(record.run_id, {"winner": verdict.winner.run_id})
        publish(tracker, sweep.name)
    return verdict


def best_one_head(tracker: TrackingWriter, sweep: SweepRecord, count: int) -> list[TrialRecord]:
    """Return the best one-head trials of a search.

    Raises:
        UsageError: no one-head trial has a score.
    """
    trials = [
        trial
        for trial in candidates(tracker.trials_of(sweep))
        if trial.kind == "trial"
        and trial.config.get("adapter.num_heads") == 1
        and trial.config.get("adapter.layers") != ALONE["adapter.layers"]
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


def batch_name(name: str, content: Any, folder: Path) -> str:
    """Return a batch's name: a hash of its content that does not change if the folder moves.

    Batches of earlier versions have a hash that includes the folder's path; they keep it.
    """
    written = json.dumps(content, sort_keys=True)
    unmoved = written.replace(json.dumps(str(folder))[1:-1], ".")
    old, new = (
        f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}" for text in (written, unmoved)
    )
    return old if (folder / f"{old}.jsonl").exists() else new


class _Finalizing:
    """One run of the finalizer, with what its steps share."""

    def __init__(
        self,
        sweep: Sweep,
        workspace: Workspace,
        tracker: TrackingWriter,
        facts: Facts,
        say: Callable[[str], None],
    ) -> None:
        self.sweep, self.workspace, self.tracker, self.facts = sweep, workspace, tracker, facts
        self.say = say
        self.checkpoints = workspace.checkpoints(sweep.name)

    @functools.cached_property
    def model_cache(self) -> ModelCache:
        """The cache of PLM and data in this process, made when no trial needs the device."""
        return ModelCache(self.workspace.data_dir)

    def run(self, best: Sequence[TrialRecord]) -> Verdict:
        """Run finalists and experts, collapse the experts, and judge."""
        alone, finalists, one_head, config = self._finalists(best)
        experts = self._experts(one_head, config)
        collapsed, judgement = self._judge(one_head, experts, config)
        return Verdict(
            classifier_alone=alone,
            finalists=finalists,
            one_head=one_head,
            best=collapsed,
            judgement=judgement,
            rates=len(RATES),
        )

    # ---- finalists ----

    def _finalists(
        self, best: Sequence[TrialRecord]
    ) -> tuple[Candidate | None, list[Candidate], Candidate, TrainConfig]:
        """Run the best configurations on fresh seeds, and the baseline of the best one."""
        seeds = [FRESH_SEED + i for i in range(self.sweep.finalize.seeds)]
        rate = self.sweep.trial_config(best[0].params).optimizer.lr
        settings = [*(trial.params for trial in best), *alone_settings(best[0].params, rate)]
        points = [{**setting, "seed": seed} for setting in settings for seed in seeds]
        batch = self._batch("finalists", "finalist", self.sweep.train, len(points), what=points)
        ended = self._run(batch, Points(points))
        done = [trial for trial in ended if trial.outcome is Outcome.COMPLETED]
        alone = _by_mean([trial for trial in done if _is_baseline(trial)])
        groups = _by_mean([trial for trial in done if not _is_baseline(trial)])
        if not groups:
            raise TinyAttnError("no finalist completed; the runs in MLflow say why")
        winner = max(groups[0], key=lambda trial: trial.result["best_score"])
        looks = sum(int(trial.result["evaluation"]) for trial in groups[0])
        return (
            self._mean_candidate("classifier alone", alone[0]) if alone else None,
            [self._mean_candidate(f"1 head, rank {i}", g) for i, g in enumerate(groups, 1)],
            replace(self._candidate("1 head", winner), evaluations=looks),
            self.sweep.trial_config(winner.params),
        )

    # ---- experts ----

    def _experts(self, one_head: Candidate, config: TrainConfig) -> list[Ended]:
        """Train M perturbed copies of the head, by a small search over their hyper-parameters."""
        final = self.sweep.finalize
        assert one_head.adapter is not None
        base = config.with_overrides(
            {
                "adapter.num_heads": final.heads,
                "start": {
                    "adapter": self.checkpoints.address(one_head.adapter),
                    "noise": final.noise,
                },
            }
        )
        trials = final.search.trials if final.space else 1
        what = final.model_dump(mode="json", include={"space", "search"})
        batch = self._batch("experts", "expert", base, trials, what, lineage=one_head.run_id)
        source: Source = Points([{}])
        if final.space:
            study = self.checkpoints.folder / f"{batch.name}.study"
            source = OptunaSearcher(final.space, final.search, study, self.sweep.name)
        ended = self._run(batch, source)
        return [trial for trial in ended if trial.outcome is Outcome.COMPLETED]

    def _run(self, batch: TrialBatch, source: Source) -> list[Ended]:
        return run_batch(
            batch,
            source,
            checkpoints=self.checkpoints,
            tracker=self.tracker,
            data_dir=self.workspace.data_dir,
        )

    def _batch(
        self, name: str, kind: str, base: TrainConfig, trials: int, what: Any, **tags: str
    ) -> TrialBatch:
        """Return a batch named after its content, so that an interrupted one is found again."""
        return TrialBatch(
            name=batch_name(name, [base.model_dump(mode="json"), what], self.checkpoints.folder),
            title=f"{self.sweep.name} {name}",
            kind=kind,
            base=base,
            trials=trials,
            evaluations=self.facts.evaluations,
            resources=self.sweep.resources,
            tags={**run_tags(self.facts), **tags},
            plugins=self.sweep.imports,
        )

    # ---- collapse and verdict ----

    def _judge(
        self, one_head: Candidate, experts: Sequence[Ended], config: TrainConfig
    ) -> tuple[Collapsed | None, Judgement | None]:
        """Collapse each expert by each method, and compare the best of all with one head."""
        data, tried = self.model_cache.data(config), list(self._collapses(experts, config))
        if not tried:
            return None, None
        self.say("comparing one head and collapsed heads on the rows that judge")
        assert one_head.adapter is not None
        with Loaded(one_head.adapter, config, self.model_cache) as loaded:
            select = loaded.outputs(data.select)
            held = None if data.heldout is None else loaded.scores(data.task, data.heldout)
        found = contests(
            primary_metric(data.task),
            [how.outputs for _, how in tried],
            select,
            labels_of(data.select),
            looks=[expert.result["evaluation"] / one_head.evaluations for expert, _ in tried],
            tested=held is not None,
            groups=groups_of(data.select),
        )
        best_first = sorted(zip(tried, found, strict=True), key=lambda t: t[1].order, reverse=True)
        of_each: dict[str, tuple[Ended, Collapse, Contest]] = {}
        for (expert, how), contest in best_first:
            of_each.setdefault(expert.trial_id, (expert, how, contest))
        saved = [(self._save_collapsed(*one, config), one[2]) for one in of_each.values()]
        best, contest = saved[0]
        old = None if held is None else held[self.facts.primary_metric]
        pair = None if old is None or best.single.heldout is None else (best.single.heldout, old)
        return best, Judgement(contest, len(tried), pair)

    def _collapses(
        self, experts: Sequence[Ended], config: TrainConfig
    ) -> Iterator[tuple[Ended, Collapse]]:
        """Yield each expert collapsed by each method."""
        rows = self.model_cache.data(config).select
        for number, expert in enumerate(experts, start=1):
            self.say(f"collapsing the heads of expert {number} of {len(experts)}")
            assert expert.adapter is not None
            with Loaded(expert.adapter, config, self.model_cache) as loaded:
                yield from ((expert, how) for how in collapses_of(loaded, rows))

    def _save_collapsed(
        self, trial: Ended, how: Collapse, contest: Contest, config: TrainConfig
    ) -> Collapsed:
        """Save a collapsed expert, with an MLflow run of its own."""
        assert trial.adapter is not None
        data, primary = self.model_cache.data(config), self.facts.primary_metric
        trial_id = f"{trial.trial_id}_collapsed"
        folder = self.checkpoints.folder / "adapters" / trial_id
        with Loaded(trial.adapter, config, self.model_cache) as loaded:
            loaded.use(how.adapter)
            heldout = final_metrics(data, loaded.outputs)
            counts = loaded.counts()
            named = {f"select/{primary}": contest.score}
            named |= {f"heldout/{name}": value for name, value in heldout.items()}
            loaded.save(folder, named, {"expert_run": trial.run_id, "method": how.method})
        result = {
            "evaluation": 1,
            "score": contest.score,
            "best_score": contest.score,
            "seconds": 0.0,
            "adapter_params": counts.adapter,
            "classifier_params": counts.classifier,
            "collapse_logit_distance": how.logit_distance,
            "collapse_score_change": contest.score - trial.result["best_score"],
            "heldout": heldout,
        }
        run_id = self._track_collapsed(trial, config, how.method, result, trial_id, folder)
        expert = self._candidate(f"{self.sweep.finalize.heads} heads", trial)
        single = replace(
            expert,
            name=f"{expert.name} collapsed",
            run_id=run_id,
            trial=trial_id,
            select=contest.score,
            heldout=heldout.get(primary),
            adapter=folder,
            parameters=counts.trainable,
        )
        return Collapsed(expert, single, how)

    def _track_collapsed(
        self,
        expert: Ended,
        config: TrainConfig,
        method: str,
        result: Mapping[str, Any],
        trial_id: str,
        folder: Path,
    ) -> str:
        """Return the run of a collapsed adapter, which descends from its expert's."""
        self.tracker.start_trial(
            trial_id,
            config=config.with_overrides(expert.params),
            params={**expert.params, "collapse": method},
            tags={**run_tags(self.facts), "lineage": expert.run_id, "collapse_method": method},
            kind="collapsed",
        )
        self.tracker.log_evaluation(trial_id, result)
        self.tracker.end_trial(trial_id, Outcome.COMPLETED, adapter=folder)
        self.tracker.settle()
        return self.tracker.run_of(trial_id)

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
            trial=trial.trial_id,
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


def _by_mean(trials: Sequence[Ended]) -> list[list[Ended]]:
    """Group trials that differ only in their seed; the group with the best mean is first."""
    groups: dict[str, list[Ended]] = {}
    for trial in trials:
        setting = json.dumps({**trial.params, "seed": 0}, sort_keys=True)
        groups.setdefault(setting, []).append(trial)
    return sorted(
        groups.values(), key=lambda group: -statistics.mean(t.result["best_score"] for t in group)
    )


def _is_baseline(trial: Ended) -> bool:
    return trial.params.get("adapter.layers") == ALONE["adapter.layers"]
