"""Processes that several trials share: one PLM and one pool of passes for K of them.

A trial of Tune is then a light actor, which has a slot in such a process on its own machine. Slots
differ in all that belongs to a trial; a slot that a trial leaves is the next one's at once. The
processes belong to the driver and die with it.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import state as ray_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.batch import Bench
from orchestrator.config import Resources
from orchestrator.nodes import MachineError

PATIENCE_SECONDS = 120.0
"""How long a trial looks for a slot: a machine that joins gets its processes within moments."""
_POLL_SECONDS = 2.0


class Packs:
    """The shared processes of a batch, as its driver keeps them."""

    def __init__(self, bench: Bench, resources: Resources) -> None:
        self._bench, self._resources = bench, resources
        self._packs: dict[str, Any] = {}
        self._next_look = 0.0

    def look_after(self) -> None:
        """Start the processes of machines that have none yet."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _POLL_SECONDS
        for node in ray.nodes():
            if node["Alive"]:
                cores, gpus = (node["Resources"].get(kind, 0) for kind in ("CPU", "GPU"))
                for number in range(self._resources.processes_on(cores, gpus)):
                    self._start(node["NodeID"], number)

    def _start(self, node: str, number: int) -> None:
        name = _name(node, number)
        if name in self._packs:
            return
        self._packs[name] = Pack.options(  # type: ignore[attr-defined]
            name=name,
            num_cpus=0,  # its trials have reserved what it uses
            max_restarts=-1,
            max_concurrency=self._resources.packed + 1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(self._bench, self._resources, number)

    def end(self) -> None:
        """End them."""
        for pack in self._packs.values():
            ray.kill(pack)
        self._packs = {}


@contextmanager
def packs_of(bench: Bench, resources: Resources) -> Iterator[Callable[[], None]]:
    """Keep shared processes while the block runs, where trials share some.

    Yields:
        What to call now and then: machines come and go.
    """
    if resources.packed == 1:
        yield lambda: None
        return
    packs = Packs(bench, resources)
    packs.look_after()
    try:
        yield packs.look_after
    finally:
        packs.end()


@ray.remote
class Pack:
    """A process with slots for trials."""

    def __init__(self, bench: Bench, resources: Resources, number: int) -> None:
        """Load nothing yet.

        Args:
            bench: what all trials have in common.
            resources: of such a process, and its number of slots.
            number: which of its machine's it is; says which GPU it uses.
        """
        if resources.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(resources.gpu_of(number))
        from orchestrator.worker import Worker
        from tinyattn.workshop import Workshop

        workshop = Workshop(bench.data_dir)
        cores = int(resources.cpus)
        self._workers = [Worker(bench, cores, workshop=workshop) for _ in range(resources.packed)]
        self._owners: dict[int, str] = {}
        """Ids of the actors that have a slot."""
        self._lock = threading.Lock()

    def join(self, owner: str) -> int | None:
        """Give an actor a slot; None: all are taken."""
        with self._lock:
            for slot in range(len(self._workers)):
                if slot not in self._owners or _is_dead(self._owners[slot]):
                    self._owners[slot] = owner
                    return slot
        return None

    def call(self, owner: str, slot: int, method: str, *words: Any) -> Any:
        """Have a slot's worker do something."""
        if self._owners.get(slot) != owner:
            raise MachineError("this shared process was started anew, and the slot is another's")
        return getattr(self._workers[slot], method)(*words)

    def leave(self, owner: str, slot: int) -> None:
        """Take a slot back."""
        if self._owners.get(slot) == owner:
            self._workers[slot].end()
            with self._lock:
                del self._owners[slot]


class Slot:
    """A trial's place in a shared process on its own machine, seen as a worker."""

    def __init__(self) -> None:
        """Find a free one.

        Raises:
            MachineError: there is none.
        """
        context = ray.get_runtime_context()
        self._own = context.get_actor_id()
        until = time.monotonic() + PATIENCE_SECONDS
        while (found := self._free_slot(context.get_node_id())) is None:
            if time.monotonic() > until:
                raise MachineError(f"no shared process had room here for {PATIENCE_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS / 4)
        self._pack, self._slot = found

    def _free_slot(self, node: str) -> tuple[Any, int] | None:
        """A process of this machine with its free slot that is now this trial's."""
        for number in itertools.count():
            try:
                pack: Any = ray.get_actor(_name(node, number))
            except ValueError:  # there are no more on this machine, or none yet
                return None
            slot: int | None = ray.get(pack.join.remote(self._own))
            if slot is not None:
                return pack, slot
        raise AssertionError("counted to the end")

    def begin(self, config: Mapping[str, Any]) -> None:
        """Go over to a trial."""
        self._call("begin", dict(config))

    def step(self) -> dict[str, Any]:
        """As Worker.step."""
        return self._call("step")

    def halve(self) -> None:
        """As Worker.halve."""
        self._call("halve")

    def end(self) -> None:
        """Let go of the trial and of the slot."""
        ray.get(self._pack.leave.remote(self._own, self._slot))

    def _call(self, method: str, *words: Any) -> Any:
        return ray.get(self._pack.call.remote(self._own, self._slot, method, *words))


def _name(node: str, number: int) -> str:
    return f"tinyattn-pack-{node}-{number}"


def _is_dead(actor: str) -> bool:
    return ray_state.actors(actor).get("State") == "DEAD"
