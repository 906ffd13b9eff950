"""RackLauncher: machines reached by ssh, started and stopped as one Ray cluster."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from cluster.agents import Agents, Answer
from cluster.checks import (
    differences,
    refuse_clocks,
    refuse_failed,
    refuse_faults,
    refuse_others,
    refuse_storage,
    refuse_to_change,
    refuse_versions,
)
from cluster.config import Cluster, Node, Rack, address_of
from cluster.firewall import advice
from cluster.install import lock_of, script
from cluster.launcher import Connection, Status
from cluster.services import database_folder, ray_environment, token_file
from tinyattn.errors import StorageError, TinyAttnError, UsageError


class RackLauncher:
    """Launcher of machines reached by ssh; this process runs on their head."""

    shell = None  # verbs on sweeps are typed here

    def __init__(self, cluster: Cluster, launch: Rack, say: Callable[[str], None]) -> None:
        self.cluster, self.say = cluster, say
        self.agents = Agents(cluster, launch, say)

    # ---- verbs ----

    def up(self) -> None:
        """Start Ray on every machine on which it does not run.

        Raises:
            UsageError: a machine does not answer, or does not fit the others.
            StorageError: the storage folder is not the same everywhere.
            TinyAttnError: `environment.install` failed.
        """
        token = self.token()
        self.probe()
        answers = [self._up(self.cluster.head, token)]
        refuse_faults(answers)
        answers += self._on(self.cluster.nodes, lambda node: self._up(node, token))
        for answer in answers:
            self.say(f"{answer.node.host}: {answer.fault or answer.said['state']}")
        refuse_faults(answers)

    def status(self) -> list[Status]:
        """Return whether the services of each machine run."""
        self._refuse_elsewhere()
        request = {"name": self.cluster.name}
        answers = self._on(
            self.cluster.machines, lambda node: self.agents.ask(node, "status", request)
        )
        return [_status(answer) for answer in answers]

    def down(self) -> None:
        """End the services that `up` started, on every machine that answers.

        Raises:
            TinyAttnError: a machine did not answer; the others are down.
        """
        self._refuse_elsewhere()
        request = {"name": self.cluster.name}
        answers = []
        # The head last: without it Ray's nodes would wait until they are killed.
        for machines in (self.cluster.nodes, [self.cluster.head]):
            answers += self._on(machines, lambda node: self.agents.ask(node, "down", request))
        for answer in answers:
            ended = "ended" if answer.said.get("ended") else "was not running"
            self.say(f"{answer.node.host}: {answer.fault or ended}")
        lost = [answer.node.host for answer in answers if answer.fault]
        if lost:
            raise TinyAttnError(
                f"{', '.join(lost)} did not answer and may still run Ray; `tinyattn cluster down` "
                "again when they are back"
            )

    def connection(self) -> Connection:
        """Return the address of the head's Ray, and the file with its token.

        Raises:
            UsageError: this is not the cluster's head, or the cluster is not up.
        """
        name = self.cluster.name
        if not token_file(name).is_file():
            raise UsageError(
                f"cluster '{name}' is not up on this machine; on its head, "
                f"{self.cluster.head.host}, run `tinyattn cluster up` with the same file"
            )
        return Connection(self.cluster.address, ray_environment(name))

    def firewall(self) -> str:
        """Return the rule that lets in the file's machines alone."""
        sources = [address_of(machine.host) for machine in self.cluster.machines]
        return advice(self.cluster.port, sources)

    def manifests(self) -> list[dict[str, Any]]:
        """Return nothing: there are no pods."""
        return []

    def probe(self) -> None:
        """Check all machines: that they answer, share the storage, and have the head's versions.

        Machines without the head's versions get them first, by `environment.install`.

        Raises:
            UsageError, StorageError, TinyAttnError: as `up`.
        """
        self._refuse_elsewhere()
        for machine in self.cluster.machines:
            address_of(machine.host)  # UsageError: unknown
        folder = self.cluster.folder
        if folder is None:  # an object store: checked once Ray's processes run, which have its keys
            said = self._said("")
        else:
            said = self._said_of(folder)
        refuse_versions(said)
        refuse_clocks(said)

    def _said(self, word: str) -> list[Answer]:
        """Return all machines' answers to `probe`, with a test file in the storage folder.

        Machines without the head's environment get it first, by `environment.install`.
        """
        ask = partial(self._probe, word=word)
        said = self._on(self.cluster.machines, ask)
        again = {answer.node.host: answer for answer in self._on(self.install(said), ask)}
        said = [again.get(answer.node.host, answer) for answer in said]
        refuse_faults(said)
        refuse_others(said, self.cluster.name)
        return said

    def _said_of(self, folder: Path) -> list[Answer]:
        """Return all machines' answers to `probe`.

        Raises:
            StorageError: they do not share the storage folder.
        """
        with self._word(folder) as (word, answers):
            said = self._said(word)
            refuse_storage(said, folder)
            seen = {path.name for path in answers()}
        silent = [a.node.host for a in said if _mark(word, a.node) not in seen]
        if silent:
            raise StorageError(
                f"{folder}: what {', '.join(silent)} wrote there did not appear on the head; "
                "choose a folder that all machines share"
            )
        return said

    def install(self, said: Sequence[Answer]) -> list[Node]:
        """Run `environment.install` on machines that lack the head's environment.

        Returns:
            The machines on which it was installed.

        Raises:
            UsageError: a machine has a fault that installing cannot mend, or its environment
                differs and is in use.
            TinyAttnError: the command failed on some machines; it ran on all of them.
        """
        command = self.cluster.environment.install
        if command is None or said[0].fault:
            return []
        refuse_faults([answer for answer in said if not answer.lacks_environment])
        others = [a for a in said[1:] if a.lacks_environment or differences(a.said, said[0].said)]
        refuse_to_change(others)
        for answer in others:
            self.say(f"{answer.node.host}: installing")
        text = script(command, lock_of(Path(self.agents.python)))
        nodes = [answer.node for answer in others]
        refuse_failed(self._on(nodes, lambda node: self.agents.install(node, text)))
        return nodes

    # ---- one machine ----

    def _probe(self, node: Node, word: str) -> Answer:
        request = {
            "storage": self.cluster.storage,
            "word": word,
            "answer": _mark(word, node),
            "up": self.request_of(node, ""),
        }
        return self.agents.ask(node, "probe", request)

    def _refuse_elsewhere(self) -> None:
        """Raise UsageError unless this machine is the head."""
        head = address_of(self.cluster.head.host)
        own = {found.address for all_of in psutil.net_if_addrs().values() for found in all_of}
        if head not in own:
            raise UsageError(
                f"this machine is not the head of {self.cluster.name}; type the command on the "
                f"head, {self.cluster.head.host}"
            )

    def _up(self, node: Node, token: str) -> Answer:
        return self.agents.ask(node, "up", self.request_of(node, token))

    def request_of(self, node: Node, token: str) -> dict[str, Any]:
        """Return the request for a node's agent; `probe` takes it with an empty token."""
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

    def _on(self, nodes: Sequence[Node], ask: Callable[[Node], Answer]) -> list[Answer]:
        if not nodes:
            return []
        with ThreadPoolExecutor(len(nodes)) as pool:
            return list(pool.map(ask, nodes))

    def token(self) -> str:
        """Return the token of the running cluster; a new one if it is down."""
        with suppress(OSError):
            return token_file(self.cluster.name).read_text()
        return secrets.token_hex(32)

    @contextmanager
    def _word(self, storage: Path) -> Iterator[tuple[str, Callable[[], list[Path]]]]:
        """Keep a test file in the storage folder during the block.

        Yields:
            Its content, and a function that lists the answers that agents wrote beside it.
        """
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
            os.listdir(storage)  # makes NFS refresh its cache
            return list(storage.glob(f"{word}-*"))

        try:
            yield word, answers
        finally:
            for path in [storage / word, *storage.glob(f"{word}-*")]:
                path.unlink(missing_ok=True)


def _status(answer: Answer) -> Status:
    """Return the status of a machine by its agent's answer."""
    is_up = bool(answer.said.get("alive"))
    state = answer.fault or ("up" if is_up else "down")
    return Status(answer.node.host, is_up, state, [] if is_up else answer.said.get("log", []))


def _mark(word: str, node: Node) -> str:
    return f"{word}-{node.host.replace(':', '_')}"
