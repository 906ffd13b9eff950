"""Private parts of MLflow that this project uses, all of them in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_mlflow_compat.py fails where MLflow changes one. The tables of its database are
read in run_tables.py and database.py, by SQL.
"""

from __future__ import annotations

import logging
import os
import secrets
import warnings
from typing import TYPE_CHECKING

from tinyattn.telemetry import switch_telemetry_off

if TYPE_CHECKING:
    from starlette.types import ASGIApp

STORE = "MLFLOW_BACKEND_STORE_URI"
"""Variable with the address of the store that a server serves."""
_ENVIRONMENT = {
    # URLs and progress bars would be printed between this project's own lines.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # By default a call blocks for minutes while a server is down, and a request that creates a run
    # may be sent twice unnoticed. The retry queue and `patiently` retry instead.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
_LEVELS = {
    "mlflow.pyfunc": logging.WARNING,  # "Validating input example"
    "alembic": logging.CRITICAL,  # creation of tables
    "mlflow.utils.databricks_utils": logging.CRITICAL,  # the address with its token
    "mlflow.store.db.utils": logging.CRITICAL,  # tracebacks of locks
}


def prepare_mlflow() -> None:
    """Make MLflow quiet in this process, without retries of its own; settings of the user stay.

    MLflow reads the variables at each use. The loggers have no public switches. (mlflow 3.17)
    """
    switch_telemetry_off()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)


def make_tables(uri: str) -> None:
    """Make MLflow's tables in an empty database.

    Opening the database as a store would make them too, but keep it open, and the caller renames
    the file afterwards. (mlflow 3.17)
    """
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine_with_retry

    engine = create_sqlalchemy_engine_with_retry(uri)
    _initialize_tables(engine)
    engine.dispose()


def web_application(uri: str, artifacts: str) -> ASGIApp:
    """Return MLflow's web application, as `mlflow server` would hand it to uvicorn.

    The command itself listens, so that nothing could stand between its port and the application,
    which reads its settings from variables without public names. (mlflow 3.17)

    Args:
        uri: the database.
        artifacts: URL of the folder that artifacts come from and go to.
    """
    os.environ.update(
        {
            "_MLFLOW_SERVER_FILE_STORE": uri,
            "_MLFLOW_SERVER_REGISTRY_STORE": uri,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": artifacts,
            "_MLFLOW_SERVER_BOOT_ID": secrets.token_hex(16),
            "_MLFLOW_IN_JOB_EXECUTOR": "false",
            "_MLFLOW_SGI_NAME": "uvicorn",
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what MLflow uses that will go
        from mlflow.server.fastapi_app import app
    return app
