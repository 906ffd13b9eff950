"""Ray's switches in the environment, each with its reason: importing this sets none and imports no
Ray."""

from __future__ import annotations

import os

AT_IMPORT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # a process a core that no trial uses
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a trial without a GPU must not see one
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # a page on every worker or raylet that died: the view tells
}
"""Ray would otherwise report home, write between our lines and start what nobody uses. It reads
some of it when it is imported."""
QUIET = {
    **AT_IMPORT,
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore::FutureWarning,ignore::DeprecationWarning",
}
"""What the processes that Ray starts inherit: Hugging Face and MLflow would report home, and ask
hubs that may not be there."""
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
"""A node that is cut off is noticed after about 10 s; by default after a minute."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's switch for a node without others, which then listens on loopback. Without it Ray listens on
all interfaces, and takes the address that others would use also where 127.0.0.1 is named (2.60)."""


def set_before_ray() -> None:
    """Set what Ray reads when it is imported; what the user has set stays."""
    os.environ.update({**AT_IMPORT, **os.environ})
