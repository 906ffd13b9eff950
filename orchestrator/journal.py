"""What happened in a batch of trials, one JSON line an event: the only truth after a crash.

Everything else that a sweep knows follows from this file. Each event is on disk before anybody
acts on it, so whoever dies leaves a prefix of the truth, and a driver that opens the journal
brings the rest up to it: ASHA's rungs by deciding again in the same order, the Optuna study by
telling what it was not told, MLflow by sending what it lacks, the view by counting. A new batch is
a batch whose journal is empty.

| event  | written                                   | says                                       |
|--------|-------------------------------------------|--------------------------------------------|
| start  | when it is given to Tune: first, or again | its overrides                              |
| result | when a worker reports                     | one evaluation, or how the trial ended     |
| end    | when it ends without saying so itself     | stopped or failed, and why                 |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.events import parse_event
from orchestrator.outcome import Outcome
from tinyattn.errors import StorageError
from tinyattn.outside import UnfitError, read_bytes, reason

MOST_BYTES = 2**30
"""Of a journal: a hundred times what ten thousand trials write."""


@dataclass
class Past:
    """What a journal tells of one trial."""

    name: str
    params: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    """Evaluations in order; the last may be an end without one."""
    outcome: Outcome | None = None
    """None: it was running when the journal ends."""
    error: str | None = None

    @property
    def evaluations(self) -> int:
        """How many evaluations are known."""
        return int(self.last.get("evaluation", 0))

    @property
    def last(self) -> dict[str, Any]:
        """The last result; empty before the first."""
        return self.results[-1] if self.results else {}

    @property
    def best_index(self) -> int:
        """The evaluation that was the best so far; 0: there was none."""
        found = (result.get("best_index", 0) for result in reversed(self.results))
        return int(next(filter(None, found), 0))

    def knows(self, result: Mapping[str, Any]) -> bool:
        """Whether a result says nothing new, as when a restarted trial reports it again."""
        ends = "outcome" in result
        known = not ends and result["evaluation"] <= self.evaluations
        return self.outcome is not None or known


class Journal:
    """The events of one batch, appended to a file.

    Attributes:
        trials: what happened to each trial, by name, in order of their starts.
    """

    def __init__(self, path: Path) -> None:
        """Open or begin a journal.

        Raises:
            StorageError: it cannot be read or written, or a line in it is broken.
        """
        self.path = path
        self.trials: dict[str, Past] = {}
        self.events: list[dict[str, Any]] = []
        """All events in their order."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            cut_torn_end(path)
        except OSError as error:
            raise self._unusable(error) from None
        except UnfitError as error:
            raise StorageError(f"{path}: cannot be read: {error}") from None
        for event in _events(path, self.trials):
            self.events.append(event)

    def start(self, trial: str, params: Mapping[str, Any]) -> None:
        """Note that a trial begins, or goes on after a pause or a crash."""
        self._write({"event": "start", "trial": trial, "params": dict(params)})

    def result(self, trial: str, result: Mapping[str, Any]) -> bool:
        """Note what a worker reported; False: it was known."""
        if self.trials[trial].knows(result):
            return False
        self._write({"event": "result", "trial": trial, "result": dict(result)})
        return True

    def end(self, trial: str, outcome: Outcome, error: str | None = None) -> None:
        """Note the end of a trial that did not report it itself."""
        if self.trials[trial].outcome is None:
            self._write({"event": "end", "trial": trial, "outcome": outcome.value, "error": error})

    def _take_in(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        _take_in(self.trials, event)

    def _write(self, event: dict[str, Any]) -> None:
        """Append one line and wait until the disk has it; a line that fails leaves nothing."""
        try:
            append(self.path, (json.dumps(event) + "\n").encode())
        except OSError as error:
            raise self._unusable(error) from None
        self._take_in(event)

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.path}: the sweep's journal cannot be written: {error.strerror or error}; free "
            "space or check permissions"
        )


def append(path: Path, content: bytes) -> None:
    """Append to a file and wait until the disk has it; what fails leaves the file as it was.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        before = os.fstat(descriptor).st_size
        try:
            rest = content
            while rest:  # a disk that fills up takes a part
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def read_journal(path: Path) -> dict[str, Past]:
    """What happened to the trials of a journal that its driver may be writing.

    Raises:
        StorageError: it is not there, or a line is broken.
    """
    trials: dict[str, Past] = {}
    for _ in _events(path, trials):
        pass
    return trials


def _take_in(trials: dict[str, Past], event: Mapping[str, Any]) -> None:
    name = event["trial"]
    if event["event"] == "start":
        trials.setdefault(name, Past(name, event["params"]))
        return
    past, end = trials[name], event
    if event["event"] == "result":
        end = event["result"]
        past.results.append(event["result"])
    if end.get("outcome") is not None:
        past.outcome, past.error = Outcome(end["outcome"]), end.get("error")


def _events(path: Path, trials: dict[str, Past]) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal that say something new, each taken into `trials`.

    A last line without its end was torn by a crash, and is left out.
    """
    try:
        content = read_bytes(path, MOST_BYTES)
    except (OSError, UnfitError) as error:
        raise StorageError(f"{path}: cannot be read: {reason(error)}") from None
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            event = parse_event(line)
            is_new = _is_new(event, trials)
        except UnfitError as error:
            raise StorageError(
                f"{path}:{number}: not a line of a journal: {error}; restore the file from a copy"
            ) from None
        if is_new:
            _take_in(trials, event)
            yield event


def _is_new(event: Mapping[str, Any], trials: Mapping[str, Past]) -> bool:
    """Whether an event is not one that came before, as where a line stands twice."""
    name = event["trial"]
    if event["event"] == "start":
        return True
    if name not in trials:
        raise UnfitError(f"trial {name!r} has not started before")
    if event["event"] == "result":
        return not trials[name].knows(event["result"])
    return trials[name].outcome is None


def refuse_damaged(folder: Path, known: Iterable[str], needed: str | None = None) -> None:
    """Check all journals of a sweep, before anything is opened that damage would leave half done.

    Args:
        folder: the sweep's.
        known: names of the trials that MLflow has, whose journals cannot be without them: an
            event is in its journal before MLflow hears of it.
        needed: the batch whose journal must be there; others may have been cleared away.

    Raises:
        StorageError: a line is no event, or a journal was emptied, cut or, if needed, removed.
    """
    found = {path.stem: read_journal(path) for path in sorted(folder.glob("*.jsonl"))}
    for name in known:
        batch = name.rpartition("_")[0]
        trials = found.get(batch, {} if batch == needed else None)
        if trials is not None and name not in trials:
            raise StorageError(
                f"{folder / batch}.jsonl: trial {name}, which MLflow has, is not in it: it was "
                "emptied, cut or removed; restore it from a copy, or begin a sweep of another name"
            )


def cut_torn_end(path: Path) -> None:
    """Cut off a last line without its end, which a crash may have torn.

    Raises:
        OSError, UnfitError: it cannot be read, or is no ordinary file.
    """
    content = read_bytes(path, MOST_BYTES)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
