"""Real processes: sweeps that are interrupted, trainings that are killed, several at once."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import psutil
import pytest
from listening import assert_loopback_only, listening
from sweep_truth import study_of
from tiny_plm import save_tiny_plm

from orchestrator.state.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.long]
SIZES = ("task=agreement", "max_length=32", "max_train_rows=400", "batch_size=16")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_plm(tmp_path_factory.mktemp("plm") / "tiny"))


def start(*words: object) -> subprocess.Popen[str]:
    """Start the command line in a process group of its own, as a shell does."""
    command = [sys.executable, "-m", "orchestrator.cli", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"ended without {word!r}: {process.communicate()[1]}")


def twice(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    os.killpg(process.pid, signal.SIGINT)


def whole_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)  # as `timeout` or a batch system sends it


def assert_ended_truthfully(runs: Path, children: list[psutil.Process]) -> None:
    """Of the sweep `s` nothing runs, MLflow, study and event log agree, and it was interrupted."""
    assert psutil.wait_procs(children, timeout=10)[1] == []

    tracker = Workspace(runs).tracker()
    record = tracker.find_sweep("s")
    trials = tracker.trials_of(record)
    outcomes = {record.run_id: record.outcome} | {run.run_id: run.trial.outcome for run in trials}
    for run_id, outcome in outcomes.items():
        assert outcome == "interrupted" or outcome in ("completed", "stopped")
        assert tracker.client.get_run(run_id).info.status == outcome.run_status
    assert record.outcome == "interrupted"
    assert any(run.trial.outcome == "interrupted" for run in trials)

    study = study_of(runs / "sweeps" / "s", "s")
    states = Counter(trial.state.name for trial in study.trials)
    assert states["RUNNING"] == 0
    told = {trial.user_attrs["trial"]: trial.user_attrs["outcome"] for trial in study.trials}
    seen = {run.trial.name: str(run.trial.outcome) for run in trials}
    assert told.items() >= seen.items()
    # One that was suggested, and whose worker was not up yet, has no run.
    assert {told[name] for name in told.keys() - seen.keys()} <= {"interrupted"}


@pytest.mark.parametrize("stop", [twice, whole_group])
def test_an_interrupted_sweep_leaves_nothing_running(
    tiny: str, tmp_path: Path, stop: Callable[[subprocess.Popen[str]], None]
) -> None:
    sweep = start(
        "sweep", "run", "agreement", *SIZES, f"plm={tiny}", "epochs=50", "search.trials=40",
        "name=s", "--runs", tmp_path,
    )  # fmt: skip
    read_until(sweep, "evaluation 2/")
    children = psutil.Process(sweep.pid).children(recursive=True)
    assert any(child.name() == "raylet" for child in children)
    stop(sweep)
    _, stderr = sweep.communicate(timeout=40)
    assert sweep.returncode == 1
    assert "Traceback" not in stderr
    (line,) = stderr.splitlines()
    assert line.startswith("error: interrupted; what had ended is kept")
    assert line.endswith(f"`tinyattn resume s --runs {tmp_path}` goes on where it was")
    assert_ended_truthfully(tmp_path, children)


def test_a_closed_terminal_interrupts_as_ctrl_c_does(tiny: str, tmp_path: Path) -> None:
    ours, its = pty.openpty()
    words = (*SIZES, f"plm={tiny}", "epochs=50", "search.trials=40", "name=s", "--runs", tmp_path)

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` may have started the tests

    sweep = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", "sweep", "run", "agreement", *map(str, words)],
        stdin=its, stdout=its, stderr=its, start_new_session=True, preexec_fn=take_terminal,
    )  # fmt: skip
    os.close(its)
    shown = b""
    while not re.search(rb" \d+/100 ", shown):  # an evaluation, in the panel
        shown += os.read(ours, 4096)
    children = psutil.Process(sweep.pid).children(recursive=True)
    os.close(ours)  # as where an ssh connection is lost
    os.killpg(sweep.pid, signal.SIGHUP)  # as a shell does, beside the kernel
    try:
        assert sweep.wait(timeout=40) == 1
    finally:
        sweep.kill()
    assert_ended_truthfully(tmp_path, children)


def assert_shut_to_others(raylet: psutil.Process) -> None:
    """Another account of this machine can neither see, use nor replace the sockets of Ray."""
    words = " ".join(raylet.cmdline())
    sockets = [Path(found) for found in re.findall(r"--\w+_socket_name=(\S+)", words)]
    assert len(sockets) == 2
    assert all(socket.is_socket() for socket in sockets)
    if os.geteuid() != 0:  # nobody else to be
        return
    for path in sockets:
        for command in (["ls", path], ["ls", path.parent], ["mv", path, f"{path}-"], ["rm", path]):
            done = subprocess.run(
                command, user=65534, group=65534, extra_groups=[], capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert "Permission denied" in done.stderr, (command, done.stderr)


def test_a_sweep_whose_ray_dies_says_so_and_goes_on(tiny: str, tmp_path: Path) -> None:
    words = (*SIZES, f"plm={tiny}", "epochs=50", "search.trials=40", "name=s")
    sweep = start("sweep", "run", "agreement", *words, "--runs", tmp_path)
    read_until(sweep, "evaluation 2/")
    children = psutil.Process(sweep.pid).children(recursive=True)
    assert_loopback_only(listening([sweep.pid, *(child.pid for child in children)]))
    (raylet,) = (child for child in children if child.name() == "raylet")
    assert_shut_to_others(raylet)
    assert_ends_truthfully_without(raylet, sweep, tmp_path)

    resumed = start("sweep", "resume", "s", "--runs", tmp_path)
    read_until(resumed, "starts again")
    read_until(resumed, "evaluation ")
    children = psutil.Process(resumed.pid).children(recursive=True)
    (control_store,) = (child for child in children if child.name() == "gcs_server")
    assert_ends_truthfully_without(control_store, resumed, tmp_path)


def assert_ends_truthfully_without(
    lost: psutil.Process, sweep: subprocess.Popen[str], runs: Path
) -> None:
    """A sweep that loses a process of Ray's says so in one message, and leaves nothing open."""
    children = psutil.Process(sweep.pid).children(recursive=True)
    lost.kill()
    began = time.monotonic()
    stdout, stderr = sweep.communicate(timeout=60)
    assert time.monotonic() - began < 40, "Ray's own patience is a minute"
    assert sweep.returncode == 1
    assert all(line.startswith("[") for line in stdout.splitlines()), "of the view alone"
    assert stderr == (
        "error: Ray has died on this machine, perhaps killed because memory ran out; free some; "
        f"then `tinyattn resume s --runs {runs}` goes on\n"
    )
    tracker = Workspace(runs).tracker()
    record = tracker.find_sweep("s")
    for run in (record, *tracker.trials_of(record)):
        assert tracker.client.get_run(run.run_id).info.status != "RUNNING"
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_two_trainings_at_once_and_one_of_them_killed_and_resumed(
    tiny: str, tmp_path: Path
) -> None:
    """Both use the same ports, caches and PLM; the end is the same to the last bit."""
    words = ("train", *SIZES, f"plm={tiny}", "epochs=8", "adapter.dropout=0.2")
    whole = start(*words, "--output", tmp_path / "whole")
    victim = start(*words, "--output", tmp_path / "killed")
    read_until(victim, "evaluation 3/16")  # its state is being written
    assert_loopback_only(listening([victim.pid]))
    victim.kill()
    victim.communicate()
    expected, stderr = whole.communicate(timeout=120)
    assert whole.returncode == 0, stderr
    assert stderr == ""

    resumed = start(*words, "--output", tmp_path / "killed", "--resume")
    found, stderr = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, stderr
    assert 12 <= found.count("evaluation ") <= 14  # from the third, or the second if cut off

    def scores(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if line.startswith(("evaluation", "held-out"))]
        return [line.split(", rows")[0].split(", about")[0].rsplit(", ", 1)[0] for line in lines]

    assert scores(found) == scores(expected)[-len(scores(found)) :]
    one, other = (tmp_path / name / "adapter" for name in ("whole", "killed"))
    name = "adapter_model.safetensors"
    assert (one / name).read_bytes() == (other / name).read_bytes()
    assert sorted(p.name for p in (tmp_path / "killed").iterdir() if p.name[0] != ".") == [
        "adapter",
        "state",
    ]


def test_the_pages_are_served_until_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Workspace(tmp_path).tracker(create=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pages = start("ui", "--port", port, "--runs", tmp_path)
    assert pages.stdout is not None
    link = pages.stdout.readline().split()[4]
    assert link.startswith(f"http://127.0.0.1:{port}/?token=")
    browser = build_opener(HTTPCookieProcessor())
    with browser.open(link, timeout=60) as page:  # the port listens already
        assert (page.status, page.url) == (200, f"http://127.0.0.1:{port}/")
    children = psutil.Process(pages.pid).children(recursive=True)
    assert children
    pages.terminate()
    out, _ = pages.communicate(timeout=30)
    assert pages.returncode == 0
    assert out.splitlines()[-1] == "ended"
    assert psutil.wait_procs(children, timeout=10)[1] == []
