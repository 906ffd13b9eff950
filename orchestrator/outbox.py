"""Writes to a store that may be slow or away for a while: in order, in the background."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

from mlflow.exceptions import MlflowException
from requests import HTTPError

from tinyattn.uris import without_secrets

PATIENCE_SECONDS = 60.0
"""How long a write that cannot wait is tried again."""
_TRANSIENT = {
    "TEMPORARILY_UNAVAILABLE",
    "INTERNAL_ERROR",
    "REQUEST_LIMIT_EXCEEDED",
    "DEADLINE_EXCEEDED",
}
"""Error codes of MLflow that pass by themselves."""


def is_passing(error: Exception) -> bool:
    """Whether a fault passes by itself: a store that is away, a full disk."""
    if isinstance(error, MlflowException):
        return error.error_code in _TRANSIENT
    if isinstance(error, HTTPError) and error.response is not None:  # from moving an artifact
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


class Outbox:
    """A thread that sends writes in their order; a passing fault keeps all of them waiting.

    It holds in memory what waits. Who must not lose it keeps a journal, and sends again.
    """

    def __init__(self, uri: str = "", pause_seconds: float = 5.0) -> None:
        """Begin empty.

        Args:
            uri: address of the store, whose secrets no message shows.
            pause_seconds: how long a write waits that is to be tried again.
        """
        self._uri = uri
        self._pause_seconds = pause_seconds
        self._waiting: deque[Callable[[], Any]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, write: Callable[[], Any]) -> None:
        """Have `write` sent after all that waits; return at once."""
        with self._changed:
            self._waiting.append(write)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="outbox", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait until all is sent, `seconds` at most; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout=seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                write = self._waiting[0]
            try:
                write()
            except Exception as error:
                if is_passing(error):
                    time.sleep(self._pause_seconds)
                    continue
                # Such as a run that somebody deleted in MLflow's page: no reason to stop a sweep.
                reason = without_secrets(str(error), self._uri)
                warnings.warn(f"MLflow refused a write: {reason}", stacklevel=2)
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()


def patiently(call: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Call until it works or `seconds` have passed; only passing faults are tried again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except MlflowException as error:
            if not is_passing(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)
