"""What is measured at the end of a trial; expected numbers are counted by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tinyattn.data.tokens import FlatRows, TaskData
from tinyattn.tasks import find_task
from tinyattn.training.evaluation import final_metrics


@dataclass(frozen=True)
class Labels:
    """Rows of which only the labels matter."""

    name: str
    labels: tuple[int, ...]
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def flat(self) -> FlatRows:
        count = len(self.labels)
        ids = {"input_ids": np.zeros(count, dtype=int)}
        offsets = np.arange(count + 1)
        return FlatRows(ids, offsets, np.array(self.labels), groups=np.arange(count))


DEV, OTHER = Labels("dev", (0, 0, 1, 2)), Labels("mismatched", (0, 1))
TRAIN, CARVED = Labels("train", (0, 1, 2)), Labels("select", (2, 2))


def always_first(split: Labels) -> np.ndarray:
    """Outputs of a model that answers class 0 to every row."""
    return np.tile([1.0, 0.0, 0.0], (len(split), 1))


def of_mnli(select: Labels, heldout: Labels | None) -> TaskData:
    task = replace(find_task("mnli"), name="mnli")
    return TaskData(
        task=task, train=TRAIN, select=select, heldout=heldout, extra={"mismatched": OTHER},
        fingerprint="f", truncated=0,
    )  # fmt: skip


def test_overall_accuracy_counts_each_row_once() -> None:
    """2 of 4 on dev, 1 of 2 mismatched, 3 of 6 together, under both protocols."""
    together = {"accuracy_mismatched": 0.5, "accuracy_overall": 0.5}
    honest = final_metrics(of_mnli(CARVED, DEV), always_first)
    assert honest == pytest.approx({"accuracy": 0.5, **together})
    assert final_metrics(of_mnli(DEV, None), always_first) == pytest.approx(together)


def test_overall_is_no_mean_of_means() -> None:
    long = replace(DEV, labels=(0, 0, 0, 0, 0, 0, 1, 2))  # 6 of 8, with 1 of 2: 7 of 10
    assert final_metrics(of_mnli(CARVED, long), always_first)["accuracy_overall"] == 0.7


def test_a_tasks_own_split_of_that_name_keeps_its_name() -> None:
    data = replace(of_mnli(CARVED, DEV), extra={"overall": OTHER})
    found = final_metrics(data, always_first)
    assert found == pytest.approx({"accuracy": 0.5, "accuracy_overall": 0.5})
    assert final_metrics(replace(data, extra={}), always_first).keys() == {"accuracy"}
