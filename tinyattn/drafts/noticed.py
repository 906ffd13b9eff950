"""What is odd about rows, in words: copies, empty texts, one text with several labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tinyattn.drafts.words import shown
from tinyattn.grouping.carve import carve_size
from tinyattn.grouping.groups import group_rows

MOST_ROWS = 100_000
"""Rows among which near copies are looked for."""
_NAMED = 5

Texts = Sequence[tuple[str, ...]]
"""The texts of each row: one, or two of a pair."""


def about_texts(texts: Texts, labels: Sequence[object]) -> Iterator[str]:
    """Yield what is odd about the rows to train on.

    Args:
        texts: of each row; an empty text where a row has none.
        labels: of each row, as the task reads them; None where a row has none.
    """
    if empty := [at for at, own in enumerate(texts) if not all(text.strip() for text in own)]:
        yield f"{_rows(len(empty))} an empty text: {_numbers(empty)}"
    if lacking := [at for at, own in enumerate(labels) if own is None]:
        yield f"{_rows(len(lacking))} no label, which cannot be trained on: {_numbers(lacking)}"
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for at, own in enumerate(texts):
        places[own].append(at)
    copied = [own for own in places.values() if len(own) > 1]
    if copied:
        number = sum(len(own) - 1 for own in copied)
        word = "rows are exact copies" if number > 1 else "row is an exact copy"
        yield f"{number:,} {word} of another: {_groups(copied)}"
    known = [[at for at in own if labels[at] is not None] for own in copied]
    at_odds = [own for own in known if len({labels[at] for at in own}) > 1]
    if at_odds:
        word = "texts have" if len(at_odds) > 1 else "text has"
        first = at_odds[0]
        both = ", ".join(f"'{shown(own)}'" for own in dict.fromkeys(labels[at] for at in first))
        yield f"{len(at_odds):,} {word} several labels: {_groups(at_odds)} (the first: {both})"
    yield from _near([own for own in places if any(text.strip() for text in own)])


def _near(different: Texts) -> Iterator[str]:
    """Yield how many different texts are nearly the same as others."""
    looked_at = different[:MOST_ROWS]
    if len(looked_at) < 2:
        return
    columns = [[own[at] for own in looked_at] for at in range(len(looked_at[0]))]
    numbers = group_rows(columns, carve_size(len(looked_at))).numbers
    sizes = np.bincount(numbers)
    near = int(sizes[sizes > 1].sum())
    if near:
        among = f" of the first {MOST_ROWS:,}" if len(different) > MOST_ROWS else ""
        first = int(np.flatnonzero(sizes[numbers] > 1)[0])
        kin = int(np.flatnonzero(numbers == numbers[first])[1])
        yield (
            f"{near:,}{among} different texts are nearly copies of another, as "
            f"'{shown(looked_at[first][0], 40)}' and '{shown(looked_at[kin][0], 40)}'; rows that "
            "choose trials are never near copies of those that train"
        )


def about_splits(train: Texts, others: Mapping[str, Texts]) -> Iterator[str]:
    """Yield how many rows of other splits are in the rows to train on too."""
    known = set(train)
    for name, texts in others.items():
        if same := [at for at, own in enumerate(texts) if own in known]:
            yield (
                f"{_rows(len(same))} in {name} the texts of a row to train on, so that its scores "
                f"are too good: {_numbers(same)}"
            )


def _rows(number: int) -> str:
    return f"{number:,} rows have" if number > 1 else "1 row has"


def _numbers(places: Sequence[int]) -> str:
    more = ", ..." if len(places) > _NAMED else ""
    word = "rows" if len(places) > 1 else "row"
    return f"{word} {', '.join(f'{at + 1}' for at in places[:_NAMED])}{more}"


def _groups(groups: Sequence[Sequence[int]]) -> str:
    parts = (" and ".join(f"{at + 1}" for at in own[:3]) for own in groups[:_NAMED])
    return f"rows {', '.join(parts)}" + (", ..." if len(groups) > _NAMED else "")
