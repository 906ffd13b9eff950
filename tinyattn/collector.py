"""Python's garbage collector, kept away from what imports make.

Importing torch, transformers and Ray makes a million objects that live as long as the process. The
collector walks through them again and again while they are made, which takes a fifth to a quarter
of the time of the imports (docs/experiments/speed.md), and once more at each later collection.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def imports_uncollected() -> Iterator[None]:
    """Switch the collector off for a block of imports, whose objects it never looks at again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
