"""Installation of the head's environment on a machine, by `environment.install` of a cluster file.

`environment.install` is the user's own shell command; usually it makes a virtual environment and
fills it. It is sent to the machine on stdin and written to a file there, so that process lists show
neither the command nor the versions.
"""

from __future__ import annotations

import shlex
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from packaging.version import InvalidVersion, Version

INSTALL_SECONDS = 1800
"""Time limit; torch with its CUDA libraries takes a quarter of an hour over a slow connection."""
LINES_SHOWN = 10
"""Last lines of a failed command's output that a message shows."""
READS_STDIN = """exec sh -c 'eval "$(cat)"'"""
"""Command for any login shell: run sh on the script from stdin, after reading it completely. A
command in the script that reads stdin then finds it empty, instead of the rest of the script."""
BEGUN = "tinyattn: environment.install begins"
ENDED = "tinyattn: environment.install ended"
TOO_LONG = "tinyattn: environment.install took too long"
"""Lines that the script prints to tell apart errors with the same exit code: 255 may be ssh's, and
137 a time limit's or that of a process that the kernel killed for memory."""
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
    """Return the sh script that runs `environment.install` on a machine.

    Args:
        command: the command of the cluster file.
        lock: file to lock during the installation, so that machines with a common file system take
            turns; None, or a file that cannot be made: no lock.
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
    """Return the file to lock while an interpreter's environment is made, beside its folder.

    None if the interpreter has no environment of its own, such as /usr/bin/python3.
    """
    environment = python.parent.parent
    if not python.is_absolute() or environment.parent == environment.parent.parent:
        return None
    return environment.with_name(f".{environment.name}.tinyattn-lock")


def constraints() -> str:
    """Return the versions of all packages here, one per line, as `pip install -c` takes them."""
    found: dict[str, str] = {}
    for package in distributions():
        version = public(package.version)
        if package.name and version is not None:
            found.setdefault(package.name.lower(), version)  # Python imports the first one
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def public(version: str | None) -> str | None:
    """Return a version without its build: 2.13.0 for 2.13.0+cpu; None if it is not a version.

    Machines with other devices need other builds of the same torch, and package indexes do not list
    builds.
    """
    try:
        return Version(version or "").public
    except InvalidVersion:  # the system's own packages may have versions of other forms
        return None


def fault_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return why a command failed, with the end of its output; empty if it succeeded."""
    if not done.returncode:
        return ""
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    words = f"it ended with {done.returncode}"
    if done.returncode == _KILLED:
        words += ", like a process that the system kills when memory runs out"
    if TOO_LONG in said:
        words = f"it was ended after {INSTALL_SECONDS // 60} minutes"
    if done.returncode == 255 and ENDED not in said:  # ssh's own
        words = "ssh failed after it had begun" if BEGUN in said else "ssh failed"
    said = [line for line in said if line not in (BEGUN, ENDED, TOO_LONG)]
    return "\n      ".join([f"{words}; its last lines:", *said[-LINES_SHOWN:]])
