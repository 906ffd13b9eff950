"""A made-up task that is asked by patterns: texts of two labels, y and n."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WORDS = {"y": "yes", "n": "no"}
PATTERN = {"text": "{text} [MASK]", "words": WORDS}


def write_prompt_task(
    folder: Path,
    rows: Mapping[str, Sequence[Mapping[str, str]]],
    patterns: Sequence[Mapping[str, Any]] = (PATTERN,),
) -> str:
    """Write a task's file and its splits, of which `select` is there to select on; return its path.

    Args:
        folder: where.
        rows: of each split, with `text` and `label`.
        patterns: as in a task's file.
    """
    for split, own in rows.items():
        content = "".join(json.dumps(row) + "\n" for row in own)
        (folder / f"{split}.jsonl").write_text(content)
    task = {
        "name": "asked",
        "folder": ".",
        "text_columns": ["text"],
        "labels": ["y", "n"],
        "splits": {"select": "select"},
        "patterns": list(patterns),
    }
    (folder / "task.yaml").write_text(json.dumps(task))
    return str(folder / "task.yaml")
