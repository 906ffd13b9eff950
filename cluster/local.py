"""This machine as a cluster of one node: a Ray of its own, on loopback, ended when done."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants

from cluster.own import session_folder
from cluster.settings import LOOPBACK, QUIET
from tinyattn.errors import TinyAttnError, UsageError


@contextlib.contextmanager
def this_machine(num_cpus: int | None = None, num_gpus: int | None = None) -> Iterator[None]:
    """Run a Ray on this machine for the length of the block.

    Args:
        num_cpus: cores to use; None: all.
        num_gpus: GPUs to use; None: all.

    Raises:
        UsageError: this process uses another Ray.
        TinyAttnError: Ray did not start.
        StorageError: there is no place for Ray's sockets that is this account's alone.
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
    """Start Ray and connect to it; TinyAttnError: it did not come up, or not on loopback."""
    try:
        with _deaf_to_signals():
            ray.init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder),
            )
    except Exception as error:  # Ray has no class for it
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
    """Processes that start within the block, and theirs, never get SIGTERM or SIGHUP.

    `timeout`, `kill %1`, Slurm, systemd and a terminal that is closed send them to all processes of
    a job at once. Without its Ray this process could close nothing: calls to it would block for a
    minute, and Ray's core would then end the process without a word.
    """
    on_terminate = signal.getsignal(signal.SIGTERM)
    # Elsewhere the process that ends an orphaned Ray has to hear it; on Linux the kernel does that.
    deaf = {signal.SIGTERM, signal.SIGHUP} if sys.platform == "linux" else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, deaf)
    try:
        yield
    finally:
        # Ray's own handler would end this process before its caller has closed what is open.
        signal.signal(signal.SIGTERM, on_terminate)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(folder: Path) -> None:
    """Disconnect from Ray and kill its processes: they would not hear its SIGTERM."""
    node: Any = ray._private.worker._global_node
    for infos in node.all_processes.values() if node else ():
        for info in infos:
            info.process.terminate = info.process.kill
    family = _family(folder)
    ray.shutdown()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=5)  # where nobody reaps orphans, they stay as zombies


def _family(folder: Path) -> list[psutil.Process]:
    """The processes of the Ray whose sessions are in a folder, also where it failed to start and
    knows them no more: the words of those that this one has started name the folder."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if str(folder) in " ".join(process.cmdline()):
                found += [process, *process.children(recursive=True)]
    return found


@contextlib.contextmanager
def ray_speaks(environment: Mapping[str, str]) -> Iterator[None]:
    """Within the block this process, and those of Ray that it starts, use these settings, and are
    quiet, unless the user has set otherwise.

    Ray has read its settings when it was imported, so it is told to read them again.
    """
    unset = {key: value for key, value in QUIET.items() if key not in os.environ}
    environment = {**unset, **environment}
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    _read_settings_again()
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        _read_settings_again()


def _read_settings_again() -> None:
    name, elsewhere = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.IS_WINDOWS_OR_OSX
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(name, not elsewhere)
    ray._raylet.Config.initialize("")  # type: ignore[attr-defined]
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
