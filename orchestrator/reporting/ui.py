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

from orchestrator.state.workspace import Workspace
from orchestrator.tracking.pages import view_page
from orchestrator.tracking.reader import TrackingReader
from orchestrator.tracking.writer import TrackingWriter
from tinyattn.errors import StorageError, TinyAttnError, UsageError

_GUARD = "trap '' TERM; cat > /dev/null; kill -TERM 0; sleep 5; kill -KILL 0"
"""Shell script that waits until its input is closed, which the end of this process does in any
case, and then ends its process group."""
_GRACE_SECONDS = 5.0
_SETTLE_SECONDS = 30.0
_MOST_LANDINGS = 5
"""Sweeps whose leaderboards are listed; the others stand in the pages' menu of views."""


def serve(workspace: Workspace, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Raises:
        UsageError: the address cannot be listened on, or the store is a server with its own pages.
        TinyAttnError: the server ended by itself.
    """
    if workspace.tracking_uri is not None and workspace.tracking_uri.startswith(
        ("http:", "https:")
    ):
        raise UsageError(f"the store is a server: its pages are at {workspace.place}")
    _refuse_taken(host, port)
    store = workspace.tracker() if workspace.may_be_written() else workspace.store()
    if not workspace.may_be_written():
        say(
            f"note: {workspace.place} may not be written: the pages are of a copy, and changes "
            "there end"
        )
    name = f"[{host}]" if ":" in host else host
    say(f"MLflow's pages are at http://{name}:{port} (Ctrl-C ends them)")
    for line in _landings(store, f"http://{name}:{port}"):
        say(line)
    # The jobs that this switches off are for evaluating language models: eight processes.
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_BACKEND_STORE_URI": store.uri,  # no word of the command: it may hold a password
    }
    command = [
        sys.executable, "-P", "-m", "mlflow", "server",
        "--artifacts-destination", (workspace.runs / "artifacts").as_uri(),
        "--host", host, "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    with guarded_group() as group:
        server = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, process_group=group
        )
        try:
            code = server.wait()
        except KeyboardInterrupt:
            say("ended")
            return
    raise TinyAttnError(f"MLflow's server ended by itself with code {code}; its lines say why")


def _landings(store: TrackingReader, site: str) -> Iterator[str]:
    """Yield the addresses of the newest sweeps' leaderboards; a sweep without one gets it."""
    for sweep in store.sweeps()[: -_MOST_LANDINGS - 1 : -1]:
        try:
            if isinstance(store, TrackingWriter):
                store.add_views(sweep)
                store.settle(_SETTLE_SECONDS)
            if store.has_view(sweep):
                yield f"{sweep.name}: {site}/{view_page(sweep.experiment_id, sweep.name)}"
        except StorageError as error:  # such as a sweep whose files are gone
            yield f"{sweep.name}: no prepared view: {error}"


@contextmanager
def guarded_group() -> Iterator[int]:
    """Yield a process group that ends with the block, even if this process is killed in it.

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
    """Raise UsageError if nothing can listen on the address."""
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
