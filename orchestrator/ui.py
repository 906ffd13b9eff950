"""`tinyattn ui`: MLflow's own web pages on the sweeps' store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from orchestrator.home import Home
from tinyattn.errors import TinyAttnError, UsageError

_GUARD = "trap '' TERM; cat > /dev/null; kill -TERM 0; sleep 5; kill -KILL 0"
"""A shell that waits until the other end of its input is closed, by whatever end of this process,
and then ends its process group."""
_GRACE_SECONDS = 5.0


def serve(home: Home, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Raises:
        UsageError: the address cannot be listened on, or the store is a server with its own pages.
        TinyAttnError: the server ended by itself.
    """
    if home.tracking_uri is not None and home.tracking_uri.startswith(("http:", "https:")):
        raise UsageError(f"the store is a server: its pages are at {home.place}")
    _refuse_taken(host, port)
    store = home.tracker() if home.may_be_written() else home.store()
    if not home.may_be_written():
        say(f"note: {home.place} may not be written: the pages are of a copy, changes there end")
    name = f"[{host}]" if ":" in host else host
    say(f"MLflow's pages are at http://{name}:{port} (Ctrl-C ends them)")
    # The jobs that this switches off are for evaluating language models: eight processes.
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_BACKEND_STORE_URI": store.uri,  # no word of the command: it may hold a password
    }
    command = [
        sys.executable, "-m", "mlflow", "server",
        "--artifacts-destination", (home.runs / "artifacts").as_uri(),
        "--host", host, "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    with _guarded_group() as group:
        server = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, process_group=group
        )
        try:
            code = server.wait()
        except KeyboardInterrupt:
            say("ended")
            return
    raise TinyAttnError(f"MLflow's server ended by itself with code {code}; its lines say why")


@contextmanager
def _guarded_group() -> Iterator[int]:
    """A process group that ends with the block, also where this process is killed in it.

    The server has children, which do not end with it.
    """
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD], stdin=subprocess.PIPE, process_group=0
    )  # nobody else has the other end of its input
    try:
        yield guard.pid
    finally:
        guarding = psutil.Process(guard.pid)  # and its `cat` or `sleep`, which end last
        guards = [guarding, *guarding.children(recursive=True)]
        served = [one for one in psutil.Process().children(recursive=True) if one not in guards]
        os.killpg(guard.pid, signal.SIGTERM)
        psutil.wait_procs(served, _GRACE_SECONDS)
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()


def _refuse_taken(host: str, port: int) -> None:
    """Raise UsageError where nothing can listen on an address."""
    if not 1 <= port <= 65535:
        raise UsageError(f"--port {port} came, allowed is 1 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot be looked up
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{host}:{port} cannot be listened on: {reason}; choose another --host or --port"
        ) from None
