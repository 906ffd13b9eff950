"""The nine GLUE tasks with the columns, label order and splits of `nyu-mll/glue` on the hub.

The paper's numbers are dev scores of its tables 8 (roberta-large) and 10 (roberta-base), in
percent points of the primary metric; on MNLI the matched accuracy.
"""

from __future__ import annotations

from tinyattn.tasks.base import Splits, Task

HUB_NAME = "nyu-mll/glue"

_ENTAILMENT = ("entailment", "not_entailment")


def _large(one_head: float, four_heads: float) -> dict[str, dict[str, float]]:
    return {"roberta-large": {"1H": one_head, "4H": four_heads}}


_TASKS = (
    Task(
        name="cola",
        text_columns=("sentence",),
        labels=("unacceptable", "acceptable"),
        score_range=None,
        metrics=("matthews",),
        paper=_large(68.8, 69.4),
    ),
    Task(
        name="sst2",
        text_columns=("sentence",),
        labels=("negative", "positive"),
        score_range=None,
        metrics=("accuracy",),
        paper={**_large(96.6, 96.6), "roberta-base": {"1H": 94.5}},
    ),
    Task(
        name="mrpc",
        text_columns=("sentence1", "sentence2"),
        labels=("not_equivalent", "equivalent"),
        score_range=None,
        metrics=("accuracy", "f1"),
        paper=_large(92.4, 92.6),
    ),
    Task(
        name="stsb",
        text_columns=("sentence1", "sentence2"),
        labels=None,
        score_range=(0.0, 5.0),
        metrics=("pearson", "spearman"),
        paper=_large(92.3, 92.3),
    ),
    Task(
        name="qqp",
        text_columns=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        score_range=None,
        metrics=("accuracy", "f1"),
        paper=_large(90.1, 90.1),
    ),
    Task(
        name="mnli",
        text_columns=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        score_range=None,
        metrics=("accuracy",),
        splits=Splits(
            validation="validation_matched",
            test="test_matched",
            extra={"mismatched": "validation_mismatched"},
        ),
        paper={**_large(89.6, 89.6), "roberta-base": {"1H": 86.1}},
    ),
    Task(
        name="qnli",
        text_columns=("question", "sentence"),
        labels=_ENTAILMENT,
        score_range=None,
        metrics=("accuracy",),
        paper=_large(94.3, 94.5),
    ),
    Task(
        name="rte",
        text_columns=("sentence1", "sentence2"),
        labels=_ENTAILMENT,
        score_range=None,
        metrics=("accuracy",),
        paper=_large(88.8, 89.2),
    ),
    Task(
        name="wnli",
        text_columns=("sentence1", "sentence2"),
        labels=("not_entailment", "entailment"),
        score_range=None,
        metrics=("accuracy",),
    ),
)

GLUE = {task.name: task for task in _TASKS}

DIAGNOSTIC = Task(
    name="ax",
    text_columns=("premise", "hypothesis"),
    labels=("entailment", "neutral", "contradiction"),
    score_range=None,
    metrics=("matthews",),
)
"""GLUE's diagnostic set AX: rows in the form of MNLI's, in a test split alone. What was trained on
MNLI answers them, so it is no task of a sweep."""
