"""Listeners: what hears of a batch's events once they are logged and decided upon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestrator.reporting.view import LineView, LiveView
from orchestrator.spec.batch import TrialBatch
from orchestrator.spec.messages import WorkerLost
from orchestrator.state.checkpoint_store import CheckpointStore
from orchestrator.state.event_log import Past
from orchestrator.tracking.writer import TrackingWriter


class Listener:
    """Hears what happens to the trials of a batch; this one does nothing."""

    def caught_up(self, past: Past) -> None:
        """A new driver found a trial of an earlier one like this."""

    def started(self, past: Past) -> None:
        """A worker has a trial, for the first time or again."""

    def evaluated(self, trial: str, record: Mapping[str, Any]) -> None:
        """A trial came to an evaluation; `record` is what the event log keeps of it."""

    def paused(self, trial: str) -> None:
        """A trial waits at a rung."""

    def lost(self, past: Past, lost: WorkerLost, goes_on: bool) -> None:
        """A trial lost its worker; if it does not go on, it has ended by that."""

    def ended(self, past: Past) -> None:
        """A trial has ended."""


class MlflowListener(Listener):
    """Writes a run for each trial."""

    def __init__(
        self, tracker: TrackingWriter, batch: TrialBatch, checkpoints: CheckpointStore
    ) -> None:
        self._tracker, self._batch, self._checkpoints = tracker, batch, checkpoints

    def caught_up(self, past: Past) -> None:
        """Send what the store lacks of a trial."""
        if self._tracker.knows(past.name, past.evaluations, past.outcome):
            return
        self.started(past)
        for record in past.results:
            if math.isfinite(record.get("score", math.nan)):
                self.evaluated(past.name, record)
        if past.outcome is not None:
            self.ended(past)

    def started(self, past: Past) -> None:
        """Open the trial's run, or go on in the one it has."""
        config = self._batch.base.with_overrides(past.params)
        tags = self._batch.tags
        identity = config.identity(tags["data_fingerprint"], tags["commit"])
        self._tracker.start_trial(
            past.name,
            config=config,
            params=past.params,
            tags={**tags, "identity": identity},
            kind=self._batch.kind,
        )

    def evaluated(self, trial: str, record: Mapping[str, Any]) -> None:
        """Log the evaluation."""
        self._tracker.log_evaluation(trial, record)

    def ended(self, past: Past) -> None:
        """Close the run, with the trial's best adapter."""
        assert past.outcome is not None
        adapter = self._checkpoints.adapter(past.name, past.best_index)
        self._tracker.end_trial(past.name, past.outcome, adapter=adapter, error=past.error)


class CheckpointListener(Listener):
    """Removes what a trial that has ended left to go on from."""

    def __init__(self, checkpoints: CheckpointStore) -> None:
        self._checkpoints = checkpoints
        self._left = checkpoints.trials_with_states()
        """Trials with states of earlier drivers."""

    def caught_up(self, past: Past) -> None:
        """Remove what an earlier driver had no time to remove."""
        if past.outcome is not None and past.name in self._left:
            self.ended(past)

    def ended(self, past: Past) -> None:
        """Remove states, and all adapters but the best."""
        self._checkpoints.clear(past.name, past.best_index)


class ViewListener(Listener):
    """Shows what happens."""

    def __init__(self, view: LineView | LiveView) -> None:
        self._view = view

    def caught_up(self, past: Past) -> None:
        """Count a trial of an earlier driver."""
        self._view.progress.replay(past)

    def started(self, past: Past) -> None:
        """Show that it starts."""
        self._view.started(past.name, past.params)

    def evaluated(self, trial: str, record: Mapping[str, Any]) -> None:
        """Show its score."""
        self._view.evaluated(trial, record)

    def paused(self, trial: str) -> None:
        """Show that it waits."""
        self._view.paused(trial)

    def lost(self, past: Past, lost: WorkerLost, goes_on: bool) -> None:
        """Say from where a trial goes on."""
        if goes_on:
            place, done = lost.node, past.evaluations
            self._view.note(
                f"{past.name} lost its worker{f' on {place}' if place else ''}: goes on after "
                f"{f'evaluation {done}' if done else 'its start'}"
            )

    def ended(self, past: Past) -> None:
        """Show how it ended."""
        assert past.outcome is not None
        note = past.error.splitlines()[-1] if past.error else ""
        self._view.finished(past.name, past.outcome, note)
