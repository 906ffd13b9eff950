"""Judging: what tuned methods score on held-out rows, and which of them differ.

A method was tuned several times, by searches of its own; the winner of each ran once more on a
fresh seed. Its outputs on the held-out rows are a *unit* (units.py): methods are compared by their
units, so that the luck of searches, of seeds and of rows is all in the test.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.comparison.cost import step_bytes
from orchestrator.comparison.setting import Setting
from orchestrator.comparison.units import (
    TunedPair,
    Unit,
    judge_pairs,
    power_at,
    shows,
    unit_of,
)
from orchestrator.search.asha import search_of
from orchestrator.selection.collapsing import Loaded
from orchestrator.selection.finalizing import FRESH_SEED
from orchestrator.selection.significance import primary_metric
from orchestrator.spec.config import RATE, Sweep
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.space import LogUniform
from orchestrator.spec.trial import Trial
from orchestrator.spec.values import Point
from orchestrator.state.checkpoint_store import best_adapter
from orchestrator.state.event_log import read_event_log
from orchestrator.state.workspace import Workspace
from tinyattn.batching.batches import groups_of, labels_of
from tinyattn.errors import TinyAttnError
from tinyattn.tasks import Task, best_first, is_one_class
from tinyattn.training.model_cache import ModelCache

DIFFERENCES = (0.01, 0.02, 0.04)
"""Differences whose power is told."""


@dataclass(frozen=True)
class Tried:
    """A trial of a method's searches, as its profile of learning rates shows it."""

    search: int
    """From 0."""
    rate: float
    score: float | None
    """Best score on the selection rows; None: it has none."""
    loss: float | None
    """Mean loss on these rows at that evaluation."""
    outcome: Outcome | None
    evaluations: int


@dataclass(frozen=True)
class Tuned:
    """The winner of one search, run once more on a fresh seed."""

    search: int
    """From 0."""
    settings: Point
    """What the search found, by dotted key."""
    select: float
    """Score on the selection rows."""
    heldout: float
    """Score on the rows that chose nothing; on the selection rows where there are none, as by
    protocol `paper`."""
    one_class: bool
    """Whether it answers all these rows with one class."""
    at_end: bool
    """Whether its best evaluation is its last, so that longer training may help."""
    trial: str
    """Its name in its sweep."""
    seconds: float
    """Of its training."""
    curve: Sequence[tuple[float, float]]
    """(epoch, score on the selection rows) of each evaluation."""


@dataclass(frozen=True)
class Judged:
    """A tuned method."""

    name: str
    parameters: int
    """Parameters without the classifier."""
    units: Sequence[Tuned]
    """In the order of searches; a search whose trials all failed has none."""
    tried: Sequence[Tried]
    """All trials of its searches that ended."""
    range: tuple[float, float] | None
    """Bounds of the learning rate that was searched; None: it was a list of values."""
    step_bytes: int | None
    """Memory of a training step beside the PLM; None: not measured on this machine."""
    row_seconds: float
    """Seconds of a prediction, in passes of many rows."""
    sweep: str
    """Its sweep."""
    is_reference: bool
    """Whether its size is its own, so that it stands beside the match."""

    @property
    def mean(self) -> float:
        """Mean score over the units."""
        return statistics.mean(one.heldout for one in self.units)

    @property
    def std(self) -> float:
        """Standard deviation of the score over the units; NaN of a single one."""
        scores = [one.heldout for one in self.units]
        return statistics.stdev(scores) if len(scores) > 1 else math.nan

    @property
    def seconds(self) -> float:
        """Mean seconds of a unit's training."""
        return statistics.mean(one.seconds for one in self.units)

    @property
    def evaluations(self) -> int:
        """Evaluations of its searches."""
        return sum(trial.evaluations for trial in self.tried)

    @property
    def answers_one_class(self) -> int:
        """Number of units that answer one class."""
        return sum(one.one_class for one in self.units)

    @property
    def best_rate(self) -> float | None:
        """Learning rate of its best trial; None: no trial has a score."""
        scored = [
            (best_first(one.score, one.loss), one.rate)
            for one in self.tried
            if one.score is not None
        ]
        return min(scored)[1] if scored else None

    @property
    def edge(self) -> str | None:
        """`lower` or `upper` where the best learning rate is the last tried there; else None."""
        rates, best = [one.rate for one in self.tried], self.best_rate
        if best is None or min(rates) == max(rates):
            return None
        return "lower" if best == min(rates) else "upper" if best == max(rates) else None


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    metric: str
    rows: int
    """Rows that judge."""
    judges: str
    """Which rows these are: `held-out` or `selection`."""
    methods: list[Judged]
    pairs: list[TunedPair]
    """Pairs of the match, without the references."""
    shows: float
    """Difference that a usual pair shows in four of five cases; NaN: there is no pair."""
    power: Mapping[float, float]
    """{difference: share of cases in which a usual pair shows it}."""
    trials: int
    """Trials of one search."""
    searches: int
    """Searches of each method; of some there may be more, see their units."""
    setting: Setting
    """On what they were compared, and by which code."""


