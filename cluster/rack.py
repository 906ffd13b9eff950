"""RackCluster: machines reached by ssh, started and stopped as one Ray cluster."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from cluster.config import Cluster, Node, Rack, address_of
from cluster.install import INSTALL_SECONDS, READS_STDIN, fault_of, lock_of, script
from cluster.services import database_folder, token_file
from tinyattn.errors import StorageError, TinyAttnError, UsageError

ANSWER_SECONDS = 60.0
MOST_SKEW = 60.0
"""Largest difference between clocks, in seconds: MLflow's times and Ray's tokens depend on it."""


@dataclass(frozen=True)
class Answer:
    """A node's answer, or why there is none."""

    node: Node
    said: dict[str, Any]
    fault: str = ""
    lacks_environment: bool = False
    """Whether interpreter or packages are missing, which installing may mend."""


class RackCluster:
    """The cluster of a cluster file's machines; this process runs on its head."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self.cluster, self.say = cluster, say

    # ---- verbs ----

    def up(self) -> None:
        """Start Ray on every machine where it does not run.

        Raises:
            UsageError: a machine does not answer, or does not fit the others.
            StorageError: the storage folder is not the same everywhere.
            TinyAttnError: `environment.install` failed.
        """
        token = self.token()
        self.probe()
        answers = [self._up(self.cluster.head, token)]
        _refuse(answers)
        answers += self._on(self.cluster.nodes, lambda node: self._up(node, token))
        for answer in answers:
            self.say(f"{answer.node.host}: {answer.fault or answer.said['state']}")
        _refuse(answers)

    def status(self) -> list[Answer]:
        """Ask every machine whether its services run."""
        self._refuse_elsewhere()
        request = {"name": self.cluster.name}
        return self._on(self.cluster.machines, lambda node: self._ask(node, "status", request))

    def down(self) -> None:
        """End what `up` started, on every machine that answers.

        Raises:
            TinyAttnError: a machine did not answer; the others are down.
        """
        self._refuse_elsewhere()
        request = {"name": self.cluster.name}
        answers = []
        # Ray's nodes take leave of the head; where that has gone first they wait until killed.
        for machines in (self.cluster.nodes, [self.cluster.head]):
            answers += self._on(machines, lambda node: self._ask(node, "down", request))
        for answer in answers:
            ended = "ended" if answer.said.get("ended") else "was not running"
            self.say(f"{answer.node.host}: {answer.fault or ended}")
        lost = [answer.node.host for answer in answers if answer.fault]
        if lost:
            raise TinyAttnError(
                f"{', '.join(lost)} did not answer and may still run Ray; `tinyattn cluster down` "
                "again when they are back"
            )

    def probe(self) -> None:
        """Refuse machines that do not answer, have other versions or do not see the storage.

        Machines without the head's versions get them first, by `environment.install`.
        """
        self._refuse_elsewhere()
        for machine in self.cluster.machines:
            address_of(machine.host)  # UsageError: unknown
        folder = self.cluster.folder
        if folder is None:  # an object store: Ray's processes try it, with their environment
            said = self._said("")
        else:
            said = self._said_of(folder)
        _refuse_versions(said)
        _refuse_clocks(said)

    def _said(self, word: str) -> list[Answer]:
        """Return all machines' answers to `probe`, with a test file in the storage folder.

        Machines without the head's environment get it first, by `environment.install`.
        """
        ask = partial(self._probe, word=word)
        said = self._on(self.cluster.machines, ask)
        again = {answer.node.host: answer for answer in self._on(self._install(said), ask)}
        said = [again.get(answer.node.host, answer) for answer in said]
        _refuse(said)
        _refuse_others(said, self.cluster.name)
        return said

    def _said_of(self, folder: Path) -> list[Answer]:
        """Return all machines' answers to `probe`; StorageError if they do not share a folder."""
        with self._word(folder) as (word, answers):
            said = self._said(word)
            _refuse_storage(said, folder)
            seen = {path.name for path in answers()}
        silent = [a.node.host for a in said if _mark(word, a.node) not in seen]
        if silent:
            raise StorageError(
                f"{folder}: what {', '.join(silent)} wrote there did not appear on the head; "
                "choose a folder that all machines share"
            )
        return said

    def _install(self, said: Sequence[Answer]) -> list[Node]:
        """Run `environment.install` on machines that lack the head's environment.

        Returns:
            The machines on which it was installed.

        Raises:
            UsageError: a machine has a fault that installing cannot mend, or its other environment
                is in use.
            TinyAttnError: the command failed on a machine; it was run on the others.
        """
        command = self.cluster.environment.install
        if command is None or said[0].fault:
            return []
        _refuse([answer for answer in said if not answer.lacks_environment])
        others = [a for a in said[1:] if a.lacks_environment or _differences(a.said, said[0].said)]
        _refuse_to_change(others)
        for answer in others:
            self.say(f"{answer.node.host}: installing")
        text = script(command, lock_of(Path(self._python)))
        nodes = [answer.node for answer in others]
        _refuse_failed(self._on(nodes, lambda node: self._install_on(node, text)))
        return nodes

    # ---- one machine ----

    def _install_on(self, node: Node, text: str) -> Answer:
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

    def _probe(self, node: Node, word: str) -> Answer:
        request = {
            "storage": self.cluster.storage,
            "word": word,
            "answer": _mark(word, node),
            "up": self.request_of(node, ""),
        }
        return self._ask(node, "probe", request)

    def _refuse_elsewhere(self) -> None:
        """Raise UsageError unless this machine is the head."""
        head = address_of(self.cluster.head.host)
        own = {found.address for all_of in psutil.net_if_addrs().values() for found in all_of}
        if head not in own:
            raise UsageError(
                f"the head of {self.cluster.name} is {self.cluster.head.host}, and this is another "
                "machine; type it there"
            )

    def _up(self, node: Node, token: str) -> Answer:
        return self._ask(node, "up", self.request_of(node, token))

    def request_of(self, node: Node, token: str) -> dict[str, Any]:
        """Return the request for a node's agent."""
        return {
            "name": self.cluster.name,
            "host": address_of(node.host),
            "head": address_of(self.cluster.head.host),
            "is_head": node is self.cluster.head,
            "port": self.cluster.port,
            "cpus": node.cpus,
            "gpus": node.gpus,
            "variables": self.cluster.environment.variables,
            "mlflow": self._mlflow(),
            "token": token,
        }

    def _mlflow(self) -> dict[str, Any] | None:
        if self.cluster.mlflow is None:
            return None
        place = self.cluster.folder or database_folder(self.cluster.name)
        return {"port": self.cluster.mlflow.port, "artifacts": str(place / "artifacts")}

    def _ask(self, node: Node, action: str, request: Mapping[str, Any]) -> Answer:
        """Have a node's agent run an action; errors are in the answer."""
        here = node is self.cluster.head
        words = [sys.executable if here else self._python, "-P", "-m", "cluster.node", action]
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
    def _python(self) -> str:
        """The interpreter with tinyattn on the nodes."""
        return str(self.cluster.environment.python or sys.executable)

    def _ssh(self, node: Node, command: str) -> list[str]:
        """Return the ssh command line that runs a command on a node."""
        launch = self.cluster.launch
        assert isinstance(launch, Rack)
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
                f"{self._python} with tinyattn is not there ({last}); see environment.python, and "
                "environment.install, which can make it"
            )
        return f"its agent failed: {last}"

    def _on(self, nodes: Sequence[Node], ask: Callable[[Node], Answer]) -> list[Answer]:
        if not nodes:
            return []
        with ThreadPoolExecutor(len(nodes)) as pool:
            return list(pool.map(ask, nodes))

    def token(self) -> str:
        """Return the token of the running cluster, or a new one."""
        with suppress(OSError):
            return token_file(self.cluster.name).read_text()
        return secrets.token_hex(32)

    @contextmanager
    def _word(self, storage: Path) -> Iterator[tuple[str, Callable[[], list[Path]]]]:
        """Yield the content of a test file in the storage folder, and how to list its answers."""
        word = f".tinyattn-{secrets.token_hex(8)}"
        try:
            storage.mkdir(parents=True, exist_ok=True)
            (storage / word).write_text(word)
        except OSError as error:
            raise StorageError(
                f"{storage}: cannot be used: {error.strerror}; choose a folder that all machines "
                "share and may write to"
            ) from None

        def answers() -> list[Path]:
            os.listdir(storage)  # NFS: look again
            return list(storage.glob(f"{word}-*"))

        try:
            yield word, answers
        finally:
            for path in [storage / word, *storage.glob(f"{word}-*")]:
                path.unlink(missing_ok=True)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def _lacks_environment(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether an agent did not start because its interpreter or a package is missing."""
    return done.returncode == 127 or (
        done.returncode == 1 and "No module named" in _last_line(done)
    )


def _mark(word: str, node: Node) -> str:
    return f"{word}-{node.host.replace(':', '_')}"


def _refuse(answers: Sequence[Answer]) -> None:
    """Raise UsageError that names every machine that did not answer."""
    lost = [f"  {answer.node.host}: {answer.fault}" for answer in answers if answer.fault]
    if lost:
        raise UsageError(
            "these machines do not answer as they should; mend them, or leave them out of the "
            "cluster file:\n" + "\n".join(lost)
        )


def _refuse_others(answers: Sequence[Answer], name: str) -> None:
    others = [answer.node.host for answer in answers if answer.said["state"] == "other"]
    if others:
        raise UsageError(
            f"{', '.join(others)}: a cluster called '{name}' runs there that was started from "
            "another file or head; give this one another name, or end that one by a `cluster down` "
            "with its own file"
        )


def _refuse_storage(answers: Sequence[Answer], storage: Path) -> None:
    faults = [f"  {a.node.host}: it {a.said['storage']}" for a in answers if a.said["storage"]]
    if faults:
        raise StorageError(
            f"{storage} is not shared by all machines; mount it there, or choose another:\n"
            + "\n".join(faults)
        )


def _refuse_to_change(others: Sequence[Answer]) -> None:
    """Raise UsageError if Ray runs in an environment that installing would change."""
    used = [a.node.host for a in others if a.said.get("state", "down") != "down"]
    if used:
        raise UsageError(
            f"{', '.join(used)}: a cluster runs there with other versions than the head's; end it "
            "by `tinyattn cluster down`, then `up` installs the head's"
        )


def _refuse_failed(answers: Sequence[Answer]) -> None:
    failed = [f"  {answer.node.host}: {answer.fault}" for answer in answers if answer.fault]
    if failed:
        raise TinyAttnError(
            "environment.install failed on these machines; no cluster was started:\n"
            + "\n".join(failed)
        )


def _refuse_versions(answers: Sequence[Answer]) -> None:
    head = answers[0].said
    faults = [
        f"  {answer.node.host}: {difference}"
        for answer in answers[1:]
        for difference in _differences(answer.said, head)
    ]
    if faults:
        raise UsageError(
            "these machines have other versions than the head; install the same tinyattn from the "
            "same constraints.txt everywhere, or see environment.install:\n" + "\n".join(faults)
        )


def _differences(said: Mapping[str, Any], head: Mapping[str, Any]) -> list[str]:
    """Return how an environment differs from the head's."""
    found = []
    if said["python"].split(".")[:2] != head["python"].split(".")[:2]:
        found.append(f"Python {said['python']}, not {head['python']}")
    if (code := said.get("code")) != (here := head.get("code")):  # the version may be the same
        found.append(f"tinyattn's code {code}, not {here}")
    return found + [
        f"{package} {said['versions'][package]}, not {here}"
        for package, here in head["versions"].items()
        if said["versions"][package] != here
    ]


def _refuse_clocks(answers: Sequence[Answer]) -> None:
    now = time.time()
    skews = {answer.node.host: answer.said["time"] - now for answer in answers}
    faults = [f"  {host}: {skew:+.0f} s" for host, skew in skews.items() if abs(skew) > MOST_SKEW]
    if faults:
        raise UsageError(
            f"clocks differ by more than {MOST_SKEW:.0f} s from the head's; set them (ntp):\n"
            + "\n".join(faults)
        )
