"""The exception tree of errors that a user can cause; orchestrator/execution adds four.

    TinyAttnError                 exit code 1: a correct request failed
    ├── UsageError                exit code 2: the request is wrong
    │   ├── ConfigError           a key, value or file of a configuration
    │   ├── TaskError             a task, its data files, columns or labels
    │   ├── PlmError              a PLM that cannot be found, or whose family is unknown
    │   └── NameTakenError        a sweep, model or file name already in use
    ├── AdapterError              an adapter folder that is damaged or fits another PLM
    ├── DivergedError             a loss that is NaN or infinite
    ├── OutOfMemoryError          a device or host that ran out of memory
    └── StorageError              no space, no permission, a store that cannot be read
        └── DamagedError          a file that is missing, truncated or changed

A message says what came, what is allowed and what to do. The command line prints the message
alone; a traceback means a defect of tinyattn.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TinyAttnError(Exception):
    """Base of the tree; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(TinyAttnError):
    """A request that is wrong in itself; nothing was started."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration key or value that is unknown or not allowed."""


class TaskError(UsageError):
    """A task that is unknown, or data that do not fit their task."""


class AbsentTaskFileError(TaskError):
    """A task's YAML file that is not where it was named."""


class PlmError(UsageError):
    """A pretrained language model that cannot be found or adapted."""


class AbsentError(UsageError):
    """Data or a PLM that is not on this machine, but may be on the one where a sweep runs."""


class AbsentDataError(TaskError, AbsentError):
    """A task's data, as above."""


class AbsentPlmError(PlmError, AbsentError):
    """A PLM, as above."""


class NameTakenError(UsageError):
    """A name that is already in use."""


class AdapterError(TinyAttnError):
    """An adapter folder that is truncated, tampered with, or made for another PLM."""


class DivergedError(TinyAttnError):
    """A training loss that is NaN or infinite."""


class OutOfMemoryError(TinyAttnError):
    """A device or host that ran out of memory."""


class StorageError(TinyAttnError):
    """A place that cannot be read or written: no space, no permission, not there."""


class DamagedError(StorageError):
    """A file that is missing, truncated or changed since it was written; try an older one."""


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return ` — did you mean 'x'?` for the allowed word nearest to `word`, or an empty string.

    A dotted key is near where its last part is: `lr` stands for `optimizer.lr`, and all are named
    that end so.
    """
    known = list(allowed)
    last = {key: key.rpartition(".")[2] for key in known}
    near = [] if word in known else [key for key in known if last[key] == word]
    near = near or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not near:
        close = difflib.get_close_matches(word, list(last.values()), n=1, cutoff=0.75)
        near = [key for key in known if last[key] in close]
    return f" — did you mean {' or '.join(map(repr, near))}?" if near else ""