def judge(
    sweeps: Mapping[str, Sweep],
    repeats: Mapping[str, list[Trial]],
    references: Collection[str],
    workspace: Workspace,
    say: Callable[[str], None],
    command: str,
) -> Comparison:
    """Judge the methods of a comparison, whose searches and fresh seeds have ended.

    Args:
        sweeps: by the names of their methods.
        repeats: the trials that repeat the winners of each method's searches.
        references: names of methods that stand beside the match.
        workspace: where they are kept.
        say: takes progress messages.
        command: the command that was typed, without `tinyattn`.

    Raises:
        TinyAttnError: an adapter is gone.
    """
    model_cache = ModelCache(workspace.data_dir)
    first = next(iter(sweeps.values()))
    data = model_cache.data(first.train)
    rows = data.heldout or data.select
    metric, labels, groups = primary_metric(data.task), labels_of(rows), groups_of(rows)
    found: list[Judged] = []
    units: dict[str, list[Unit]] = {}
    for number, (name, sweep) in enumerate(sweeps.items(), 1):
        say(f"judging {name}, method {number} of {len(sweeps)}")
        ran = _Ran.of(name, sweep, repeats[name], workspace, model_cache)
        own = [unit_of(metric, each, labels, groups) for each in ran.outputs]
        tuned = [
            _tuned(trial, outputs, unit.score, data.task)
            for trial, outputs, unit in zip(repeats[name], ran.outputs, own, strict=True)
        ]
        tried = read_event_log(workspace.path_of(sweep.name) / "search.jsonl").values()
        domain = sweep.space.get(RATE)
        judged = Judged(
            name,
            ran.parameters,
            tuned,
            [_tried(trial, sweep) for trial in tried if trial.outcome],
            (domain.low, domain.high) if isinstance(domain, LogUniform) else None,
            step_bytes(sweep.trial_config(repeats[name][0].params), model_cache),
            ran.seconds / len(rows) / len(ran.outputs),
            sweep.name,
            name in references,
        )
        found.append(judged)
        if not judged.is_reference:
            units[name] = own
    pairs = judge_pairs(units)
    search = first.search
    trials = search.trials_a_search or search.trials
    return Comparison(
        data.task.metrics[0],
        len(rows),
        "held-out" if data.heldout is not None else "selection",
        found,
        pairs,
        shows(pairs),
        {each: power_at(pairs, each) for each in DIFFERENCES},
        trials,
        search.trials // trials,
        Setting.of(first, model_cache.plm_of(first.train), data, command),
    )


@dataclass(frozen=True)
class _Ran:
    """What a method's adapters answer."""

    outputs: list[np.ndarray]
    """[N, C] of each trial's best adapter on the rows that judge."""
    parameters: int
    """Of the adapter as it is saved."""
    seconds: float
    """Of all predictions."""

    @classmethod
    def of(
        cls,
        name: str,
        sweep: Sweep,
        trials: Sequence[Trial],
        workspace: Workspace,
        model_cache: ModelCache,
    ) -> _Ran:
        """Run the best adapter of each trial; TinyAttnError if one is gone."""
        store = workspace.checkpoints(sweep.name)
        outputs: list[np.ndarray] = []
        seconds, parameters = 0.0, 0
        for trial in trials:
            adapter = best_adapter(store, trial)
            if adapter is None:
                raise TinyAttnError(f"{name}: the adapter of {trial.name} is not there")
            config = sweep.trial_config(trial.params)
            data = model_cache.data(config)
            with Loaded(adapter, config, model_cache) as loaded:
                parameters = loaded.counts().adapter
                begin = time.perf_counter()
                outputs.append(loaded.outputs(data.heldout or data.select))
                seconds += time.perf_counter() - begin
        return cls(outputs, parameters, seconds)


def _tuned(trial: Trial, outputs: np.ndarray, score: float, task: Task) -> Tuned:
    total = trial.planned
    return Tuned(
        int(str(trial.params["seed"])) - FRESH_SEED,
        {key: value for key, value in trial.params.items() if key != "seed"},
        trial.last.best_score,
        score,
        is_one_class(task, outputs),
        total > 1 and trial.best_index == total,
        trial.name,
        trial.seconds,
        [(each.epoch or 0.0, each.score) for each in trial.scored],
    )


def _tried(trial: Trial, sweep: Sweep) -> Tried:
    size = sweep.search.trials_a_search or sweep.search.trials
    rate = sweep.trial_config(trial.params).optimizer.lr
    return Tried(
        search_of(trial.name, size),
        rate,
        trial.best_score,
        trial.best_loss,
        trial.outcome,
        trial.evaluations,
    )
