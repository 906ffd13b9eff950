"""The machines of a cluster as the driver sees them: how much they run at once, and whom to avoid.

A machine on which workers fail again and again, and no trial comes to an evaluation in between, is
set aside for a while: its trials go on elsewhere. So is one that is too small for the sweep's
trials, where another has more memory.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
from ray import tune
from ray.util.placement_group import PlacementGroup, placement_group

from orchestrator.execution.ray_compat import address_in
from orchestrator.spec.config import Resources
from tinyattn.errors import TinyAttnError, UsageError

ASIDE_SECONDS = 600.0
"""For how long a machine is set aside; then one more failure does it again."""
PATIENCE_SECONDS = 600.0
"""How long a sweep stands still though there are machines for its trials."""
_LOOK_SECONDS = 1.0
"""While something asks Ray, how often somebody else looks whether it is alive."""
_GRACE_SECONDS = 5.0
"""How long who asks may take to find out that Ray is dead."""
_FRESH_SECONDS = 2.0
"""How old the known size of the cluster may be."""
GPU_MEMORY, MEMORY = "tinyattn/gpu-memory-mib", "tinyattn/memory-mib"
"""Labels that a node of a cluster has, of the smallest of its GPUs and of its main memory."""

Answer = TypeVar("Answer")

_aside: dict[str, float] = {}
"""Until when which addresses are avoided. Of the process, as Ray Tune hands out pickled copies of
what it is given."""
_too_small: dict[str, set[str]] = {}
"""For which running trials which addresses have too little memory; avoided as well."""
_lines: dict[tuple[str, int], socket.socket] = {}
"""Connections to those processes of Ray that the driver cannot do without, by address: the control
store, and on its own machine the raylet. The system closes them when a process dies."""
_DIED = "Ray has died on this machine, perhaps killed because memory ran out; free some"


class RayDied(KeyboardInterrupt):
    """Ray has died on the driver's machine: what asks it waits for a minute, and then Ray's library
    ends the process, with a word of its own."""


@contextmanager
def watched_ray() -> Iterator[None]:
    """Raise NoMachineError where the block ends because Ray has died; Ray must be running."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    try:
        _connect((host.strip("[]"), int(port)))
        own = next(node for node in nodes_of_ray() if node["NodeID"] == context.get_node_id())
        _connect((own["NodeManagerAddress"], own["NodeManagerPort"]))
        yield
    except RayDied:
        raise NoMachineError(_DIED) from None
    finally:
        for line in _lines.values():
            line.close()
        _lines.clear()


def refuse_dead_ray() -> None:
    """Raise RayDied where a process of the Ray that is watched is there no more.

    It costs nothing: it goes before all that may ask Ray, in the middle of Tune's step too.
    """
    for address, line in list(_lines.items()):
        if _is_closed(line):  # perhaps since it is silent
            line.close()
            _connect(address)


def unless_ray_dies(work: Callable[[], Answer]) -> Answer:
    """Return what `work` returns, and leave it where Ray dies meanwhile; Ray must be watched.

    It runs in a thread of its own. Who asks a control store that is being killed, and still looks
    alive, gets no answer for a minute, and then Ray's library ends the process; so does much of
    what Tune calls.

    Raises:
        KeyboardInterrupt: a signal raised it here; RayDied: Ray is dead. A `work` that ends by
            itself meanwhile is waited for.
        Whatever `work` raises.
    """
    answer: Future[Answer] = Future()
    threading.Thread(target=_answer, args=[work, answer], name="asks Ray", daemon=True).start()
    try:
        while not answer.done():
            wait([answer], _LOOK_SECONDS)
            refuse_dead_ray()
    except KeyboardInterrupt:  # RayDied, or a second signal
        wait([answer], _GRACE_SECONDS)
        raise
    return answer.result()


def _answer(work: Callable[[], Answer], answer: Future[Answer]) -> None:
    try:
        answer.set_result(work())
    except BaseException as error:  # KeyboardInterrupt too is for who waits
        answer.set_exception(error)


def _connect(address: tuple[str, int]) -> None:
    try:
        _lines[address] = socket.create_connection(address, timeout=5)
    except ConnectionRefusedError:
        raise RayDied from None
    except OSError:  # too busy to answer
        return
    _lines[address].setblocking(False)


