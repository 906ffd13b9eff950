"""Watch: the regular checks of a batch on Ray: requests of users, machines, shared processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.driver.context import Stop
from orchestrator.driver.driver import Driver
from orchestrator.driver.listeners import Listener
from orchestrator.execution.nodes import Nodes
from orchestrator.spec.messages import WorkerLost
from orchestrator.spec.result import Result
from orchestrator.spec.trial import Trial
from orchestrator.state.requests import requested
from orchestrator.state.workspace import STOP_ALL
from orchestrator.tracking.sweep_runs import SweepRuns


class MachineListener(Listener):
    """The driver's listener that tells Nodes on which machines workers fail."""

    def __init__(self, nodes: Nodes, note: Callable[[str], None]) -> None:
        """Listen to a batch.

        Args:
            nodes: the machines.
            note: called with a message when a machine is set aside.
        """
        self._nodes, self._note = nodes, note

    def evaluated(self, name: str, result: Result) -> None:
        """Note that a machine works."""
        assert result.node_ip is not None
        self._nodes.worked(result.node_ip)

    def paused(self, name: str) -> None:
        """Give machines that were too small for this trial back to other trials."""
        self._nodes.ended(name)

    def lost(self, trial: Trial, lost: WorkerLost, goes_on: bool) -> None:
        """Note a failure of a machine; a trial that failed on several is to blame itself."""
        if said := self._nodes.failed(trial.name, lost.error):
            self._note(said)
        if not goes_on:
            self._nodes.exonerate(trial.name)

    def ended(self, trial: Trial) -> None:
        """Give machines that were too small for this trial back to other trials."""
        self._nodes.ended(trial.name)


class Watch:
    """The checks that run once a second beside a batch's trials."""

    def __init__(
        self,
        driver: Driver,
        stop: Stop,
        nodes: Nodes,
        runs: SweepRuns,
        folder: Path,
        look_after_shared: Callable[[], None],
    ) -> None:
        """Watch a batch.

        Args:
            driver: hears which trials a user wants to end.
            stop: set when the whole batch is to end.
            nodes: the machines.
            runs: the sweep's, with the heartbeat that shows others that this process is alive.
            folder: the sweep's folder, in which requests are files.
            look_after_shared: starts the shared processes that a machine lacks.
        """
        self._driver, self._stop, self._nodes, self._runs = driver, stop, nodes, runs
        self._folder, self._look_after_shared = folder, look_after_shared

    def look(self, is_running: bool) -> None:
        """Run all checks once.

        Args:
            is_running: whether a trial has a worker now.

        Raises:
            NoMachineError: as `Nodes.refuse_standstill`.
        """
        asked = requested(self._folder)
        self._stop.asked = self._stop.asked or STOP_ALL in asked
        self._driver.on_request(asked - {STOP_ALL})
        self._runs.heartbeat()
        self._look_after_shared()
        self._nodes.refuse_standstill(is_running)
