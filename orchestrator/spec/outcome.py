"""Outcome: how a trial ended, and the MLflow run status that agrees with it."""

from __future__ import annotations

from enum import StrEnum

BY_USER = "stopped by the user"
"""Error text of a trial with the outcome `stopped` that `sweep stop --trial` ended."""


def is_by_user(error: str | None) -> bool:
    """Whether a trial's error text says that the user stopped it, so that it is no candidate."""
    return error == BY_USER


class Outcome(StrEnum):
    """The end of a trial. Every finished MLflow run carries one as the tag `tinyattn.outcome`."""

    COMPLETED = "completed"
    """Ran all its evaluations."""
    STOPPED = "stopped"
    """Stopped by ASHA at a rung, never promoted from one, or stopped by the user."""
    DIVERGED = "diverged"
    """Its loss became NaN or infinite."""
    OUT_OF_MEMORY = "out_of_memory"
    """The device or host had too little memory for it."""
    FAILED = "failed"
    """An error of another kind; the run's tag `tinyattn.error` holds its message."""
    INTERRUPTED = "interrupted"
    """The sweep ended while the trial ran (Ctrl-C, `sweep stop`, a store that went away, a driver
    that died): no verdict on the trial."""

    @property
    def run_status(self) -> str:
        """MLflow run status that agrees with this outcome."""
        return {
            Outcome.COMPLETED: "FINISHED",
            Outcome.STOPPED: "FINISHED",
            Outcome.INTERRUPTED: "KILLED",
        }.get(self, "FAILED")
