"""This machine as a cluster of one node: a Ray of its own, on loopback, ended when done."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Iterator, Mapping

# Ray, Hugging Face and MLflow would otherwise report home, ask hubs that may not be there, and
# write between our lines. Ray reads some of it when it is imported; its processes inherit it.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::DeprecationWarning",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # a page on every worker that died: the view tells of it
}
os.environ.update({**QUIET, **os.environ})  # what the user has set stays

import ray  # noqa: E402 - with the settings above


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
