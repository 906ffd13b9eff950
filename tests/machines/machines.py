"""Machines on one machine: network namespaces with own addresses, process tables and sshd.

A machine is one process that holds its namespaces: `kill -9` of it is a power cut, taking its link
down is a cable pulled. Its shared memory and state folder are its own; the rest of the file system,
and so the storage folder, is shared by all, as over NFS.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEMORY = ("/dev/shm",)
DISK = (str(Path.home() / ".local/state"), "/var/lib/tinyattn")
BOOT = """
set -e
mount --make-rprivate /
for folder in {memory}; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done
for folder in {disk}; do mkdir -p $folder {own}$folder; mount --bind {own}$folder $folder; done
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -f {config}
"""
SSHD = """
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
"""


def can_make_machines() -> bool:
    """Whether namespaces can be made here: root, iproute2 and sshd."""
    return os.geteuid() == 0 and bool(shutil.which("ip")) and Path("/usr/sbin/sshd").exists()


@dataclass
class Machine:
    """One machine of the bench."""

    bench: Bench
    number: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.bench.net}.{self.number + 1}"

    @property
    def space(self) -> str:
        return f"{self.bench.name}-{self.number}"

    @property
    def link(self) -> str:
        return f"{self.bench.name}v{self.number}"

    def boot(self) -> None:
        """Start it, perhaps after a power cut: its disk is as it was."""
        config = self.bench.folder / f"sshd-{self.number}"
        config.write_text(SSHD.format(address=self.address, folder=self.bench.folder))
        script = BOOT.format(
            config=config,
            own=self.bench.folder / f"disk-{self.number}",
            memory=" ".join(MEMORY),
            disk=" ".join(DISK),
        )
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.space, "unshare", "--pid", "--fork", "--kill-child",
             "--mount-proc", "--mount", "--uts", "bash", "-c", script],
            stderr=(self.bench.folder / f"sshd-{self.number}.log").open("ab"),
        )  # fmt: skip
        until(self._first_processes, 15)
        until(lambda: self.run("true", check=False).returncode == 0, 15)

    def run(self, *words: Any, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on it to its end."""
        done = subprocess.run(
            self._inside(words), capture_output=True, text=True, check=False, **more
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def start(self, *words: Any, log: Path) -> subprocess.Popen[bytes]:
        """Start a command on it."""
        with log.open("ab") as out:
            return subprocess.Popen(self._inside(words), stdout=out, stderr=subprocess.STDOUT)

    def _inside(self, words: tuple[Any, ...]) -> list[str]:
        assert self.process is not None
        first = self._first_processes()[0]
        return ["nsenter", "-t", first, "-m", "-u", "-n", "-p", *map(str, words)]

    @property
    def is_on(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _first_processes(self) -> list[str]:
        """The process that holds the namespaces, once it is there."""
        assert self.process is not None
        pid = self.process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def power_off(self) -> None:
        """A power cut."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def pull_cable(self) -> None:
        _ip("link", "set", self.link, "down")

    def plug_cable(self) -> None:
        _ip("link", "set", self.link, "up")


@dataclass
class Bench:
    """Machines joined by one bridge. The first one is the head."""

    folder: Path
    machines: list[Machine] = field(default_factory=list)

    @property
    def name(self) -> str:
        """First part of all names that the system knows: several benches may be up."""
        return f"ta{os.getpid()}"

    @property
    def net(self) -> str:
        """First three numbers of all addresses."""
        return f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}"

    @contextmanager
    def running(self, count: int) -> Iterator[list[Machine]]:
        """Boot machines for the length of the block."""
        for file in ("host_key", "key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / file)]
            subprocess.run(words, check=True)
        self.remove()
        _ip("link", "add", self.name, "type", "bridge")
        _ip("addr", "add", f"{self.net}.254/24", "dev", self.name)
        _ip("link", "set", self.name, "up")
        try:
            for number in range(count):
                self.add(number)
            self._write_known_hosts()
            yield self.machines
        finally:
            for machine in self.machines:
                if machine.is_on:
                    machine.power_off()
            self.remove()

    def add(self, number: int) -> Machine:
        """Plug in and boot one more."""
        machine = Machine(self, number)
        self.machines.append(machine)
        _ip("netns", "add", machine.space)
        peer = f"{machine.link}p"
        _ip("link", "add", machine.link, "type", "veth", "peer", "name", peer)
        _ip("link", "set", peer, "netns", machine.space)
        _ip("link", "set", machine.link, "master", self.name, "up")
        inside = ("-n", machine.space)
        _ip(*inside, "addr", "add", f"{machine.address}/24", "dev", peer)
        _ip(*inside, "link", "set", peer, "up")
        _ip(*inside, "link", "set", "lo", "up")
        machine.boot()
        return machine

    def _write_known_hosts(self) -> None:
        key = (self.folder / "host_key.pub").read_text().split()[:2]
        lines = [f"{self.net}.{number} {' '.join(key)}\n" for number in range(1, 20)]
        (self.folder / "known_hosts").write_text("".join(lines))

    def remove(self) -> None:
        """Take away all of this bench that the system knows."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            if line.startswith(f"{self.name}-"):
                _ip("netns", "delete", line.split()[0])
        for link in os.listdir("/sys/class/net"):
            if link == self.name or link.startswith(f"{self.name}v"):
                subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True)

    def cluster_file(self, **changes: Any) -> Path:
        """Write a cluster file of these machines (JSON is YAML)."""
        head, *nodes = [{"host": m.address, "cpus": 1, "gpus": 0} for m in self.machines]
        data: dict[str, Any] = {
            "name": "bench",
            "launch": {
                "type": "rack",
                "user": "root",
                "key": str(self.folder / "key"),
                "known_hosts": str(self.folder / "known_hosts"),
            },
            "head": head,
            "nodes": nodes,
            "storage": str(self.folder / "storage"),
            "environment": {"python": sys.executable},
        }
        path = self.folder / "cluster.yaml"
        path.write_text(json.dumps(data | changes))
        return path


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def until(true: Any, seconds: float) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


def words(*verb: object) -> list[str]:
    """A tinyattn command line."""
    return [sys.executable, "-m", "orchestrator.cli", *map(str, verb)]
