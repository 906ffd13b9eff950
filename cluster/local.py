"""This machine as a cluster of one node: a Ray on loopback that lives as long as a `with` block."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import ray

from cluster import ray_compat
from cluster.own import session_folder
from cluster.settings import LOOPBACK, QUIET
from tinyattn.errors import TinyAttnError, UsageError


@contextlib.contextmanager
def this_machine(num_cpus: int | None = None, num_gpus: int | None = None) -> Iterator[None]:
    """Run a Ray of this machine alone within the block, on loopback.

    Args:
        num_cpus: cores to use; None: all.
        num_gpus: GPUs to use; None: all.

    Raises:
        UsageError: this process is connected to another Ray.
        TinyAttnError: Ray did not start.
        StorageError: there is no folder for Ray's sockets that only this account can enter.
    """
    if ray.is_initialized():
        raise UsageError(
            "this process is connected to a Ray already, which may listen beyond this machine; "
            "call ray.shutdown() first, then one starts on loopback"
        )
    # Other accounts of this machine reach its loopback too.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with session_folder() as folder, ray_speaks({**token, **LOOPBACK}):
        try:
            _start(folder, num_cpus, num_gpus)
            yield
        finally:
            _end(folder)


def _start(folder: Path, num_cpus: int | None, num_gpus: int | None) -> None:
    """Start Ray and connect to it; TinyAttnError if it does not start on loopback."""
    try:
        with _deaf_to_signals():
            ray_compat.start_on_loopback(folder, num_cpus, num_gpus)
    except Exception as error:  # Ray has no class of its own for a failed start
        raise TinyAttnError(
            f"Ray did not start on this machine ({first_line(error)}); perhaps it was killed "
            f"because memory ran out: free some and try again; its logs are in {folder}"
        ) from None
    address = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(address).is_loopback:
        raise TinyAttnError(
            f"Ray {ray.__version__} listens on {address}, which others reach; install the version "
            "of constraints.txt"
        )


@contextlib.contextmanager
def _deaf_to_signals() -> Iterator[None]:
    """Block SIGTERM and SIGHUP for all processes that are started within the block.

    `timeout`, `kill %1`, Slurm, systemd and a terminal that is closed send them to all processes of
    a job at once. Without its Ray this process could not end the sweep in order: calls to Ray would
    block for a minute, and Ray's core would then end the process without a message.
    """
    on_terminate = signal.getsignal(signal.SIGTERM)
    # Only on Linux does the kernel end an orphaned Ray. Elsewhere a process of Ray does, which must
    # get these signals.
    deaf = {signal.SIGTERM, signal.SIGHUP} if sys.platform == "linux" else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, deaf)
    try:
        yield
    finally:
        # Ray's own handler would end this process before its caller has closed what is open.
        signal.signal(signal.SIGTERM, on_terminate)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(folder: Path) -> None:
    """Disconnect from Ray and kill its processes, for which SIGTERM is blocked."""
    ray_compat.end_by_killing()
    family = _family(folder)
    ray_compat.shut_down()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=5)  # a limit: in containers without init, zombies stay


def _family(folder: Path) -> list[psutil.Process]:
    """Return the processes of the Ray whose sessions are in a folder.

    They are found by the folder's name in their command lines, also if Ray failed to start.
    """
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if str(folder) in " ".join(process.cmdline()):
                found += [process, *process.children(recursive=True)]
    return found


@contextlib.contextmanager
def ray_speaks(environment: Mapping[str, str]) -> Iterator[None]:
    """Within the block Ray uses these settings, here and in the processes that it starts.

    Those of QUIET are added unless the user has set them. Ray reads its settings when it is
    imported, so it is made to read them again.
    """
    unset = {key: value for key, value in QUIET.items() if key not in os.environ}
    environment = {**unset, **environment}
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    ray_compat.read_settings_again()
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        ray_compat.read_settings_again()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
