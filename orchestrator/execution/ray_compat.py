"""Private parts of Ray that the execution of trials uses, all of them in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_ray_compat.py fails where Ray changes one. How Ray is started and ended is in
cluster/ray_compat.py, which may not be imported from here and shares nothing with this file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Concatenate, ParamSpec, TypeVar

from ray import ObjectRef
from ray._private import state
from ray.actor import ActorHandle
from ray.air.execution._internal import actor_manager
from ray.exceptions import (
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)
from ray.experimental import internal_kv
from ray.tune.execution import tune_controller
from ray.tune.experiment import Trial as TuneTrial

Actor = TypeVar("Actor")
Words = ParamSpec("Words")
Answer = TypeVar("Answer")

WORKER_ENDS = (RayActorError, OutOfMemoryError, NodeDiedError, WorkerCrashedError)
"""Exceptions by which Ray tells that a worker's process has ended. (ray 2.60)"""
_TUNE_ENVIRONMENT = {
    # Tune starts one worker after the other unless this allows more at once; the driver limits
    # them already, by its number of slots. (ray 2.60)
    "TUNE_MAX_PENDING_TRIALS_PG": "10000",
    # Tune's own handler of Ctrl-C ends its loop silently, as if all trials had run. (ray 2.60)
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
_ADDRESS = re.compile(r"\bip[:=] ?([0-9a-f.:]*[0-9a-f])", re.IGNORECASE)
_LOW_MEMORY = "running low on memory"
_DIED = re.compile(r"actor died unexpectedly|actor \S+ is unavailable")
_COLOUR = re.compile(r"\x1b\[\d+m")
_FAILURE = re.compile(r"^Failure # .*\n", re.MULTILINE)
"""What Tune writes above each error in a trial's error file. (ray 2.60)"""


class WorkerEnd(Enum):
    """How a worker ended, as Ray's message tells it."""

    KILLED_FOR_MEMORY = "Ray killed it because its machine ran low on memory"
    DIED = "its process died, or its machine cannot be reached"
    RAISED = "its code raised"


def prepare_tune() -> None:
    """Set what Ray Tune needs before it runs trials for this project; doing it again is harmless.

    - `RayActorError` in two modules, the only way in which Tune of Ray 2.60 knows that a worker can
      end: it would end itself where Ray kills a worker because its machine runs low on memory, in
      the first module wherever it happens, in the second while the worker trains. `isinstance`
      takes a tuple of classes as well as a class.
    - Tune's switches in the environment, which it reads while it runs.
    - The level of the logger `ray.tune`: tracebacks of trials are in MLflow.
    """
    for module in (actor_manager, tune_controller):
        vars(module)["RayActorError"] = WORKER_ENDS
    os.environ.update(_TUNE_ENVIRONMENT)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)


def call(
    actor: ActorHandle[Actor],
    method: Callable[Concatenate[Actor, Words], Answer],
    *args: Words.args,
    **kwargs: Words.kwargs,
) -> ObjectRef[Answer]:
    """Call a method of an actor, and return the reference to its answer.

    `call(actor, Counter.add, 2)` is `actor.add.remote(2)`, of which a type checker knows nothing:
    a handle finds its methods by name. (ray 2.60)
    """
    answer: ObjectRef[Answer] = getattr(actor, method.__name__).remote(*args, **kwargs)
    return answer


def actor_id(actor: ActorHandle[Actor]) -> str:
    """Return an actor's id in hex digits: a handle has no public name for it. (ray 2.60)"""
    return str(actor._actor_id.hex())


def is_dead(actor: str) -> bool:
    """Return whether Ray has given up an actor, named by its id.

    The public `ray.util.state.get_actor` asks the dashboard, which a sweep does not start.
    (ray 2.60)
    """
    return bool(state.actors(actor).get("State") == "DEAD")


def address_in(error: str) -> str | None:
    """Return the address of the machine that failed, from Ray's message; None: it names none.

    Where errors are nested, it is that of the innermost one.

    Ray's exceptions have no field for it. Messages read `ip=10.0.0.2` where a worker raised or
    died, and `(IP: 10.0.0.5, ID: ...)` where memory ran out. (ray 2.60)
    """
    found = _ADDRESS.findall(error)
    return found[-1] if found else None


def last_error(trial: TuneTrial) -> str:
    """Return the text of the last error of Tune's trial; empty if it could not be kept.

    Tune appends each error to the file `error_file`, coloured, below a line `Failure # 1 ...`. Its
    own reader looks for the file in a folder to which it is copied later. (ray 2.60)
    """
    try:
        text = Path(trial.error_file).read_text("utf-8", errors="replace")
    except (OSError, TypeError):
        return ""
    return _FAILURE.split(_COLOUR.sub("", text))[-1].strip()


def worker_end(error: str) -> WorkerEnd:
    """Return how a worker ended, from Ray's message.

    Ray has exceptions for these ends, but keeps only the text of one that another worker has passed
    on, as those that supervise a trial do. (ray 2.60)
    """
    if _LOW_MEMORY in error:
        return WorkerEnd.KILLED_FOR_MEMORY
    return WorkerEnd.DIED if _DIED.search(error) else WorkerEnd.RAISED


def nothing_saved() -> SimpleNamespace:
    """Return what Tune takes as the checkpoint of a trainable that has saved nothing.

    Tune asks for a checkpoint at every pause and end and reads these two attributes of the answer;
    its own class for it is private. (ray 2.60)
    """
    return SimpleNamespace(checkpoint=None, metrics={})


class KeyValueStore:
    """A namespace in the key-value store of Ray's head; clients need Ray's token.

    Only the private `ray.experimental.internal_kv` reaches that store. (ray 2.60)
    """

    def __init__(self, namespace: bytes) -> None:
        self._namespace = namespace

    def put(self, key: bytes, value: str | bytes) -> None:
        """Set a key, replacing its value if it has one."""
        internal_kv._internal_kv_put(key, value, namespace=self._namespace)

    def get(self, key: bytes) -> bytes:
        """Return the value of a key that is set."""
        return bytes(internal_kv._internal_kv_get(key, namespace=self._namespace))

    def has(self, key: bytes) -> bool:
        """Return whether a key is set."""
        return bool(internal_kv._internal_kv_exists(key, namespace=self._namespace))

    def remove_all(self, prefix: bytes) -> None:
        """Remove all keys that begin with a prefix."""
        internal_kv._internal_kv_del(prefix, del_by_prefix=True, namespace=self._namespace)
