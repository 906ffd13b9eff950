"""Where trials leave states and best adapters, for whoever runs them next and for the driver.

A folder that all nodes see, or an object store by URL; in both a state is there as a whole or not
at all, and goes when its trial has ended. What only the driver writes (journal, study) is in the
sweep's folder in either case: objects cannot be appended to.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tinyattn.errors import DamagedError, StorageError
from tinyattn.objects import Objects, files_in, on_own_disk, scratch, write_files

if TYPE_CHECKING:  # it imports torch, which an actor that is only starting must not wait for
    from tinyattn.ranks import Ranks

STATES_KEPT = 2
"""States of a trial that are kept: the last one, and one in case that it is damaged."""


class Depot(Protocol):
    """What a sweep's trials leave. Methods raise StorageError where it cannot be used."""

    @property
    def folder(self) -> Path:
        """The sweep's folder, which its driver sees."""

    @property
    def notes(self) -> Path:
        """Folder where workers note what they learn about their machines."""

    # ---- workers ----

    def fresh_state(self, trial: str, index: int, ranks: Ranks) -> AbstractContextManager[Path]:
        """A folder that all ranks fill with a trial's state after evaluation `index`; it counts
        when the block ends without error, and the oldest one goes."""

    def states(self, trial: str) -> set[str]:
        """Names of a trial's states; later ones sort later."""

    def state(self, trial: str, name: str) -> AbstractContextManager[Path]:
        """A state as a folder to read; DamagedError: it is not as it was written."""

    def fresh_adapter(self, trial: str, index: int) -> AbstractContextManager[Path]:
        """A folder for a trial's best adapter as of evaluation `index`, as `fresh_state`."""

    # ---- the driver ----

    def adapter(self, trial: str) -> Path | None:
        """The best adapter of a trial that has ended; None: it had no evaluation."""

    def address(self, trial: str) -> str:
        """Where workers read that adapter: a path or a URL; StorageError: there is none."""

    def trials_with_states(self) -> set[str]:
        """Names of the trials that have states."""

    def clear(self, trial: str) -> None:
        """Remove the states of a trial that has ended."""


@dataclass(frozen=True)
class SharedFolder:
    """A sweep's folder that all nodes see at the same path; nothing is copied."""

    folder: Path

    @property
    def notes(self) -> Path:
        """The runs folder: what one machine learns serves others of its kind."""
        return self.folder.parent.parent

    @contextmanager
    def fresh_state(self, trial: str, index: int, ranks: Ranks) -> Iterator[Path]:
        states = self._states(trial)
        with ranks.one_folder(states / f"{index:06d}") as fresh:
            yield fresh
        if ranks.writes:
            for name in _surplus(self.states(trial), f"{index:06d}", STATES_KEPT):
                shutil.rmtree(states / name, ignore_errors=True)

    def states(self, trial: str) -> set[str]:
        return {path.name for path in self._states(trial).glob("[0-9]*")}

    @contextmanager
    def state(self, trial: str, name: str) -> Iterator[Path]:
        yield self._states(trial) / name

    @contextmanager
    def fresh_adapter(self, trial: str, index: int) -> Iterator[Path]:
        yield self._adapter(trial)  # whoever writes an adapter there replaces it as a whole

    def adapter(self, trial: str) -> Path | None:
        folder = self._adapter(trial)
        return folder if folder.is_dir() else None

    def address(self, trial: str) -> str:
        if self.adapter(trial) is None:
            raise StorageError(f"{self._adapter(trial)}: is not there; restore it from a copy")
        return str(self._adapter(trial))

    def trials_with_states(self) -> set[str]:
        return {path.name for path in (self.folder / "states").glob("*")}

    def clear(self, trial: str) -> None:
        shutil.rmtree(self._states(trial), ignore_errors=True)

    def _states(self, trial: str) -> Path:
        return self.folder / "states" / trial

    def _adapter(self, trial: str) -> Path:
        return self.folder / "adapters" / trial


@dataclass(frozen=True)
class ObjectStore:
    """A part of an object store that belongs to one sweep: `states/TRIAL/NNNNNN.tar` and
    `adapters/TRIAL/NNNNNN.tar`, numbered by evaluation."""

    folder: Path
    """On the driver's own disk; adapters of ended trials are copied there."""
    objects: Objects

    @property
    def notes(self) -> Path:
        """A folder of this machine: each learns for itself what has room on it."""
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        with suppress(OSError):
            (base / "tinyattn").mkdir(parents=True, exist_ok=True)
        return base / "tinyattn"

    @contextmanager
    def fresh_state(self, trial: str, index: int, ranks: Ranks) -> Iterator[Path]:
        with scratch() as folder:
            with on_own_disk():
                yield folder
                own = files_in(folder)
            parts = ranks.gather(own)  # ranks may be on several nodes
        if ranks.writes:
            files = {name: content for part in parts for name, content in part.items()}
            self._put(f"states/{trial}", index, files, kept=STATES_KEPT)

    def states(self, trial: str) -> set[str]:
        return set(self.objects.names(f"states/{trial}"))

    @contextmanager
    def state(self, trial: str, name: str) -> Iterator[Path]:
        with scratch() as folder:
            self.objects.get(f"states/{trial}/{name}", folder)
            yield folder

    @contextmanager
    def fresh_adapter(self, trial: str, index: int) -> Iterator[Path]:
        with scratch() as folder:
            with on_own_disk():
                yield folder / "adapter"
                files = files_in(folder / "adapter")
            self._put(f"adapters/{trial}", index, files, kept=1)

    def adapter(self, trial: str) -> Path | None:
        from tinyattn.checkpoint import replace_folder  # imports torch, see above

        target = self.folder / "adapters" / trial
        if target.is_dir():
            return target
        found = self._newest_adapter(trial)
        if found is None:
            return None
        with replace_folder(target) as fresh:
            write_files(fresh, found[1])
        return target

    def address(self, trial: str) -> str:
        found = self._newest_adapter(trial)
        if found is None:
            place = self.objects.within(f"adapters/{trial}").url
            raise StorageError(f"{place}: holds no adapter that can be read; restore a copy")
        return self.objects.within(found[0]).url

    def trials_with_states(self) -> set[str]:
        return set(self.objects.names("states"))

    def clear(self, trial: str) -> None:
        self.objects.remove(f"states/{trial}")

    def _newest_adapter(self, trial: str) -> tuple[str, dict[str, bytes]] | None:
        """Key and files of the newest adapter of a trial that can be read."""
        for name in reversed(self.objects.names(f"adapters/{trial}")):
            try:
                return (key := f"adapters/{trial}/{name}"), self.objects.read(key)
            except DamagedError as error:  # its worker died while it wrote
                warnings.warn(f"{error}; taking the one before", stacklevel=3)
        return None

    def _put(self, key: str, index: int, files: dict[str, bytes], kept: int) -> None:
        """Keep files as the newest object under a key, and remove all but the last ones."""
        own = f"{index:06d}.tar"
        self.objects.put(f"{key}/{own}", files)
        for name in _surplus(self.objects.names(key), own, kept):
            self.objects.remove(f"{key}/{name}")


def _surplus(names: Collection[str], written: str, kept: int) -> list[str]:
    """What to remove once a name was written: all but the last ones, and those that would follow.

    These are of a life of the trial that was given up, as all that it left was damaged.
    """
    given_up = [name for name in names if name > written]
    return given_up + sorted(name for name in names if name <= written)[:-kept]
