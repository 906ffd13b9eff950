"""`tinyattn ui`: MLflow's own web pages on the sweeps' store."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from orchestrator.home import Home
from tinyattn.errors import TinyAttnError, UsageError


def serve(home: Home, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Raises:
        UsageError: the port is taken, or the store is a server with pages of its own.
        TinyAttnError: the server ended by itself.
    """
    if home.tracking_uri is not None and home.tracking_uri.startswith(("http:", "https:")):
        raise UsageError(f"the store is a server: its pages are at {home.place}")
    uri = home.tracker().uri
    _refuse_taken(host, port)
    say(f"MLflow's pages are at http://{host}:{port} (Ctrl-C ends them)")
    # The jobs that this switches off are for evaluating language models: eight processes.
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_BACKEND_STORE_URI": uri,  # no word of the command: it may hold a password
    }
    command = [
        sys.executable, "-m", "mlflow", "server",
        "--artifacts-destination", (home.runs / "artifacts").as_uri(),
        "--host", host, "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    # A process group of its own: the server has children, which must not outlive this process.
    server = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = server.wait()
    except KeyboardInterrupt:
        say("ended")
        return
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    raise TinyAttnError(f"MLflow's server ended by itself with code {code}; its lines say why")


def _refuse_taken(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"{host}:{port} cannot be listened on: {error.strerror}; choose another --port"
            ) from None
