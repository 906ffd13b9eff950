"""The tree of errors that a user can cause; orchestrator/runner.py and nodes.py add four.

    TinyAttnError                 exit code 1: it failed, though it was asked correctly
    ├── UsageError                exit code 2: it was asked wrongly
    │   ├── ConfigError           a key, value or file of a configuration
    │   ├── TaskError             a task, its data files, columns or labels
    │   ├── PlmError              a PLM that cannot be found, or whose family is unknown
    │   └── NameTakenError        a sweep, model or file name already in use
    ├── AdapterError              an adapter folder that is damaged or fits another PLM
    ├── DivergedError             a loss that is NaN or infinite
    ├── OutOfMemoryError          a device or host that ran out of memory
    └── StorageError              no space, no permission, a store that cannot be read
        └── DamagedError          a file that is missing, torn or changed: another may do

A message says what came, what is allowed and what to do. The command line prints the message
alone; a traceback means a defect of tinyattn.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# The words of CUDA, cuBLAS, C++, torch's CPU allocator and oneDNN.
_OUT_OF_MEMORY = (
    "out of memory|ALLOC_FAILED|bad_alloc|not enough memory|[Cc]an(no|')t allocate|"
    "could not create a (primitive(?! descriptor)|memory)"
)
_SPOILT = "could not create a primitive(?! descriptor)"


class TinyAttnError(Exception):
    """Base of the tree; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(TinyAttnError):
    """The request itself is wrong: nothing was started."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration key or value that is unknown or not allowed."""


class TaskError(UsageError):
    """A task that is unknown, or whose data do not fit it."""


class PlmError(UsageError):
    """A pretrained language model that cannot be found or adapted."""


class NameTakenError(UsageError):
    """A name that is already in use."""


class AdapterError(TinyAttnError):
    """An adapter folder that is truncated, tampered with, or made for another PLM."""


class DivergedError(TinyAttnError):
    """Training reached a NaN or infinite loss."""


class OutOfMemoryError(TinyAttnError):
    """A device or the host ran out of memory."""


class StorageError(TinyAttnError):
    """A place that cannot be read or written: no space, no permission, not there."""


class DamagedError(StorageError):
    """A file that is missing, torn or changed since it was written; an older one may do."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return ` — did you mean 'x'?` for the allowed word nearest to `word`, or an empty string."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f" — did you mean '{close[0]}'?" if close else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of a library is one of the several ways of running out of memory."""
    import torch  # slow to import, and what reads a user's words can do without

    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or (
        isinstance(error, RuntimeError) and re.search(_OUT_OF_MEMORY, str(error)) is not None
    )


def is_thread_spoilt(error: BaseException) -> bool:
    """Whether this is how torch (oneDNN) says that it had no memory to compile a kernel.

    The thread in which it came can compile none ever after, however much is free: oneDNN's
    assembler, Xbyak, keeps a thread's error.
    """
    return isinstance(error, RuntimeError) and re.search(_SPOILT, str(error)) is not None
