"""What makes a machine's environment that of the head, run by this machine's sh."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from cluster import install, rack
from cluster.config import Cluster, Node
from tinyattn.errors import TinyAttnError, UsageError

FITS = {"python": "3.11.7", "versions": {"ray": "2.60.0"}, "state": "down"}
OTHER = FITS | {"versions": {"ray": "2.59.0"}}


def install_here(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As ssh does it on a machine, by a login shell, with temporary files in a folder."""
    return subprocess.run(
        ["bash", "-c", install.READS_STDIN], input=install.script(command), text=True,
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


def test_what_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "INSTALL_SECONDS", 1)
    done = install_here("echo begun\nsleep 987 | cat\nexit 0", tmp_path)
    assert "was ended after" in install.fault_of(done)
    assert "sleep 987" not in subprocess.check_output(["ps", "axo", "args"], text=True)


@pytest.mark.parametrize(
    ("version", "public"),
    [("2.13.0+cpu", "2.13.0"), ("1.0rc1", "1.0rc1"), ("0.23ubuntu1", None), (None, None)],
)
def test_builds_of_a_version_are_the_same_version(version: str, public: str | None) -> None:
    assert install.public(version) == public


def answers(*said: dict[str, Any]) -> list[rack.Answer]:
    return [rack.Answer(Node(host=f"10.0.0.{n}"), words) for n, words in enumerate(said, start=1)]


def test_only_machines_that_differ_are_installed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    file = {
        "name": "r", "launch": {"type": "rack"}, "head": {"host": "10.0.0.1"},
        "storage": "/mnt/shared", "environment": {"install": "true"},
    }  # fmt: skip
    machines = rack.RackCluster(Cluster.model_validate(file), lines.append)
    installed = machines._install_on
    monkeypatch.setattr(machines, "_install_on", lambda node, text: rack.Answer(node, {}))
    none = rack.Answer(Node(host="10.0.0.5"), {}, "python is not there")
    changed = machines._install([*answers(FITS, FITS, OTHER), none])
    assert [node.host for node in changed] == ["10.0.0.3", "10.0.0.5"]
    assert lines == ["10.0.0.3: installing", "10.0.0.5: installing"]
    assert machines._install(answers(FITS, FITS)) == []

    with pytest.raises(UsageError, match=r"10\.0\.0\.2: a cluster runs there with other versions"):
        machines._install(answers(FITS, OTHER | {"state": "running"}))
    silent = rack.Answer(Node(host="10.0.0.2"), {}, "ssh failed: no route", is_there=False)
    with pytest.raises(UsageError, match=r"10\.0\.0\.2: ssh failed"):
        machines._install([*answers(FITS), silent])

    monkeypatch.setattr(machines, "_install_on", installed)
    monkeypatch.setattr(machines, "_ssh", lambda node, command: ["sh", "-c", "echo no; exit 7"])
    with pytest.raises(TinyAttnError, match=r"10\.0\.0\.2: it ended with 7; its last lines:\n +no"):
        machines._install(answers(FITS, OTHER))
