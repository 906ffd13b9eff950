"""Made-up files in the form of GLUE's tasks, for those whose real ones are not here."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

from tinyattn.tasks import find_task

_TEXT = "the a dog cat house runs sleeps old new green never often sees likes and because of"
WORDS = _TEXT.split()


def write_glue(data: Path, names: Iterable[str], rows: int = 400, seed: int = 0) -> None:
    """Write train and validation files of tasks into `data/glue`; labels follow the text.

    Args:
        data: folder for TINYATTN_DATA.
        names: of the tasks.
        rows: training rows; validation has a quarter of them.
        seed: of the texts.
    """
    for number, name in enumerate(names):
        task, luck = find_task(name), random.Random(seed + number)
        folder = data / "glue" / name
        folder.mkdir(parents=True, exist_ok=True)
        validation = [task.splits.validation or "validation", *task.splits.extra.values()]
        for split, count in {"train": rows, **dict.fromkeys(validation, rows // 4)}.items():
            made = [_row(name, luck) for _ in range(count)]
            text = "".join(json.dumps({**row, "idx": i}) + "\n" for i, row in enumerate(made))
            (folder / f"{split}.jsonl").write_text(text)


def _row(name: str, luck: random.Random) -> dict[str, object]:
    """Return a row whose label is the number of words that it shares, or its first word's."""
    task = find_task(name)
    texts = [[luck.choice(WORDS) for _ in range(luck.randint(6, 14))] for _ in task.text_columns]
    shared = len(set(texts[0]) & set(texts[-1])) if len(texts) > 1 else WORDS.index(texts[0][0])
    label: object = shared % len(task.labels) if task.labels else min(5.0, float(shared))
    columns = dict(zip(task.text_columns, map(" ".join, texts), strict=True))
    return {**columns, "label": label}
