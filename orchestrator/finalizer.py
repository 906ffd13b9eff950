"""From a sweep's best one-head trials to the adapter worth promoting.

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

from orchestrator.asker import Points, Source
from orchestrator.baseline import ALONE, RATES, alone_settings
from orchestrator.batch import Batch
from orchestrator.collapsing import Collapse, Loaded, collapses_of
from orchestrator.config import Sweep
from orchestrator.home import Home
from orchestrator.journal import refuse_damaged
from orchestrator.keeping import Contest, Judgement, contests
from orchestrator.nodes import concurrency
from orchestrator.outcome import Outcome
from orchestrator.preflight import Facts, inspect, warmup_note
from orchestrator.provenance import refuse_other_data
from orchestrator.ranking import candidates, no_candidate, passed_over, standing_of
from orchestrator.runner import Ended, closed_in_any_case, run_batch
from orchestrator.search import OptunaSearcher
from orchestrator.significance import primary_metric
from orchestrator.store import SweepRecord, TrialRecord
from orchestrator.sweep import run_tags
from orchestrator.tracking import Tracker
from orchestrator.verdict import Candidate, Collapsed, Verdict
from orchestrator.view import short
from tinyattn.batches import groups_of, labels_of
from tinyattn.config import TrainConfig
from tinyattn.errors import TinyAttnError, UsageError
from tinyattn.evaluation import final_metrics
from tinyattn.workshop import Workshop

FRESH_SEED = 1000
"""Seeds of finalists count from here, away from those that searches use."""


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
        for note in warmup_note(sweep, facts):
            say(note)
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
    """Return the name of a batch, which stays when its sweep's folder moves.

    Batches of earlier versions have the path of the folder in their names; they keep these.
    """
    written = json.dumps(content, sort_keys=True)
    unmoved = written.replace(json.dumps(str(folder))[1:-1], ".")
    old, new = (
        f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}" for text in (written, unmoved)
    )
    return old if (folder / f"{old}.jsonl").exists() else new


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
        """Run the best configurations on fresh seeds, and the best one's classifier alone."""
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
        return Batch(
            name=batch_name(name, [base.model_dump(mode="json"), what], self.depot.folder),
            title=f"{self.sweep.name} {name}",
            kind=kind,
            base=base,
            trials=trials,
            evaluations=self.facts.evaluations,
            resources=self.sweep.resources,
            tags={**run_tags(self.facts), **tags},
        )

    # ---- collapse and verdict ----

    def _judge(
        self, one_head: Candidate, experts: Sequence[Ended], config: TrainConfig
    ) -> tuple[Collapsed | None, Judgement | None]:
        """Collapse each expert by each method, and compare the best of all with one head."""
        data, tried = self.workshop.data(config), list(self._collapses(experts, config))
        if not tried:
            return None, None
        self.say("comparing one head and collapsed heads on the rows that judge")
        assert one_head.adapter is not None
        with Loaded(one_head.adapter, config, self.workshop) as loaded:
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
        """Yield what each method makes of each expert."""
        rows = self.workshop.data(config).select
        for number, expert in enumerate(experts, start=1):
            self.say(f"collapsing the heads of expert {number} of {len(experts)}")
            assert expert.adapter is not None
            with Loaded(expert.adapter, config, self.workshop) as loaded:
                yield from ((expert, how) for how in collapses_of(loaded, rows))

    def _save_collapsed(
        self, trial: Ended, how: Collapse, contest: Contest, config: TrainConfig
    ) -> Collapsed:
        """Save what an expert was collapsed into, and give it an MLflow run of its own."""
        assert trial.adapter is not None
        data, primary = self.workshop.data(config), self.facts.primary_metric
        trial_id = f"{trial.trial_id}_collapsed"
        folder = self.depot.folder / "adapters" / trial_id
        with Loaded(trial.adapter, config, self.workshop) as loaded:
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
    """Trials that differ by nothing but their seed, the best mean score first."""
    groups: dict[str, list[Ended]] = {}
    for trial in trials:
        setting = json.dumps({**trial.params, "seed": 0}, sort_keys=True)
        groups.setdefault(setting, []).append(trial)
    return sorted(
        groups.values(), key=lambda group: -statistics.mean(t.result["best_score"] for t in group)
    )


def _is_baseline(trial: Ended) -> bool:
    return trial.params.get("adapter.layers") == ALONE["adapter.layers"]
