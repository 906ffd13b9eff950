"""What is used of MLflow beyond its public interface, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_mlflow_compat.py fails where MLflow changes one. The tables of its database are
read in run_tables.py and database.py, by SQL.
"""

from __future__ import annotations

import logging
import os

from tinyattn.telemetry import switch_telemetry_off

_ENVIRONMENT = {
    # Addresses and progress bars would stand between our lines.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A server that is down blocks a call for minutes by default; and a request that creates a run
    # must not be sent twice behind our back. The retry queue and `patiently` try again.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
_LEVELS = {
    "mlflow.pyfunc": logging.WARNING,  # "Validating input example"
    "alembic": logging.CRITICAL,  # creation of tables
    "mlflow.store.db.utils": logging.CRITICAL,  # tracebacks of locks
}


def prepare_mlflow() -> None:
    """Have this process's MLflow be quiet and quick to give up; what the user has set stays.

    MLflow reads the variables with each use. The loggers have no public switches. (mlflow 3.17)
    """
    switch_telemetry_off()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)


def make_tables(uri: str) -> None:
    """Make MLflow's tables in an empty database.

    A store that opens a database makes them as well, but keeps it open, and the file is to be moved
    afterwards. (mlflow 3.17)
    """
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine_with_retry

    engine = create_sqlalchemy_engine_with_retry(uri)
    _initialize_tables(engine)
    engine.dispose()
