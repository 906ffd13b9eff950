"""Several workers that share one trial, perhaps on several nodes, seen as one worker."""

from __future__ import annotations

import contextlib
import secrets
import time
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.driver.context import TrialContext
from orchestrator.execution.ray_compat import KeyValueStore
from orchestrator.execution.worker import Worker
from orchestrator.spec.config import Resources
from orchestrator.spec.messages import Assignment, EndedEarly, Report, StorageFailed
from tinyattn.errors import OutOfMemoryError
from tinyattn.passes.ranks import Ranks

PATIENCE_SECONDS = 10.0
"""How long the others may take to say what one has said: a trial's end comes to all."""
_NAMESPACE = b"tinyattn-ranks"
_POLL_SECONDS = 0.01


class DistributedWorker:
    """The workers of a trial, one a rank, each in a bundle of the trial's placement group.

    If one fails, the others would wait for it in a collective for ever, though Ray knows. So
    whatever goes wrong in one ends all; the next trial, or the same one again, gets new ones.
    """

    def __init__(self, context: TrialContext, resources: Resources) -> None:
        self._bench, self._resources = context, resources
        self._workers: list[Any] = []
        self._assignment: Assignment | None = None
        self._meeting = ""
        """Where the workers find each other."""

    def begin(self, assignment: Assignment) -> None:
        """Go over to a trial."""
        self._assignment = assignment
        if not self._workers:
            self._start()
        self._all("begin", assignment)

    def step(self) -> Report:
        """As Worker.step; what rank 0 says, unless another has bad news."""
        if not self._workers:
            assert self._assignment is not None
            self.begin(self._assignment)
        report: Report = self._all("step")
        return report

    def halve(self) -> None:
        """New workers; what did not fit is noted already."""
        self._kill()

    def end(self) -> None:
        """Let go of the trial; workers keep PLM and data."""
        if self._workers:
            self._all("end")

    def _start(self) -> None:
        """Start the workers and have them find each other."""
        count = self._resources.ranks
        self._workers = [self._actor(rank) for rank in range(count)]
        cores, self._meeting = int(self._resources.cpus), secrets.token_hex(8)
        waiting = [
            worker.start.remote(self._bench, cores, rank, count, self._meeting)
            for rank, worker in enumerate(self._workers)
        ]
        ray.get(waiting)

    def _actor(self, rank: int) -> Any:
        group = ray.util.get_current_placement_group()
        assert group is not None, "Tune gives every trial one"
        bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        return _RankActor.options(  # type: ignore[attr-defined]
            num_cpus=self._resources.cpus,
            num_gpus=self._resources.gpus,
            scheduling_strategy=bundle,
        ).remote()

    def _all(self, method: str, *words: Any) -> Any:
        """Have all do the same; return what rank 0 says, or the first bad news."""
        asked = {w.call.remote(method, *words): w for w in self._workers}
        waiting = list(asked)
        try:
            while waiting:
                (done,), waiting = ray.wait(waiting)
                said = self._answer(done, asked[done])
                if isinstance(said, EndedEarly | StorageFailed):
                    self._wait_or_kill(waiting)
                    return said
        except BaseException:
            self._kill()
            raise
        return ray.get(next(iter(asked)))

    def _wait_or_kill(self, waiting: list[Any]) -> None:
        """See that nobody is left in a collective."""
        if waiting:
            _, late = ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE_SECONDS)
            if late:
                self._kill()

    @staticmethod
    def _answer(done: Any, worker: Any) -> Any:
        try:
            return ray.get(done)
        except OutOfMemoryError:
            ray.get(worker.call.remote("halve"))  # it alone knows its device and its rows
            raise

    def _kill(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(Exception):
                ray.kill(worker)
        if self._workers:
            with contextlib.suppress(Exception):
                RayStore(self._meeting).clear()
        self._workers = []


@ray.remote
class _RankActor:
    """The process of one rank."""

    def start(self, context: TrialContext, cores: int, rank: int, count: int, meeting: str) -> None:
        """Load nothing yet; know where the others are."""
        self.worker = Worker(context, cores, Ranks(rank, count, RayStore(meeting)))

    def call(self, method: str, *words: Any) -> Any:
        """What the worker is asked."""
        return getattr(self.worker, method)(*words)


class RayStore(dist.Store):
    """A store for torch.distributed within Ray's own, where ranks tell each other their addresses.

    Ray's store asks for its token. torch's TCPStore asks for nothing and listens on all interfaces.
    Whoever makes a process group with it must keep a reference to it: torch keeps its C++ half.
    """

    def __init__(self, meeting: str) -> None:
        """Open it.

        Args:
            meeting: begins the names of all keys; other groups have another.
        """
        super().__init__()
        self._meeting, self._kept = meeting, KeyValueStore(_NAMESPACE)

    def set(self, key: str, value: str | bytes) -> None:
        """Put a value in the place of any other."""
        self._kept.put(self._name(key), value)

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""
        self.wait([key])
        return self._kept.get(self._name(key))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return all(self._kept.has(self._name(key)) for key in keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(minutes=10)) -> None:
        """Wait until all keys are there; TimeoutError: some did not come."""
        until = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > until:
                raise TimeoutError(f"{', '.join(keys)}: no rank has set it within {timeout}")
            time.sleep(_POLL_SECONDS)

    def clear(self) -> None:
        """Remove all keys."""
        self._kept.remove_all(self._name(""))

    def _name(self, key: str) -> bytes:
        return f"{self._meeting}/{key}".encode()
