"""A machine gets what the head runs, by the command that the cluster file has for that.

The command is its owner's own, so it is a shell's: usually a virtual environment is made and then
filled. It travels to the machine on stdin and from there into a file: process lists, of the head
and of the machine, show neither it nor the versions.
"""

from __future__ import annotations

import shlex
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from packaging.version import InvalidVersion, Version

INSTALL_SECONDS = 1800
"""A download of torch with its CUDA libraries over a slow line takes a quarter of an hour."""
LINES_SHOWN = 10
READS_STDIN = """exec sh -c 'eval "$(cat)"'"""
"""Any login shell hands over to sh, which reads all of its script before it begins: a command that
reads stdin itself finds its end, not the rest of the script."""
BEGUN = "tinyattn: environment.install begins"
ENDED = "tinyattn: environment.install ended"
TOO_LONG = "tinyattn: environment.install took too long"
"""Lines of the script's own on stderr: ssh too ends with 255, and what the kernel ends where memory
runs out with timeout's 137."""
_SCRIPT = """
set -e
echo {begun} >&2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf %s {versions} > "$folder/constraints.txt"
printf %s {command} > "$folder/install"
export TINYATTN_CONSTRAINTS="$folder/constraints.txt"
lock={lock}
if [ -n "$lock" ] && command -v flock > /dev/null && (: >> "$lock") 2> /dev/null; then
    exec 9>> "$lock"
    flock -w {seconds} 9 || {{ echo "another machine holds $lock and still installs"; exit 1; }}
fi
start=$(date +%s)
code=0
timeout --kill-after=10 {seconds} sh -e "$folder/install" < /dev/null 2>&1 9>&- || code=$?
if [ $code -ne 0 ] && [ $(($(date +%s) - start)) -ge {seconds} ]; then echo {too_long} >&2; fi
echo {ended} >&2
exit $code
"""
_KILLED = 137


def script(command: str, lock: Path | None = None) -> str:
    """What a machine's sh is to run for a command of a cluster file.

    Args:
        command: that command.
        lock: file that machines with one file system hold in turn; None, or where it cannot be
            made: none.
    """
    return _SCRIPT.format(
        begun=shlex.quote(BEGUN),
        ended=shlex.quote(ENDED),
        too_long=shlex.quote(TOO_LONG),
        versions=shlex.quote(constraints()),
        command=shlex.quote(command),
        lock=shlex.quote(str(lock or "")),
        seconds=INSTALL_SECONDS,
    )


def lock_of(python: Path) -> Path | None:
    """The file to hold while an interpreter's environment is made: beside that, which may not be
    there yet; None: it has no folder of its own, as /usr/bin/python3."""
    environment = python.parent.parent
    if not python.is_absolute() or environment.parent == environment.parent.parent:
        return None
    return environment.with_name(f".{environment.name}.tinyattn-lock")


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
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    words = f"it ended with {done.returncode}"
    if done.returncode == _KILLED:
        words += ", as what the system ends where memory runs out"
    if TOO_LONG in said:
        words = f"it was ended after {INSTALL_SECONDS // 60} minutes"
    if done.returncode == 255 and ENDED not in said:  # ssh's own
        words = "ssh failed after it had begun" if BEGUN in said else "ssh failed"
    said = [line for line in said if line not in (BEGUN, ENDED, TOO_LONG)]
    return "\n      ".join([f"{words}; its last lines:", *said[-LINES_SHOWN:]])
