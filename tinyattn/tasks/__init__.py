"""Tasks: columns, labels and metrics; GLUE, few-shot tasks, E2E, a made-up one, and one's own."""

from __future__ import annotations

from pathlib import Path

from tinyattn.errors import TaskError, did_you_mean
from tinyattn.tasks.base import Splits, Task
from tinyattn.tasks.metrics import (
    best_first,
    compute_metrics,
    is_one_class,
    noise_of,
    number_of,
    undefined,
)
from tinyattn.tasks.own import read_task
from tinyattn.tasks.shipped.agreement import AGREEMENT
from tinyattn.tasks.shipped.e2e import E2E
from tinyattn.tasks.shipped.few_shot import FEW_SHOT, SHOT_SEEDS
from tinyattn.tasks.shipped.glue import GLUE

TASKS = {**GLUE, **FEW_SHOT, E2E.name: E2E, AGREEMENT.name: AGREEMENT}

__all__ = [
    "TASKS",
    "Splits",
    "Task",
    "best_first",
    "compute_metrics",
    "find_task",
    "is_one_class",
    "noise_of",
    "number_of",
    "undefined",
]


def find_task(name_or_path: str) -> Task:
    """Return a built-in task by name, or a user's own task from its YAML file.

    Raises:
        TaskError: the name is unknown or the file is not there.
        ConfigError: the file is not a task's YAML file.
    """
    for name in (name_or_path, name_or_path.replace("/", "-")):
        if name in TASKS:
            return TASKS[name]
    path = Path(name_or_path).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        further = tuple(f"-{seed}" for seed in SHOT_SEEDS[1:])
        listed = [name for name in TASKS if not name.endswith(further)]
        raise TaskError(
            f"task '{name_or_path}' is unknown{did_you_mean(name_or_path.lower(), TASKS)}; allowed "
            f"are {', '.join(listed)} (16-shot tasks also with {' and '.join(further)} for other "
            "draws), or the YAML file of a task of your own"
        )
    if not path.is_file():
        raise TaskError(f"task file '{name_or_path}' is not there; paths start at {Path.cwd()}")
    return read_task(path, TASKS)
