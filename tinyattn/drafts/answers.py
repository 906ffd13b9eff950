"""Answers of a task, as its label column tells them: classes, scores, tags or texts, and a metric.

What is found is keys of a task's YAML file (`tasks/own.py`), each with a remark on why it is so.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tinyattn.data.rows import spelt
from tinyattn.drafts.columns import Choice, Column, UnclearError
from tinyattn.drafts.words import is_number, parts_of, shown
from tinyattn.errors import TaskError
from tinyattn.tasks.label_names import LabelNames
from tinyattn.tasks.multilabel import SEPARATORS

MOST_LABELS = 1000
"""Most classes of a draft: more are rather texts or numbers."""
FEW = 10
"""Rows of a class below which its scores say little."""
_MANY_NUMBERS = 20
"""Different whole numbers up to which they are classes."""
_ROWS_OF_CLASS = 3
_UNEQUAL = 3
"""Times the rows of the rarest class that make the commonest one too common for accuracy."""
_SCORES = frozenset(["score", "rating", "similarity", "relatedness", "grade"])
_WORDY = 3
_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 5.0), (1.0, 5.0), (0.0, 10.0), (0.0, 100.0))


@dataclass(frozen=True)
class Answers:
    """What a label column makes of a task."""

    keys: Mapping[str, object]
    """Keys of the task's file."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Key -> why it is so."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Rows, or words, of each label; empty: the task has none."""
    noticed: tuple[str, ...] = ()
    """What is odd about the labels."""


def answers_of(choice: Choice, others: Sequence[object], path: str) -> Answers:
    """Return what the label column makes of a task.

    Args:
        choice: columns of the rows to train on.
        others: values of the label column of the rows that judge.
        path: the file, the first part of each message.

    Raises:
        TaskError: the column holds nothing that a task can have.
    """
    label = choice.label
    if label.is_list:
        return _tags(choice, others, path)
    values = [spelt(value, label.names) for value in label.filled]
    more = [spelt(value, label.names) for value in others if value is not None and value != ""]
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values) and label.names is None:
        if all(map(is_number, texts)):
            if _are_scores(label, texts):
                return _scores(label, [*texts, *(v for v in more if isinstance(v, str))], path)
        elif len({*texts}) > len(texts) / 2 and label.words >= _WORDY:
            return _generation(choice)
    return _classes(label, values, more, path)


def _are_scores(label: Column, texts: Sequence[str]) -> bool:
    numbers = [float(text) for text in texts]
    if any(number != int(number) for number in numbers if math.isfinite(number)):
        return True
    different = sorted({*numbers})
    if len(different) <= _MANY_NUMBERS:
        return False
    counts_on = different == [float(at) for at in range(len(different))]
    enough = len(numbers) >= _ROWS_OF_CLASS * len(different)
    return not (counts_on and enough) or bool({*parts_of(label.name)} & _SCORES)


def _scores(label: Column, texts: Iterable[str], path: str) -> Answers:
    numbers = [float(text) for text in texts if is_number(text)]
    low, high = min(numbers), max(numbers)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise TaskError(
            f"{path}: column '{shown(label.name)}' holds scores from {low} to {high}; "
            "expected different, finite numbers"
        )
    bounds = next((own for own in _RANGES if own[0] <= low and high <= own[1]), (low, high))
    whole = [int(own) if own == int(own) else own for own in bounds]
    keys = {"labels": None, "score_range": whole, "metrics": ["pearson", "spearman"]}
    remarks = {
        "labels": "null: a score is predicted; for classes, list them here instead",
        "score_range": f"lowest and highest score; the file has {low:g} to {high:g}",
        "metrics": "Pearson's correlation is optimised",
    }
    return Answers(keys, remarks)


def _generation(choice: Choice) -> Answers:
    template = " ".join(f"{{{own.name}}}" for own in choice.texts) + " ||"
    keys = {"kind": "generation", "template": template, "metrics": ["bleu"]}
    remarks = {
        "kind": f"{shown(choice.label.name)} holds texts that seldom repeat: a causal language "
        "model learns to write them",
        "template": "the text that it goes on with",
    }
    return Answers(keys, remarks)


def _tags(choice: Choice, others: Sequence[object], path: str) -> Answers:
    """Return the labels of words; lists that are not one label for each word are refused."""
    words, tags = choice.texts[0], choice.label
    if not words.is_list or len(choice.texts) > 1:
        raise TaskError(
            f"{path}: column '{shown(tags.name)}' holds lists of labels; expected one label a row, "
            "or lists of words beside lists of their labels"
        )
    lists = [own for own in (*tags.filled, *others) if isinstance(own, list)]
    counts = Counter(_name(spelt(tag, tags.names)) for own in lists for tag in own)
    counts.pop("", None)
    if not 2 <= len(counts) <= MOST_LABELS:
        raise _few_or_many(tags, len(counts), path)
    spelled = all(name == "O" or name[:2] in ("B-", "I-", "E-", "S-") for name in counts)
    order = sorted(counts, key=lambda name: (name != "O", name[2:], name[:2]))
    labels = order if spelled else sorted(counts)
    metric = "entity_f1" if spelled else "token_accuracy"
    keys = {"kind": "tagging", "labels": labels, "metrics": [metric]}
    remarks = {
        "kind": "each word has a label",
        "metrics": "entities as the CoNLL script counts them"
        if spelled
        else "labels spell no entities (B-..., I-...)",
    }
    return Answers(keys, remarks, {name: counts[name] for name in labels})


