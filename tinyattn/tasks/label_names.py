"""LabelNames: the labels of a task as files spell them, and which values of a column mean which.

A column is read by names or by ids, and all of it the same way:

- A value is the *name* of a label if it is the same text, or the same but for blanks around it and
  its Unicode form (NFC and NFD look alike), or the same number: 2, 2.0 and "+2" are the label
  "2.0". A boolean is the label "true" or "false", in whatever case. Where two labels fit equally
  well, none is meant.
- A value is the *id* of a label if it is a whole number from 0 to the number of labels less one,
  and no label is a number itself. So no value can be both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Literal, TypeVar

from tinyattn.errors import did_you_mean

Key = TypeVar("Key")

Spelling = str | bool | None
"""A value of a label column: text (a number as it is written), boolean, or nothing."""
By = Literal["names", "ids"]
"""How a column is read."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_MISSING = ("", "-1")
"""An unlabelled row, where no label is called so: an empty cell of a CSV file, or GLUE's -1."""
_SHOWN = 20


@dataclass(frozen=True)
class Reading:
    """How a column's values are read."""

    ids: Mapping[Spelling, int]
    """Value -> id of the label that it means; a value that means none is not in it."""
    by: By | None
    """By names or by ids; None: no value means a label."""


@dataclass(frozen=True)
class LabelNames:
    """The labels of a task by id, and what values mean them."""

    names: tuple[str, ...]

    def read(self, values: Sequence[Spelling]) -> Reading:
        """Return how a column is read, given its different values: by names if one is a name."""
        by_name = {value: at for value in values if (at := self._named(value)) is not None}
        if by_name:
            return Reading(by_name, "names")
        by_id = {value: at for value in values if (at := self._numbered(value)) is not None}
        return Reading(by_id, "ids" if by_id else None)

    def is_missing(self, value: Spelling) -> bool:
        """Whether a value says that a row has no label."""
        if value is None:
            return True
        if not isinstance(value, str) or self._named(value) is not None:
            return False
        plain = _plain(value)
        return plain in _MISSING or number_in(plain) == -1

    def expected(self) -> str:
        """Return in words which values mean a label."""
        shown = ", ".join(self.names[:_SHOWN]) + (", ..." if len(self.names) > _SHOWN else "")
        if self._has_numbers:
            return f"one of {shown}"
        return f"one of {shown}, or the ids 0 to {len(self.names) - 1} in all rows"

    def hint(self, value: Spelling, by: By | None) -> str:
        """Return what to say of a value that means no label in a column that is read so."""
        if by == "names" and self._numbered(value) is not None:
            return ", an id where other rows have names"
        text = str(value)
        return "" if number_in(text) is not None else did_you_mean(text, self.names)

    @cached_property
    def _has_numbers(self) -> bool:
        """Whether a label is a number, so that numbers are names and never ids."""
        return any(number_in(name) is not None for name in self.names)

    @cached_property
    def _exact(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.names)}

    @cached_property
    def _composed(self) -> dict[str, int]:
        return _alone(self.names, _plain)

    @cached_property
    def _numbers(self) -> dict[Decimal, int]:
        return _alone(self.names, number_in)

    @cached_property
    def _folded(self) -> dict[str, int]:
        return _alone(self.names, str.casefold)

    def _named(self, value: Spelling) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool):
            return self._folded.get(str(value).casefold())
        if (at := self._exact.get(value)) is not None:
            return at
        plain = _plain(value)
        if (at := self._composed.get(plain)) is not None:
            return at
        return None if (number := number_in(plain)) is None else self._numbers.get(number)

    def _numbered(self, value: Spelling) -> int | None:
        if self._has_numbers or not isinstance(value, str):
            return None
        number = number_in(_plain(value))
        if number is None or not _is_whole(number) or not 0 <= number < len(self.names):
            return None
        return int(number)


def _alone(names: Sequence[str], key: Callable[[str], Key | None]) -> dict[Key, int]:
    """Return key -> id of the labels whose key no other label has."""
    found: dict[Key, list[int]] = {}
    for at, name in enumerate(names):
        if (own := key(name)) is not None:
            found.setdefault(own, []).append(at)
    return {own: ids[0] for own, ids in found.items() if len(ids) == 1}


def _plain(text: str) -> str:
    """Return a text without blanks around it, in Unicode's composed form."""
    return unicodedata.normalize("NFC", text).strip()


def number_in(text: str) -> Decimal | None:
    """Return the number that a text spells in ASCII digits, exactly; None: it spells none."""
    return Decimal(text) if len(text) <= 400 and _NUMBER.fullmatch(text) else None


def _is_whole(number: Decimal) -> bool:
    return number == number.to_integral_value()