def _is_closed(line: socket.socket) -> bool:
    try:
        while line.recv(4096):  # its greeting
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def nodes_of_ray() -> list[dict[str, Any]]:
    """All nodes that Ray knows; RayDied: it is dead."""
    refuse_dead_ray()
    return ray.nodes()


class Nodes:
    """What is known of the machines while a batch of trials runs."""

    def __init__(
        self,
        resources: Resources,
        listed: Callable[[], list[dict[str, Any]]] = nodes_of_ray,
        now: Callable[[], float] = time.monotonic,
        own: str | None = None,
    ) -> None:
        """Look at the cluster.

        Args:
            resources: of a trial.
            listed: all nodes that Ray knows.
            now: clock, seconds.
            own: id of the driver's node; None: Ray tells it.

        Raises:
            UsageError: not even one trial fits.
        """
        self._resources, self._listed, self._now = resources, listed, now
        self._failures: defaultdict[str, list[str]] = defaultdict(list)
        """Names of the trials that failed on a machine since one came to an evaluation there."""
        self._still_since: float | None = None
        if own is None and ray.is_initialized():
            own = ray.get_runtime_context().get_node_id()
        self._own = own
        self._slots, self._until = concurrency(resources, listed), now() + _FRESH_SECONDS
        _aside.clear()
        _too_small.clear()

    def slots(self) -> int:
        """Trials that run at once, as of a moment ago; what it was while no node is there."""
        if self._now() >= self._until:
            self._slots = self._fitting(self._usable()) or self._slots
            self._until = self._now() + _FRESH_SECONDS
        return self._slots

    def last_slots(self) -> int:
        """The last answer of `slots`, without asking Ray: for other threads."""
        return self._slots

    def worked(self, address: str) -> None:
        """A trial came to an evaluation on a machine."""
        self._failures.pop(address, None)

    def failed(self, trial: str, error: str) -> str | None:
        """A trial's worker failed.

        Args:
            trial: its name.
            error: what Ray says of it, which names the machine.

        Returns:
            Why the machine is set aside, if that is so from now on.
        """
        address = address_in(error)
        node = next((n for n in self._alive() if n["NodeManagerAddress"] == address), None)
        if address is None or node is None:  # it is gone, and Ray knows
            return None
        self._failures[address].append(trial)
        if TooSmallError.__name__ in error:
            return self._set_aside_small(node, trial)
        count = len(self._failures[address])
        # One accident may end all that run there, so it takes more than that.
        if count <= max(1, self._fitting([node])) or not self._fits_without([node]):
            return None
        _aside[address] = max(_aside.get(address, 0.0), self._now() + ASIDE_SECONDS)
        return f"machine {address} is set aside: {count} workers in a row failed"

    def _set_aside_small(self, node: dict[str, Any], trial: str) -> str | None:
        """Avoid a machine, and all that are no larger, until a trial that needs more ends."""
        size = self._memory_of(node)
        small = [other for other in self._alive() if self._memory_of(other) <= size]
        if not self._fits_without(small):
            return None
        for other in small:
            _too_small.setdefault(other["NodeManagerAddress"], set()).add(trial)
        names = ", ".join(sorted(other["NodeManagerAddress"] for other in small))
        return f"machine {names} is set aside: it has too little memory for a row of {trial}"

    def ended(self, trial: str) -> None:
        """A trial ended or paused: what was too small for it may fit others."""
        for trials in _too_small.values():
            trials.discard(trial)

    def exonerate(self, trial: str) -> None:
        """A trial failed wherever it ran, which says nothing of the machines."""
        self.ended(trial)
        places = [address for address, trials in self._failures.items() if trial in trials]
        if len(places) > 1:
            for address in places:
                self._failures[address] = [n for n in self._failures[address] if n != trial]
                _aside.pop(address, None)

    def refuse_standstill(self, is_running: bool) -> None:
        """Raise NoMachineError when for long no trial has run, though there is room for some.

        What waits for a place is bound to machines that were not set aside when it was reserved; if
        those never come back, it would wait for ever. So would a driver whose own Ray has died.

        Args:
            is_running: whether a trial has a worker now.
        """
        listed = self._listed()
        if self._own in {node["NodeID"] for node in listed if not node["Alive"]}:
            raise NoMachineError(_DIED)
        if is_running or not self._fitting(alive(lambda: listed)):
            self._still_since = None
            return
        if self._still_since is None:
            self._still_since = self._now()
        if self._now() - self._still_since > PATIENCE_SECONDS:
            away = ", ".join(sorted(_aside | _too_small)) or "no machine"
            raise NoMachineError(
                f"no trial got a place for {PATIENCE_SECONDS / 60:.0f} minutes ({away} was set "
                "aside, since workers kept failing there or it is too small); mend that or the "
                "other machines"
            )

    def _alive(self) -> list[dict[str, Any]]:
        return alive(self._listed)

    def _memory_of(self, node: dict[str, Any]) -> int:
        """MiB that a trial can use there, by the node's label; 0: it has none."""
        return int(node["Labels"].get(GPU_MEMORY if self._resources.gpus else MEMORY, 0))

    def _fits_without(self, nodes: list[dict[str, Any]]) -> bool:
        """Whether trials fit on other machines; one that fails is better than none."""
        return bool(self._fitting([node for node in self._usable() if node not in nodes]))

    def _usable(self) -> list[dict[str, Any]]:
        nodes = self._alive()
        away = _avoided(nodes, self._now())
        return [node for node in nodes if node not in away]

    def _fitting(self, nodes: list[dict[str, Any]]) -> int:
        """Trials that these nodes run at once, perhaps none."""
        try:
            return self._resources.trials_at_once(map(size_of, nodes))
        except UsageError:
            return 0