def _classes(label: Column, values: Sequence[object], more: Sequence[object], path: str) -> Answers:
    counts = Counter(map(_name, values))
    judged = Counter(map(_name, more))
    for own in (counts, judged):
        for empty in [name for name in own if not name.strip()]:
            del own[empty]
    if set(judged) == {"-1"}:  # rows without labels, as GLUE has them
        judged.clear()
    if not 2 <= len(counts) <= MOST_LABELS:
        raise _few_or_many(label, len(counts), path)
    if sign := _sets_by(counts):
        raise UnclearError(
            f"{path}: column '{shown(label.name)}' seems to hold any number of labels with "
            f"{sign!r} between them; expected one label a row: write a task's file with "
            "kind: multilabel (docs/sweeps.md), or rename the labels"
        )
    kept, merged = _merged(counts)
    absent = [name for name in _merged(judged)[0] if _meant(name, kept) is None]
    noticed = [f"{_quoted(one)} is read as {_quoted(other)}" for one, other in merged.items()]
    if absent:
        noticed.append(
            f"no row to train on has the labels {_quotes(absent)}, which rows that judge have"
        )
    noticed += _alike([*kept, *absent])
    rare = [name for name, rows in kept.items() if rows < FEW]
    if rare:
        noticed.append(f"classes with fewer than {FEW} rows: {_quotes(rare)}")
    labels = _ordered([*kept, *absent], label.names)
    metric, why = _metric(kept)
    remarks = {"metrics": why}
    if all(_DECIMAL_COMMA.fullmatch(name) for name in labels):
        noticed.append(
            "the labels look like numbers with a decimal comma; to predict a score, write them "
            "with a point"
        )
    if all(is_number(name) for name in labels):
        remarks["labels"] = (
            "numbers as classes; to predict a score, labels: null and score_range: [low, high]"
        )
    keys = {"labels": labels, "metrics": [metric]}
    return Answers(keys, remarks, {name: kept.get(name, 0) for name in labels}, tuple(noticed))


_DECIMAL_COMMA = re.compile(r"[+-]?\d{1,3}(\.?\d{3})*,\d+", re.ASCII)


def _sets_by(counts: Mapping[str, int]) -> str | None:
    """Return the sign that parts values into others, if it does so in two of them; None: none."""
    for sign in SEPARATORS:
        parts = [[part.strip() for part in name.split(sign)] for name in counts if sign in name]
        if sum(all(part in counts for part in own) for own in parts) > 1:
            return sign
    return None


def _metric(counts: Mapping[str, int]) -> tuple[str, str]:
    """Return a metric of classes, and why."""
    most, least = max(counts, key=lambda name: counts[name]), min(counts.values())
    rows = sum(counts.values())
    if counts[most] < _UNEQUAL * least:
        return "accuracy", "the classes are of like size"
    return "f1_macro", (
        f"the classes differ in size: always {_quoted(most)} would be {counts[most] / rows:.0%} "
        "accurate, so each class counts alike"
    )


def _merged(counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, str]]:
    """Return rows of each label, and of spellings that a task reads as another one: that one."""
    kept: dict[str, int] = {}
    merged: dict[str, str] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        other = _meant(name, kept)
        if other is None:
            kept[name] = counts[name]
        else:
            kept[other] += counts[name]
            merged[name] = other
    return kept, merged


def _meant(name: str, labels: Iterable[str]) -> str | None:
    """Return the label that a value names; None: none."""
    known = tuple(labels)
    reading = LabelNames(known).read([name])
    return known[reading.ids[name]] if reading.by == "names" else None


def _alike(names: Sequence[str]) -> list[str]:
    """Return a remark on labels that differ by case, blanks or Unicode's forms alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        key = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        groups.setdefault(key, []).append(name)
    return [
        f"the labels {_quotes(own)} differ only by case, blanks or Unicode's forms; if they are "
        "one class, write them alike"
        for own in groups.values()
        if len(own) > 1
    ]


def _ordered(names: Sequence[str], of_file: Sequence[str] | None) -> list[str]:
    """Return labels in the file's own order, numbers by size, else by the alphabet."""
    if of_file is not None:
        return sorted(
            names, key=lambda name: of_file.index(name) if name in of_file else len(of_file)
        )
    if all(map(is_number, names)):
        return sorted(names, key=float)
    return sorted(names)


def _few_or_many(label: Column, count: int, path: str) -> TaskError:
    return TaskError(
        f"{path}: column '{shown(label.name)}' has {count:,} different labels; expected 2 to "
        f"{MOST_LABELS:,}, or numbers: name another column with --label"
    )


def _name(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value or "")


def _quoted(name: str) -> str:
    return f"'{shown(name)}'"


def _quotes(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names[:10])) + (", ..." if len(names) > 10 else "")
