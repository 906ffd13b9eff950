"""Scores of a reproduction: each number of a table, with its standard error and the paper's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.reproduction.methods import METHODS
from orchestrator.reproduction.published import PARAMETERS
from orchestrator.reproduction.run import Reproduction, best_trial
from orchestrator.reproduction.tables import AVERAGE, Line, Need, Reading, Table, source_of
from orchestrator.selection.collapsing import Loaded
from orchestrator.spec.batch import SEARCH
from orchestrator.spec.outcome import Outcome
from orchestrator.spec.trial import Trial
from orchestrator.state.checkpoint_store import best_adapter
from orchestrator.state.definition import Definition
from orchestrator.state.event_log import read_event_log
from orchestrator.state.workspace import Workspace
from tinyattn.adapters.experts import collapse
from tinyattn.batching.batches import labels_of
from tinyattn.errors import StorageError
from tinyattn.tasks import compute_metrics, noise_of
from tinyattn.training.model_cache import ModelCache

STD = "std"
"""Name of a column's metric that is the standard deviation over seeds."""
NOISE = 2.0
"""Most standard errors of ours by which a difference is within noise."""


@dataclass(frozen=True)
class Number:
    """A number of ours, in points."""

    value: float
    error: float | None = None
    """Its standard error; None: not known."""


@dataclass(frozen=True)
class Cell:
    """A place of a table: our number beside the paper's."""

    ours: Number | None = None
    """None: nothing was trained for it."""
    papers: float | None = None
    """None: the paper has no number there."""
    is_judged: bool = True
    """Whether the two may be compared."""

    @property
    def within_noise(self) -> bool | None:
        """Whether the paper's number is within NOISE standard errors; None: that is not known."""
        if self.ours is None or self.papers is None or not self.is_judged:
            return None
        if self.ours.error is None:
            return None
        return abs(self.ours.value - self.papers) <= NOISE * self.ours.error + 1e-9


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    title: str
    cells: Mapping[str, Cell]
    """By column."""
    parameters: int | None = None
    """Trained parameters of ours with the classifier, of the task with the largest one; None:
    nothing was trained."""
    papers_parameters: float | None = None


@dataclass(frozen=True)
class Found:
    """A table with our numbers."""

    table: Table
    rows: Sequence[Row]
    of_tasks: int
    """Tasks that our averages are over; 0: there is none."""

    @property
    def cells(self) -> list[tuple[Row, str, Cell]]:
        """Its cells with their rows and columns."""
        return [(row, column, cell) for row in self.rows for column, cell in row.cells.items()]


