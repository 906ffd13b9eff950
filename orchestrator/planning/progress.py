"""Progress of what takes long before a command has anything to show."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

Item = TypeVar("Item")

PAUSE_SECONDS = 5.0
"""Least seconds between two messages."""


def counted(
    items: Collection[Item], what: str, say: Callable[[str], None] | None
) -> Iterator[Item]:
    """Yield items, and say now and then how many are done, as in `simulated: 3 of 9`.

    Args:
        items: what is worked on, one after the other.
        what: the first words of a message.
        say: takes messages; None: nobody listens.
    """
    last = time.monotonic()
    for done, item in enumerate(items):
        if say is not None and done and time.monotonic() - last >= PAUSE_SECONDS:
            last = time.monotonic()
            say(f"{what}: {done} of {len(items)}")
        yield item
