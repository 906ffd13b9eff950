"""A machine gets what the head runs, by the command that the cluster file has for that.

The command is its owner's own, so it is a shell's: usually a virtual environment is made and then
filled. It travels to the machine on stdin and from there into a file: process lists, of the head
and of the machine, show neither it nor the versions.
"""

from __future__ import annotations

import shlex
import subprocess
from importlib.metadata import distributions

from packaging.version import InvalidVersion, Version

INSTALL_SECONDS = 1800
"""A download of torch with its CUDA libraries over a slow line takes a quarter of an hour."""
LINES_SHOWN = 10
READS_STDIN = """exec sh -c 'eval "$(cat)"'"""
"""Any login shell hands over to sh, which reads all of its script before it begins: a command that
reads stdin itself finds its end, not the rest of the script."""
_SCRIPT = """
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf %s {versions} > "$folder/constraints.txt"
printf %s {command} > "$folder/install"
export TINYATTN_CONSTRAINTS="$folder/constraints.txt"
timeout --kill-after=10 {seconds} sh -e "$folder/install" < /dev/null 2>&1
"""
_TIMED_OUT = (124, 137)


def script(command: str) -> str:
    """What a machine's sh is to run for a command of a cluster file."""
    return _SCRIPT.format(
        versions=shlex.quote(constraints()), command=shlex.quote(command), seconds=INSTALL_SECONDS
    )


def constraints() -> str:
    """The versions of all packages here, one a line, as `pip install -c` takes them."""
    found: dict[str, str] = {}
    for package in distributions():
        version = public(package.version)
        if package.name and version is not None:
            found.setdefault(package.name.lower(), version)  # the first one is what is imported
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def public(version: str | None) -> str | None:
    """A version without the part that names a build, as in 2.13.0+cpu; None: it is no version.

    Machines with other devices have other builds of the same torch, and indexes list none of them.
    """
    try:
        return Version(version or "").public
    except InvalidVersion:  # packages of the system have versions of their own kind
        return None


def fault_of(done: subprocess.CompletedProcess[str]) -> str:
    """Why a command did not do, with the end of what it said; empty: it did."""
    if not done.returncode:
        return ""
    words = f"it ended with {done.returncode}"
    if done.returncode in _TIMED_OUT:
        words = f"it was ended after {INSTALL_SECONDS // 60} minutes"
    if done.returncode == 255:  # ssh's own
        words = "ssh failed"
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return "\n      ".join([f"{words}; its last lines:", *said[-LINES_SHOWN:]])
