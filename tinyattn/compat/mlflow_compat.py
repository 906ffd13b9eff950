"""What the library uses of MLflow beyond its public interface, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_mlflow_compat.py fails where MLflow changes one. What a sweep uses is in
orchestrator/tracking/mlflow_compat.py.
"""

from __future__ import annotations


def read_telemetry_switch_again() -> None:
    """Make an MLflow that has been imported already read its telemetry's switch again.

    On import it starts a client, with a thread that sends records, unless the environment forbids
    it. `mlflow.telemetry.set_telemetry_client`, which no page documents, reads the environment
    anew; where telemetry is off, it leaves no client. (mlflow 3.17)
    """
    from mlflow.telemetry import set_telemetry_client

    set_telemetry_client()