class Scores:
    """Reads the numbers of tables from the event logs of a reproduction's sweeps."""

    def __init__(
        self,
        reproduction: Reproduction,
        workspace: Workspace,
        left_out: Collection[str] = (),
    ) -> None:
        """Begin with sweeps that have ended; one that is not there has no number.

        Args:
            reproduction: the sweeps.
            workspace: where they are kept.
            left_out: names within the suite of sweeps that did not come to their end.
        """
        self._left_out = left_out
        self._reproduction, self._workspace = reproduction, workspace
        self._cache = ModelCache(workspace.data_dir)
        self._averaged: dict[Need, dict[str, Number]] = {}

    def found(self, table: Table) -> Found:
        """Return a table with our numbers.

        Raises:
            StorageError: an adapter that has to be run again is gone.
        """
        parts = [column for column in (table.averaged or table.columns) if column != AVERAGE]
        numbers = {
            line: {column: self._number(line, column) for column in {*parts, *table.columns}}
            for line in table.lines
        }
        scored = [c for c in parts if any(of_line[c] is not None for of_line in numbers.values())]
        rows = [self._row(table, line, numbers[line], scored) for line in table.lines]
        return Found(table, rows, len(scored) if table.averaged else 0)

    def _row(
        self,
        table: Table,
        line: Line,
        numbers: Mapping[str, Number | None],
        scored: Sequence[str],
    ) -> Row:
        """Return a row; its average is over the tasks that some row has a score on."""
        judged = not self._reproduction.settings.is_small
        papers = table.published[line.title]
        cells: dict[str, Cell] = {}
        for column in table.columns:
            if column == AVERAGE:
                whole = len(scored) == len(table.averaged)
                theirs = papers.get(AVERAGE) if whole else mean_of(papers, scored)
                # The paper's average may be over other metrics, as that of WARP.
                alike = judged and all(part in papers for part in scored)
                cells[column] = Cell(average_of(numbers, scored), theirs, alike)
            else:
                cells[column] = Cell(numbers[column], papers.get(column), judged)
        if not table.has_sizes:
            return Row(line.title, cells)
        return Row(line.title, cells, self._parameters(line, table), PARAMETERS.get(line.title))

    def _parameters(self, line: Line, table: Table) -> int | None:
        needs = [need for task in table.tasks for need in source_of(line.methods[0], task)[-1:]]
        trials = [trial for need in needs if (trial := self._best(need)) is not None]
        return max((trial.parameters for trial in trials), default=None)

    def _best(self, need: Need) -> Trial | None:
        if need.name in self._left_out:
            return None
        return best_trial(self._reproduction, need, self._workspace)

    def _number(self, line: Line, column: str) -> Number | None:
        if column == AVERAGE or not line.methods or line.reading is Reading.SERVER:
            return None
        task, _, metric = column.partition("/")
        if line.reading is Reading.DROP:
            large, small = (self._of_best(method, task, metric) for method in line.methods)
            return None if large is None or small is None else drop_of(large, small)
        if line.reading is Reading.SEED:
            return self._of_seed(line, task, metric)
        if line.reading in (Reading.MEAN, Reading.SPREAD):
            is_spread = line.reading is Reading.SPREAD or metric == STD
            seeds = self._of_seeds(line, task, "" if metric == STD else metric)
            values = [seed.value for seed in seeds if seed is not None]
            reading = Reading.SPREAD if is_spread else Reading.MEAN
            return of_seeds(values, reading) if len(values) == len(seeds) else None
        is_own = source_of(line.methods[0], task)[-1:] == [Need(line.methods[0], task)]
        if line.reading is Reading.AVERAGED and is_own:
            return self._of_one_head(Need(line.methods[0], task), metric)
        return self._of_best(line.methods[0], task, metric)

    def _of_best(self, method: str, task: str, metric: str) -> Number | None:
        """Return the score of the best trial of a method, or of its parent on other tasks."""
        needs = source_of(method, task)
        trial = self._best(needs[-1]) if needs else None
        is_cut = self._reproduction.settings.rows is not None
        return None if trial is None else number_of(trial, metric, is_cut)

    def _of_seeds(self, line: Line, task: str, metric: str) -> list[Number | None]:
        """Return the scores of all seeds of a row."""
        places = range(sum(len(METHODS[name].seeds) or 1 for name in line.methods))
        return [self._of_seed(replace(line, seed=place), task, metric) for place in places]

    def _of_seed(self, line: Line, task: str, metric: str) -> Number | None:
        """Return the score of one seed; the first is that of the main runs, if these are apart."""
        main, others = line.methods[0], line.methods[-1]
        is_apart = main != others
        if line.seed == 0 and is_apart:
            return self._of_best(main, task, metric)
        sweep = self._reproduction.sweep(Need(others, task))
        log = self._workspace.path_of(sweep) / f"{SEARCH}.jsonl"
        wanted = METHODS[others].seeds[line.seed - is_apart]
        trials = read_event_log(log).values() if log.exists() else ()
        scored = [
            one
            for one in trials
            if one.params.get("seed") == wanted and one.scored and one.outcome is Outcome.COMPLETED
        ]
        return number_of(scored[0], metric) if scored else None

    def _of_one_head(self, need: Need, metric: str) -> Number | None:
        """Return the score of a best trial whose heads are averaged into one (equations 5-8)."""
        trial = self._best(need)
        if trial is None:
            return None
        if need not in self._averaged:
            self._averaged[need] = self._average_heads(need, trial)
        return self._averaged[need].get(metric)

    def _average_heads(self, need: Need, trial: Trial) -> dict[str, Number]:
        """Return the scores of a trial's averaged heads by metric; the primary one's name is empty,
        and it alone has an error."""
        name = self._reproduction.sweep(need)
        sweep = Definition.read(self._workspace.path_of(name), name).sweep()
        config = sweep.trial_config(trial.params)
        adapter = best_adapter(self._workspace.checkpoints(name), trial)
        if adapter is None:
            raise StorageError(f"sweep '{name}': the adapter of {trial.name} is gone")
        data = self._cache.data(config)
        with Loaded(adapter, config, self._cache) as loaded:
            loaded.use(collapse(loaded.model.adapter(), loaded.model.plm, "average"))
            outputs = loaded.outputs(data.select)
        labels = labels_of(data.select)
        found = compute_metrics(data.task, outputs, labels)
        primary = Number(
            100 * found[data.task.metrics[0]], 100 * noise_of(data.task, outputs, labels)
        )
        return {"": primary} | {name: Number(100 * value) for name, value in found.items()}


def number_of(trial: Trial, metric: str, is_cut: bool = False) -> Number | None:
    """Return a metric of a trial's best evaluation; None: it was not measured.

    Args:
        trial: a trial with a score.
        metric: its name; empty: the primary one. `overall` is over dev and further rows, which are
            as many again on MNLI, so that its standard error is less by the root of two.
        is_cut: whether dev rows are a part of them, so that this error is not known.
    """
    best = next(one for one in trial.scored if one.evaluation == trial.best_index)
    noise = None if best.noise is None else 100 * best.noise
    if not metric:
        return Number(100 * best.score, noise)
    if metric == "overall":
        overall = trial.heldout.get("accuracy_overall")
        error = None if noise is None or is_cut else noise / math.sqrt(2)
        return None if overall is None else Number(100 * overall, error)
    value = (best.metrics or {}).get(metric)
    return None if value is None else Number(100 * value)


def of_seeds(values: Sequence[float], reading: Reading) -> Number:
    """Return the mean over seeds with its standard error, or their standard deviation."""
    spread = statistics.stdev(values)
    if reading is Reading.SPREAD:
        return Number(spread)
    return Number(statistics.mean(values), spread / math.sqrt(len(values)))


def drop_of(large: Number, small: Number) -> Number:
    """Return what a smaller PLM has less, with the error of two independent numbers."""
    errors = [one.error for one in (large, small) if one.error is not None]
    error = math.hypot(*errors) if len(errors) == 2 else None
    return Number(large.value - small.value, error)


def average_of(numbers: Mapping[str, Number | None], columns: Sequence[str]) -> Number | None:
    """Return the mean over columns, whose errors are independent; None: one has no number."""
    parts = [number for column in columns if (number := numbers[column]) is not None]
    if not columns or len(parts) < len(columns):
        return None
    errors = [part.error for part in parts if part.error is not None]
    error = math.hypot(*errors) / len(parts) if len(errors) == len(parts) else None
    return Number(statistics.mean(part.value for part in parts), error)


def mean_of(papers: Mapping[str, float], columns: Sequence[str]) -> float | None:
    """Return the mean of the paper's numbers over columns, as it rounds; None: it lacks one."""
    known = [papers[column] for column in columns if column in papers]
    return round(statistics.mean(known), 1) if known and len(known) == len(columns) else None
