"""This machine as a cluster of one node: a Ray of its own, on loopback, ended when done."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

import ray

# Ray, Hugging Face and MLflow would otherwise report home or ask hubs that may not be there.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::DeprecationWarning",
}


@contextlib.contextmanager
def this_machine(num_cpus: int | None = None, num_gpus: int | None = None) -> Iterator[None]:
    """Run a Ray on this machine for the length of the block.

    Args:
        num_cpus: cores to use; None: all.
        num_gpus: GPUs to use; None: all.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    ray.init(
        address="local",
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
    )
    try:
        yield
    finally:
        ray.shutdown()
