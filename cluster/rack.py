"""Machines reached by ssh become one Ray cluster, and stop being one."""

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
from pathlib import Path
from typing import Any

import psutil

from cluster.config import Cluster, Node, Rack, address_of
from cluster.services import database_folder, token_file
from tinyattn.errors import StorageError, TinyAttnError, UsageError

ANSWER_SECONDS = 60.0
MOST_SKEW = 60.0
"""Seconds that a node's clock may differ: times in MLflow and leases of tokens use it."""


@dataclass(frozen=True)
class Answer:
    """What a node said, or why it did not."""

    node: Node
    said: dict[str, Any]
    fault: str = ""


class RackCluster:
    """A cluster file's machines. The head is the machine that this runs on."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self.cluster, self.say = cluster, say

    # ---- verbs ----

    def up(self) -> None:
        """Have Ray running on every machine.

        Raises:
            UsageError: a machine does not answer, or does not fit the others.
            StorageError: the storage folder is not the same everywhere.
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
            TinyAttnError: some did not answer; the others are down.
        """
        self._refuse_elsewhere()
        request = {"name": self.cluster.name}
        machines = [*self.cluster.nodes, self.cluster.head]
        answers = self._on(machines, lambda node: self._ask(node, "down", request))
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
        """Refuse machines that would fail later: silent, of other versions, without the storage."""
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
        """What all machines say of themselves and of a word in the storage folder."""
        said = self._on(self.cluster.machines, lambda node: self._probe(node, word))
        _refuse(said)
        _refuse_others(said, self.cluster.name)
        return said

    def _said_of(self, folder: Path) -> list[Answer]:
        """What all machines say; StorageError: they do not share the folder."""
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

    # ---- one machine ----

    def _probe(self, node: Node, word: str) -> Answer:
        request = {
            "storage": self.cluster.storage,
            "word": word,
            "answer": _mark(word, node),
            "up": self.request_of(node, ""),
        }
        return self._ask(node, "probe", request)

    def _refuse_elsewhere(self) -> None:
        """Raise UsageError where this machine is not the head."""
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
        """What the agent of a node is told."""
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
        """Have an agent do something; what goes wrong is in the answer."""
        here = node is self.cluster.head
        words = [sys.executable, "-m", "cluster.node", action] if here else self._ssh(node, action)
        try:
            done = subprocess.run(
                words, input=json.dumps(request), capture_output=True, text=True,
                timeout=ANSWER_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Answer(node, {}, f"no answer within {ANSWER_SECONDS:.0f} s")
        except FileNotFoundError:
            return Answer(node, {}, "there is no ssh on this machine")
        if done.returncode != 0:
            return Answer(node, {}, self._fault(done))
        try:
            said = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            return Answer(node, {}, f"its agent said {done.stdout[-80:]!r}, which is no answer")
        return Answer(node, said, said.get("fault", ""))

    def _ssh(self, node: Node, action: str) -> list[str]:
        launch = self.cluster.launch
        assert isinstance(launch, Rack)
        words = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
        words += ["-o", "StrictHostKeyChecking=yes"]
        if launch.key is not None:
            words += ["-i", str(launch.key.expanduser()), "-o", "IdentitiesOnly=yes"]
        if launch.known_hosts is not None:
            words += ["-o", f"UserKnownHostsFile={launch.known_hosts.expanduser()}"]
        if launch.ssh_port is not None:
            words += ["-p", str(launch.ssh_port)]
        if launch.user is not None:
            words += ["-l", launch.user]
        there = [str(self.cluster.environment.python or sys.executable), "-m", "cluster.node"]
        return [*words, "--", node.host, shlex.join([*there, action])]

    def _fault(self, done: subprocess.CompletedProcess[str]) -> str:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        if done.returncode == 255:
            return f"ssh failed: {last}"
        python = self.cluster.environment.python or sys.executable
        if done.returncode == 127 or "No module named" in last:
            return f"{python} with tinyattn is not there ({last}); see environment.python"
        return f"its agent failed: {last}"

    def _on(self, nodes: Sequence[Node], ask: Callable[[Node], Answer]) -> list[Answer]:
        if not nodes:
            return []
        with ThreadPoolExecutor(len(nodes)) as pool:
            return list(pool.map(ask, nodes))

    def token(self) -> str:
        """The token of the cluster that runs, or a fresh one."""
        with suppress(OSError):
            return token_file(self.cluster.name).read_text()
        return secrets.token_hex(32)

    @contextmanager
    def _word(self, storage: Path) -> Iterator[tuple[str, Callable[[], list[Path]]]]:
        """A file in the storage folder for the length of the block, and the answers to it."""
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
            "another file or head; give this one another name, or end that one by `tinyattn "
            "cluster down` with its own file"
        )


def _refuse_storage(answers: Sequence[Answer], storage: Path) -> None:
    faults = [f"  {a.node.host}: it {a.said['storage']}" for a in answers if a.said["storage"]]
    if faults:
        raise StorageError(
            f"{storage} is not shared by all machines; mount it there, or choose another:\n"
            + "\n".join(faults)
        )


def _refuse_versions(answers: Sequence[Answer]) -> None:
    head = answers[0].said
    faults = []
    for answer in answers[1:]:
        said = answer.said
        if said["python"].split(".")[:2] != head["python"].split(".")[:2]:
            faults.append(f"  {answer.node.host}: Python {said['python']}, not {head['python']}")
        faults += [
            f"  {answer.node.host}: {package} {said['versions'][package]}, not {here}"
            for package, here in head["versions"].items()
            if said["versions"][package] != here
        ]
    if faults:
        raise UsageError(
            "these machines have other versions than the head; install from the same "
            "constraints.txt everywhere:\n" + "\n".join(faults)
        )


def _refuse_clocks(answers: Sequence[Answer]) -> None:
    now = time.time()
    skews = {answer.node.host: answer.said["time"] - now for answer in answers}
    faults = [f"  {host}: {skew:+.0f} s" for host, skew in skews.items() if abs(skew) > MOST_SKEW]
    if faults:
        raise UsageError(
            f"clocks differ by more than {MOST_SKEW:.0f} s from the head's; set them (ntp):\n"
            + "\n".join(faults)
        )
