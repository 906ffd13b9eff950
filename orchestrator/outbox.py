"""Writes to a store that may be away for a while: kept in order, or tried again for a time."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

from mlflow.exceptions import MlflowException

PATIENCE_SECONDS = 60.0
"""How long a write that cannot wait is tried again."""
_TRANSIENT = {
    "TEMPORARILY_UNAVAILABLE",
    "INTERNAL_ERROR",
    "REQUEST_LIMIT_EXCEEDED",
    "DEADLINE_EXCEEDED",
}
"""Error codes of MLflow that pass by themselves."""


class Outbox:
    """Writes in their order; those that a passing fault delays wait here."""

    def __init__(self, pause_seconds: float = 5.0) -> None:
        self._waiting: deque[Callable[[], Any]] = deque()
        self._pause_seconds = pause_seconds
        self._not_before = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, write: Callable[[], Any]) -> None:
        """Send what waits, then `write`; after a passing fault keep it and return."""
        self._waiting.append(write)
        if time.monotonic() >= self._not_before:
            self._flush()

    def drain(self, seconds: float) -> None:
        """Send all that waits; give up after `seconds` with a warning that says what is lost."""
        deadline = time.monotonic() + seconds
        while not self._flush() and time.monotonic() < deadline:
            time.sleep(min(1.0, seconds))
        if self._waiting:
            warnings.warn(f"{len(self)} writes never reached the MLflow store", stacklevel=2)

    def _flush(self) -> bool:
        """Send in order until one fails; return whether all went out."""
        while self._waiting:
            try:
                self._waiting[0]()
            except (MlflowException, OSError) as error:
                # OSError: a full disk, or a connection that broke in the middle of a file.
                if isinstance(error, OSError) or error.error_code in _TRANSIENT:
                    self._not_before = time.monotonic() + self._pause_seconds
                    return False
                # Such as a run that somebody deleted in MLflow's page: no reason to stop a sweep.
                warnings.warn(f"MLflow refused a write: {error}", stacklevel=2)
            self._waiting.popleft()
        return True


def patiently(call: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Call until it works or `seconds` have passed; only passing faults are tried again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except MlflowException as error:
            if error.error_code not in _TRANSIENT or time.monotonic() > deadline:
                raise
        time.sleep(1.0)
