"""This machine as a cluster of one node: a Ray of its own, on loopback, ended when done."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Iterator, Mapping

from cluster.services import QUIET

os.environ.update({**QUIET, **os.environ})  # what the user has set stays

import ray


@contextlib.contextmanager
def this_machine(num_cpus: int | None = None, num_gpus: int | None = None) -> Iterator[None]:
    """Run a Ray on this machine for the length of the block.

    Args:
        num_cpus: cores to use; None: all.
        num_gpus: GPUs to use; None: all.
    """
    # Other accounts of this machine reach its loopback too.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    on_terminate = signal.getsignal(signal.SIGTERM)
    with ray_speaks(token):
        ray.init(
            address="local",
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
        )
        # Ray's own handler would end this process before its caller has closed what is open.
        signal.signal(signal.SIGTERM, on_terminate)
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def ray_speaks(environment: Mapping[str, str]) -> Iterator[None]:
    """Within the block this process, and those of Ray that it starts, use these settings.

    Ray has read its settings when it was imported, so it is told to read them again.
    """
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    _read_settings_again()
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
        _read_settings_again()


def _read_settings_again() -> None:
    ray._raylet.Config.initialize("")  # type: ignore[attr-defined]
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]
