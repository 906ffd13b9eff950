"""Agents: requests of a cluster's head to its machines, by ssh, and what the machines answer.

On the head itself the agent is a process without ssh.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.config import Cluster, Node, Rack
from cluster.install import INSTALL_SECONDS, READS_STDIN, fault_of

ANSWER_SECONDS = 60.0
"""How long a node's agent may take to answer."""


@dataclass(frozen=True)
class Answer:
    """The answer of a node's agent, or the reason why there is none."""

    node: Node
    said: dict[str, Any]
    fault: str = ""
    lacks_environment: bool = False
    """Whether interpreter or packages are missing, which `environment.install` may provide."""


class Agents:
    """The agents of a cluster's machines, asked one at a time."""

    def __init__(self, cluster: Cluster, launch: Rack, say: Callable[[str], None]) -> None:
        self.cluster, self.launch, self.say = cluster, launch, say

    def ask(self, node: Node, action: str, request: Mapping[str, Any]) -> Answer:
        """Let a node's agent run an action; return its answer, with the fault if it failed."""
        here = node is self.cluster.head
        words = [sys.executable if here else self.python, "-P", "-m", "cluster.node", action]
        try:
            done = subprocess.run(
                words if here else self._ssh(node, shlex.join(words)), input=json.dumps(request),
                capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Answer(node, {}, f"no answer within {ANSWER_SECONDS:.0f} s")
        except FileNotFoundError:
            return Answer(node, {}, "there is no ssh on this machine")
        if done.returncode != 0:
            return Answer(node, {}, self._fault(done), _lacks_environment(done))
        try:
            said = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            return Answer(node, {}, f"its agent said {done.stdout[-80:]!r}, which is no answer")
        return Answer(node, said, said.get("fault", ""))

    @property
    def python(self) -> str:
        """The interpreter with tinyattn on the nodes."""
        return str(self.cluster.environment.python or sys.executable)

    def _ssh(self, node: Node, command: str) -> list[str]:
        """Return the ssh command line that runs a command on a node."""
        launch = self.launch
        words = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
        words += ["-o", "StrictHostKeyChecking=yes", "-o", "ServerAliveInterval=15"]
        if launch.key is not None:
            words += ["-i", str(launch.key.expanduser()), "-o", "IdentitiesOnly=yes"]
        if launch.known_hosts is not None:
            words += ["-o", f"UserKnownHostsFile={launch.known_hosts.expanduser()}"]
        if launch.ssh_port is not None:
            words += ["-p", str(launch.ssh_port)]
        if launch.user is not None:
            words += ["-l", launch.user]
        return [*words, "--", node.host, command]

    def _fault(self, done: subprocess.CompletedProcess[str]) -> str:
        last = _last_line(done)
        if done.returncode == 255:
            return f"ssh failed: {last}"
        if _lacks_environment(done):
            return (
                f"{self.python} with tinyattn is not there ({last}); see environment.python, and "
                "environment.install, which can make it"
            )
        return f"its agent failed: {last}"

    def install(self, node: Node, text: str) -> Answer:
        """Run a script of `environment.install` on a machine; its answer has the fault, if any."""
        try:
            done = subprocess.run(
                self._ssh(node, READS_STDIN), input=text, capture_output=True, text=True,
                errors="replace", timeout=2 * INSTALL_SECONDS + ANSWER_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Answer(node, {}, "no answer since it began")
        fault = fault_of(done)
        if not fault:
            self.say(f"{node.host}: installed")
        return Answer(node, {}, fault)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def _lacks_environment(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether an agent did not start because its interpreter or a package is missing."""
    return done.returncode == 127 or (
        done.returncode == 1 and "No module named" in _last_line(done)
    )
