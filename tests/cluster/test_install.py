"""What makes a machine's environment that of the head, run by this machine's sh."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from cluster import install, node
from cluster.agents import Agents, Answer
from cluster.checks import refuse_versions
from cluster.config import Cluster, Node, Rack
from cluster.rack import RackLauncher
from tinyattn.errors import TinyAttnError, UsageError

FITS = {"python": "3.11.7", "versions": {"ray": "2.60.0"}, "state": "down"}
OTHER = FITS | {"versions": {"ray": "2.59.0"}}


def install_here(
    command: str, folder: Path, lock: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """As ssh does it on a machine, by a login shell, with temporary files in a folder."""
    return subprocess.run(
        ["bash", "-c", install.READS_STDIN], input=install.script(command, lock), text=True,
        capture_output=True, check=False, env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder)},
    )  # fmt: skip


def test_a_command_finds_the_versions_of_this_machine(tmp_path: Path) -> None:
    done = install_here("cat \"$TINYATTN_CONSTRAINTS\"; echo it\\'s '$HOME'; cat", tmp_path)
    *lines, last = done.stdout.splitlines()
    assert install.fault_of(done) == ""
    assert last == "it's $HOME"  # and the `cat` after it read nothing of the script
    assert f"ray=={version('ray')}" in lines
    assert f"torch=={version('torch').partition('+')[0]}" in lines
    assert list(tmp_path.iterdir()) == []
    assert all(Requirement(line).specifier for line in lines)  # as pip reads them


def test_process_lists_show_neither_command_nor_versions(tmp_path: Path) -> None:
    shown = install_here(": secret-word; ps axww -o args", tmp_path).stdout
    assert "eval" in shown
    assert "secret-word" not in shown
    assert "ray==" not in shown


def test_the_first_line_that_fails_ends_it_and_the_last_lines_are_shown(tmp_path: Path) -> None:
    done = install_here("seq 20\nls /nowhere\necho not reached", tmp_path)
    lines = install.fault_of(done).splitlines()
    assert lines[0] == "it ended with 2; its last lines:"
    assert len(lines) == 1 + install.LINES_SHOWN
    assert "/nowhere" in lines[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "INSTALL_SECONDS", 1)
    done = install_here("echo begun\nsleep 987 | cat\nexit 0", tmp_path)
    assert "was ended after" in install.fault_of(done)
    assert "sleep 987" not in subprocess.check_output(["ps", "axo", "args"], text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 137", "it ended with 137, like a process that the system kills when memory"),
        ("kill -9 $$", "it ended with 137, like a process that the system kills when memory"),
        ("exit 124", "it ended with 124;"),
        ("exit 255", "it ended with 255;"),
    ],
)
def test_codes_that_timeout_and_ssh_have_too_are_told_apart(
    tmp_path: Path, command: str, said: str
) -> None:
    assert install.fault_of(install_here(command, tmp_path)).startswith(said)


@pytest.mark.parametrize(
    ("heard", "said"), [("", "ssh failed;"), (install.BEGUN, "ssh failed after it had begun;")]
)
def test_a_connection_that_fails_is_told_as_that(heard: str, said: str) -> None:
    done = subprocess.CompletedProcess([], 255, "", f"{heard}\nConnection closed\n")
    assert install.fault_of(done) == f"{said} its last lines:\n      Connection closed"


@pytest.mark.slow
def test_machines_with_one_file_system_install_in_turn(tmp_path: Path) -> None:
    lock, log = tmp_path / ".env.tinyattn-lock", tmp_path / "log"
    command = f"echo in >> {log}; sleep 0.3; echo out >> {log}"
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: install_here(command, tmp_path, lock), range(3)))
    assert [install.fault_of(done) for done in found] == [""] * 3
    assert log.read_text().split() == ["in", "out"] * 3
    free = install_here("echo done", tmp_path, tmp_path / "nowhere" / "lock")
    assert (free.returncode, free.stdout) == (0, "done\n")


@pytest.mark.parametrize(
    ("python", "lock"),
    [
        ("/opt/tinyattn/bin/python", "/opt/.tinyattn.tinyattn-lock"),
        ("/usr/bin/python3", None),
        ("python3", None),
    ],
)
def test_the_lock_is_beside_the_environment(python: str, lock: str | None) -> None:
    assert install.lock_of(Path(python)) == (lock and Path(lock))


@pytest.mark.parametrize(
    ("version", "public"),
    [("2.13.0+cpu", "2.13.0"), ("1.0rc1", "1.0rc1"), ("0.23ubuntu1", None), (None, None)],
)
def test_builds_of_a_version_are_the_same_version(version: str, public: str | None) -> None:
    assert install.public(version) == public


def answers(*said: dict[str, Any]) -> list[Answer]:
    return [Answer(Node(host=f"10.0.0.{n}"), words) for n, words in enumerate(said, start=1)]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces this machine's ssh by a script, which also stands for the shell on any machine."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def answer_by(script: str) -> None:
        (tmp_path / "ssh").write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
        (tmp_path / "ssh").chmod(0o755)

    return answer_by


def test_only_machines_that_differ_are_installed_on(ssh: Callable[[str], None]) -> None:
    lines: list[str] = []
    file = {
        "name": "r", "launch": {"type": "rack"}, "head": {"host": "10.0.0.1"},
        "storage": "/mnt/shared", "environment": {"install": "true"},
    }  # fmt: skip
    cluster = Cluster.model_validate(file)
    machines = RackLauncher(cluster, Rack(type="rack"), lines.append)
    ssh("exit 0")
    none = Answer(Node(host="10.0.0.5"), {}, "python is not there", True)
    changed = machines.install([*answers(FITS, FITS, OTHER), none])
    assert [node.host for node in changed] == ["10.0.0.3", "10.0.0.5"]
    assert lines[:2] == ["10.0.0.3: installing", "10.0.0.5: installing"]
    assert sorted(lines[2:]) == ["10.0.0.3: installed", "10.0.0.5: installed"]
    assert machines.install(answers(FITS, FITS)) == []

    with pytest.raises(UsageError, match=r"10\.0\.0\.2: a cluster runs there with other versions"):
        machines.install(answers(FITS, OTHER | {"state": "running"}))
    silent = Answer(Node(host="10.0.0.2"), {}, "ssh failed: no route")
    with pytest.raises(UsageError, match=r"10\.0\.0\.2: ssh failed"):
        machines.install([*answers(FITS), silent])
    full = Answer(Node(host="10.0.0.3"), {}, "its agent failed: OSError: No space left")
    with pytest.raises(UsageError, match=r"10\.0\.0\.3: its agent failed: OSError: No space"):
        machines.install([*answers(FITS, OTHER), full])
    old = FITS | {"code": "0123456789ab"}
    (changed_one,) = machines.install(answers(FITS | {"code": "ba9876543210"}, old))
    assert changed_one.host == "10.0.0.2"

    ssh("echo no; exit 7")
    with pytest.raises(TinyAttnError, match=r"10\.0\.0\.2: it ended with 7; its last lines:\n +no"):
        machines.install(answers(FITS, OTHER))


@pytest.mark.parametrize(
    ("code", "said", "lacks"),
    [
        (127, "bash: /opt/env/bin/python: No such file or directory", True),
        (1, "/opt/env/bin/python: Error while finding module: No module named 'cluster'", True),
        (1, "OSError: [Errno 28] No space left on device", False),
        (137, "Killed", False),
        (255, "Connection refused", False),
    ],
)
def test_only_what_installing_mends_is_a_lack_of_the_environment(
    ssh: Callable[[str], None], code: int, said: str, lacks: bool
) -> None:
    file = {
        "name": "r", "launch": {"type": "rack"}, "head": {"host": "10.0.0.1"},
        "storage": "/mnt/shared",
    }  # fmt: skip
    ssh(f"echo {shlex.quote(said)} >&2; exit {code}")
    agents = Agents(Cluster.model_validate(file), Rack(type="rack"), print)
    answer = agents.ask(Node(host="10.0.0.2"), "probe", {})
    assert said in answer.fault
    assert answer.lacks_environment == lacks


def test_changed_sources_are_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though their version is the same, as after a pull on the head alone."""
    for name in node.CODE:
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "deep" / "module.py").write_text("x = 1\n")

    def here() -> str:
        code = "import sys; from cluster import node; sys.path.insert(0, sys.argv[1]); "
        code += "[sys.modules.pop(k) for k in [*sys.modules] if k.split('.')[0] in node.CODE]; "
        words = [sys.executable, "-c", code + "print(node.code_hash())", str(tmp_path)]
        return subprocess.check_output(words, text=True).strip()

    before = here()
    assert before == here()
    assert before != node.code_hash()
    (tmp_path / "search_spaces" / "notes.txt").write_text("no code")
    assert before == here()
    (tmp_path / "tinyattn" / "deep" / "module.py").write_text("x = 2\n")
    changed = here()
    assert changed != before
    (tmp_path / "tinyattn" / "deep" / "module.py").rename(tmp_path / "tinyattn" / "module.py")
    assert here() not in (before, changed)
    with pytest.raises(UsageError, match=f"2: tinyattn's code {changed}, not {before}"):
        refuse_versions(answers(FITS | {"code": before}, FITS | {"code": changed}))
