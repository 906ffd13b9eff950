"""Private parts of MLflow that this project uses, all of them in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_mlflow_compat.py fails where MLflow changes one. The tables of its database are
read in run_tables.py and database.py, by SQL.
"""

from __future__ import annotations

import logging
import os

from tinyattn.telemetry import switch_telemetry_off

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
