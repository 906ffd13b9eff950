"""`tinyattn ui`: what it says before and after its server, with a script in the server's place."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow_sweeps import Sweeps

from orchestrator.reporting.ui import serve
from orchestrator.spec.outcome import Outcome
from orchestrator.state.workspace import Workspace
from tinyattn.errors import TinyAttnError, UsageError


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
        return found


def in_place_of_the_server(tmp_path: Path, patch: pytest.MonkeyPatch, script: str) -> None:
    """Have a shell script run where Python would run MLflow's server."""
    program = tmp_path / "server"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    patch.setattr(sys, "executable", str(program))


def test_a_server_has_pages_of_its_own(tmp_path: Path, port: int) -> None:
    workspace = Workspace(tmp_path, "https://user:secret@mlflow.example.org")
    with pytest.raises(UsageError, match="the store is a server: its pages are at") as caught:
        serve(workspace, "127.0.0.1", port, pytest.fail)
    assert "mlflow.example.org" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_host_that_is_none_is_refused(tmp_path: Path, port: int) -> None:
    for host in ("256.0.0.1", "a" * 70 + ".example"):  # the second is no name that may be asked for
        with pytest.raises(UsageError, match=f"{host}:{port} cannot be listened on: .*--host"):
            serve(Workspace(tmp_path), host, port, pytest.fail)


def test_a_server_that_ends_by_itself_is_an_error_with_its_code(
    sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    sweeps.start("good")
    sweeps.runs.end_sweep(Outcome.COMPLETED)
    sweeps.runs.settle()
    gone = sweeps.start("gone")
    sweeps.runs.end_sweep(Outcome.COMPLETED)
    sweeps.runs.settle()
    views = "delete from experiment_tags where key like 'mlflow.sharedViewState.%'"
    with sqlite3.connect(tmp_path / "runs" / "mlflow.db") as database:
        database.execute(views)  # as in a store of before there were any
    shutil.rmtree(next((tmp_path / "runs" / "artifacts").rglob(gone)))
    script = f'echo "$@" > {tmp_path}/words; echo "$MLFLOW_BACKEND_STORE_URI" > {tmp_path}/uri; '
    in_place_of_the_server(tmp_path, monkeypatch, script + "exit 3")
    said: list[str] = []
    with pytest.raises(TinyAttnError, match="server ended by itself with code 3"):
        serve(Workspace(tmp_path / "runs"), "127.0.0.1", port, said.append)
    site = f"http://127.0.0.1:{port}"
    assert said[0] == f"MLflow's pages are at {site} (Ctrl-C ends them)"
    newest, older = said[1:]
    assert newest.startswith("gone: no prepared view: ")
    assert older.startswith(f"good: {site}/#/experiments/1/runs?")
    assert older.endswith("viewStateShareKey=good.trials")
    words = (tmp_path / "words").read_text()
    assert f"--host 127.0.0.1 --port {port}" in words
    assert "mlflow.db" not in words  # a store's address may hold a password
    assert (tmp_path / "uri").read_text().strip() == sweeps.tracker.uri


def test_ctrl_c_ends_the_server_and_is_no_error(
    sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    trap = f"trap 'echo > {tmp_path}/ended; exit' TERM"
    script = f"{trap}; echo > {tmp_path}/started; while :; do sleep 0.01; done"
    in_place_of_the_server(tmp_path, monkeypatch, script)
    wait, interrupts = subprocess.Popen.wait, [KeyboardInterrupt]

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        if interrupts:
            raise interrupts.pop()
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    said: list[str] = []
    serve(Workspace(tmp_path / "runs"), "127.0.0.1", port, said.append)
    assert said[1:] == ["ended"]
    assert (tmp_path / "ended").exists()
