"""Ray's switches in the environment, each with its reason.

Importing this module sets none of them and does not import Ray.
"""

from __future__ import annotations

import os

from tinyattn.telemetry import ENVIRONMENT

AT_IMPORT = {
    **{name: value for name, value in ENVIRONMENT.items() if name.startswith("RAY_")},
    "RAY_prestart_worker_first_driver": "0",  # else a process per core, which no trial uses
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a trial without a GPU must not see one
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # else a page of text on every worker that died
}
"""Switches of Ray itself. By default it reports usage statistics, prints between this project's
lines and starts unused processes. It reads some of these when it is imported."""
QUIET = {
    **AT_IMPORT,
    **ENVIRONMENT,
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::DeprecationWarning",
}
"""Environment of the processes that Ray starts; it also switches off telemetry of Hugging Face and
MLflow, which may have no network to wait for."""
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
"""With these, Ray notices a node that is cut off after about 10 s; by default after a minute."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Limits Ray to a single node, which then listens on loopback. By default Ray listens on all
interfaces, and uses the address for other machines even if 127.0.0.1 is given. (ray 2.60)"""


def set_before_ray() -> None:
    """Set AT_IMPORT in the environment, before Ray is imported; variables of the user stay."""
    os.environ.update({**AT_IMPORT, **os.environ})
