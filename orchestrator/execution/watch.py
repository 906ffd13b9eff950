"""Watch: what the driver of a batch looks after on Ray beside its trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.driver.context import Stop
from orchestrator.driver.driver import Driver
from orchestrator.driver.listeners import Listener
from orchestrator.execution.nodes import Nodes
from orchestrator.spec.messages import WorkerLost
from orchestrator.state.event_log import Past
from orchestrator.state.requests import requested
from orchestrator.state.workspace import STOP_ALL
from orchestrator.tracking.writer import TrackingWriter


class MachineListener(Listener):
    """Learns on which machines workers fail."""

    def __init__(self, nodes: Nodes, note: Callable[[str], None]) -> None:
        """Listen for a batch.

        Args:
            nodes: the machines.
            note: is told of a machine that is set aside.
        """
        self._nodes, self._note = nodes, note

    def evaluated(self, trial: str, record: Mapping[str, Any]) -> None:
        """A machine works."""
        self._nodes.worked(record["node_ip"])

    def paused(self, trial: str) -> None:
        """What was too small for the trial may fit others."""
        self._nodes.ended(trial)

    def lost(self, past: Past, lost: WorkerLost, goes_on: bool) -> None:
        """A machine may have failed; not where the trial fails everywhere."""
        if said := self._nodes.failed(past.name, lost.error):
            self._note(said)
        if not goes_on:
            self._nodes.exonerate(past.name)

    def ended(self, past: Past) -> None:
        """What was too small for the trial may fit others."""
        self._nodes.ended(past.name)


class Watch:
    """The looks that a driver takes once a second, at requests, store, processes and machines."""

    def __init__(
        self,
        driver: Driver,
        stop: Stop,
        nodes: Nodes,
        tracker: TrackingWriter,
        folder: Path,
        look_after_shared: Callable[[], None],
    ) -> None:
        """Watch over a batch.

        Args:
            driver: is told which trials a user wants to end.
            stop: is told if all are to end.
            nodes: the machines.
            tracker: shows others that this process lives.
            folder: the sweep's, where requests are.
            look_after_shared: keeps the processes alive that trials share.
        """
        self._driver, self._stop, self._nodes, self._tracker = driver, stop, nodes, tracker
        self._folder, self._look_after_shared = folder, look_after_shared

    def look(self, is_running: bool) -> None:
        """Look once.

        Args:
            is_running: whether a trial has a worker now.

        Raises:
            NoMachineError: nothing runs for long, though there are machines.
        """
        asked = requested(self._folder)
        self._stop.asked = self._stop.asked or STOP_ALL in asked
        self._driver.on_request(asked - {STOP_ALL})
        self._tracker.heartbeat()
        self._look_after_shared()
        self._nodes.refuse_standstill(is_running)
