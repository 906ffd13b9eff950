"""Tuned methods on recorded landscapes: real runs, real answers, rows drawn with replacement.

    python -m benchmarks.luck.landscape benchmarks/landscapes/*.jsonl

Searches run on what benchmarks/landscapes recorded: a trial at a learning rate is a run, of any
seed, at one of the two nearest rates. Equal methods are two that draw from one landscape; of two
real methods the better one is that whose units score higher in the mean of many.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.landscapes.measure import HELDOUT, TASKS, config_of, runs_of, unpacked, with_file
from orchestrator.comparison.methods import one_head_size, sized_methods
from orchestrator.comparison.units import LEVEL, Unit, judge_pairs, unit_of
from orchestrator.selection.significance import Metric, primary_metric
from tinyattn.batching.batches import labels_of
from tinyattn.data.tokens import Split, subset
from tinyattn.tasks import Task
from tinyattn.training.model_cache import ModelCache

MANY = 500
"""Units from which the score of a tuned method is known."""
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Run:
    """A recorded run: its score on the selection rows, and its answers [N] to held-out rows."""

    select: float
    answers: np.ndarray


class Landscape:
    """The runs of one method, by learning rate."""

    def __init__(self, runs: dict[float, list[Run]]) -> None:
        self.rates = np.log10(sorted(runs))
        self.runs = [runs[rate] for rate in sorted(runs)]

    def tuned(self, searches: int, trials: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Return the answers of J units: each search's winner, trained once more."""
        offset = rng.random()
        return [self._unit((offset + GOLDEN * each) % 1, trials, rng) for each in range(searches)]

    def _unit(self, offset: float, trials: int, rng: np.random.Generator) -> np.ndarray:
        width = (self.rates[-1] - self.rates[0]) / trials
        places = [self._near(self.rates[0] + width * (i + offset), rng) for i in range(trials)]
        tried = [(place, int(rng.integers(len(self.runs[place])))) for place in places]
        place, chosen = max(tried, key=lambda one: self.runs[one[0]][one[1]].select)
        others = [run for number, run in enumerate(self.runs[place]) if number != chosen]
        others = others or self.runs[place]
        return others[int(rng.integers(len(others)))].answers

    def _near(self, rate: float, rng: np.random.Generator) -> int:
        """Return a recorded rate beside this one, the nearer the likelier."""
        above = min(max(1, int(np.searchsorted(self.rates, rate))), len(self.rates) - 1)
        low, high = self.rates[above - 1], self.rates[above]
        return above if rng.random() < (rate - low) / (high - low) else above - 1


@dataclass(frozen=True)
class Recorded:
    """All landscapes of a file, and what is right of their rows."""

    methods: dict[str, Landscape]
    labels: np.ndarray
    metric: Metric
    classes: int

    def units(self, answers: list[np.ndarray], rows: np.ndarray) -> list[Unit]:
        """Return units on some of the rows."""
        one_hot = np.eye(self.classes)
        return [
            unit_of(self.metric, one_hot[one[rows]], self.labels[rows], None, search)
            for search, one in enumerate(answers)
        ]


def read(path: Path, plm: str | None) -> Recorded:
    """Return the landscapes of a file, of methods with two learning rates or more.

    Raises:
        ValueError: the rows' labels do not give the scores that were recorded.
    """
    named, task_name = path.stem.rsplit("-", 1)
    task, labels = _labels(task_name, plm or named)
    metric, classes = primary_metric(task), task.scored_width
    found: dict[str, dict[float, list[Run]]] = {}
    for run in runs_of(path):
        if not run["curve"]:  # diverged at once: it answers the first class
            last = Run(0.0, np.zeros(len(labels), np.uint8))
        else:
            end = run["curve"][-1]
            last = Run(end["select"], unpacked(end["answers"]))
            score = metric(np.eye(classes)[last.answers], labels)
            if abs(score - end["heldout"]) > 1e-4:
                raise ValueError(f"{path}: {score} came of the answers, {end['heldout']} was kept")
        found.setdefault(run["method"], {}).setdefault(run["lr"], []).append(last)
    kept = {name: Landscape(runs) for name, runs in found.items() if len(runs) > 1}
    return Recorded(kept, labels, metric, classes)


def _labels(name: str, plm: str) -> tuple[Task, np.ndarray]:
    """Return a task, and the labels of the held-out rows that landscapes keep."""
    (tiny,) = sized_methods(plm, ["tiny"], one_head_size(plm))
    task = with_file(TASKS[name], Path(tempfile.mkdtemp()))
    data = ModelCache(None).data(config_of(task, plm, tiny, 1e-3, 0))
    assert isinstance(data.heldout, Split)
    kept = subset(np.arange(len(data.heldout)), HELDOUT)
    return data.task, labels_of(replace(data.heldout, rows=data.heldout.rows.select(kept)))


def compared(
    found: Recorded, one: str, other: str, count: int, searches: int, trials: int
) -> tuple[float, float]:
    """Return how often the first is called better than the second, and how often worse."""
    rng = np.random.default_rng(0)
    better = worse = 0
    for _ in range(count):
        rows = rng.integers(len(found.labels), size=len(found.labels))
        units = {
            number: found.units(found.methods[name].tuned(searches, trials, rng), rows)
            for number, name in enumerate((one, other))
        }
        (pair,) = judge_pairs({str(number): own for number, own in units.items()})
        decided = pair.corrected <= LEVEL
        better += decided and pair.better == "0"
        worse += decided and pair.better == "1"
    return better / count, worse / count


def truth_of(found: Recorded, name: str, trials: int) -> float:
    """Return the expected score of a tuned method on all rows, in points."""
    rng, rows = np.random.default_rng(1), np.arange(len(found.labels))
    answers = [found.methods[name].tuned(1, trials, rng)[0] for _ in range(MANY)]
    return 100 * float(np.mean([unit.score for unit in found.units(answers, rows)]))


def main() -> None:
    """Print a line a method, equal to itself, and a line a pair of methods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--plm", help="what to tokenise with; else the one that the file names")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--trials", type=int, default=4)
    args = parser.parse_args()
    for path in args.files:
        found = read(path, args.plm)
        design = args.count, args.searches, args.trials
        truths = {name: truth_of(found, name, args.trials) for name in found.methods}
        for name, truth in truths.items():
            false = sum(compared(found, name, name, *design))
            print(f"{path.stem} {name}, {truth:.2f}, against itself: false {false:.3f}", flush=True)
        for one, other in itertools.combinations(sorted(truths, key=truths.__getitem__), 2):
            worse, better = compared(found, one, other, *design)
            lead = truths[other] - truths[one]
            print(
                f"{path.stem} {other} leads {one} by {lead:.2f}: "
                f"right {better:.3f}, wrong {worse:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