class NoMachineError(TinyAttnError):
    """What is left of the cluster cannot run a trial."""


class MachineError(TinyAttnError):
    """A machine lacks what the driver's has, as data or a PLM."""


class TooSmallError(TinyAttnError):
    """A device is too small for a trial, and another machine has a larger one."""


class Placement(tune.PlacementGroupFactory):
    """What Tune reserves for a trial, on machines that are not set aside as it is reserved."""

    def to_placement_group(self) -> PlacementGroup:
        """Reserve it."""
        away = _avoided(alive(nodes_of_ray), time.monotonic())
        names = ",".join(node["NodeID"] for node in away)
        bundles = self.bundles
        selectors = [{"ray.io/node-id": f"!in({names})"}] * len(bundles) if away else None
        return placement_group(bundles, self.strategy, bundle_label_selector=selectors)


def placement_of(resources: Resources) -> Placement:
    """What Tune reserves for a trial: with several ranks a bundle each, and nothing for whom they
    answer to."""
    cpus, gpus = resources.share
    rank = {"CPU": cpus, "GPU": gpus}
    one = resources.ranks == 1
    return Placement([rank] if one else [{}, *[rank] * resources.ranks])


def concurrency(
    resources: Resources, listed: Callable[[], list[dict[str, Any]]] = nodes_of_ray
) -> int:
    """Trials that this cluster runs at once; UsageError where not even one fits."""
    return resources.trials_at_once(map(size_of, alive(listed)))


def is_larger_elsewhere(gpu: bool) -> bool:
    """Whether another machine has more memory than this process's, as far as their labels say."""
    if not ray.is_initialized():
        return False
    label, own = GPU_MEMORY if gpu else MEMORY, ray.get_runtime_context().get_node_id()
    sizes = {node["NodeID"]: int(node["Labels"].get(label, 0)) for node in alive(ray.nodes)}
    return 0 < sizes.get(own, 0) < max(sizes.values())


def alive(listed: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The nodes that are up."""
    return [node for node in listed() if node["Alive"]]


def _avoided(nodes: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    away = _away(now)
    return [node for node in nodes if node["NodeManagerAddress"] in away]


def _away(now: float) -> set[str]:
    """Addresses that are avoided now."""
    small = {address for address, trials in _too_small.items() if trials}
    return small | {address for address, until in _aside.items() if until > now}


def kind_of(node: dict[str, Any]) -> str:
    """What tells a node from others of another make: cores, GPUs, and what its labels say."""
    labels = node.get("Labels", {})
    told = {k: v for k, v in labels.items() if k in (GPU_MEMORY, MEMORY) or "accelerator" in k}
    return f"{size_of(node)} {sorted(told.items())}"


def size_of(node: dict[str, Any]) -> tuple[float, float]:
    """Cores and GPUs of a node."""
    return node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0)
