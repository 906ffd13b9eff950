"""Signals that ask a command to end: Ctrl-C, SIGTERM, and SIGHUP of a terminal that is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from types import FrameType

from orchestrator.driver.context import Stop


def ending() -> list[signal.Signals]:
    """The signals; without SIGHUP where it is ignored: `nohup` started this process, or the
    terminal is gone already."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def end_by_exception() -> None:
    """From now on each of them raises KeyboardInterrupt."""
    for number in ending():
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        leave_terminal()
    raise KeyboardInterrupt


def leave_terminal() -> None:
    """Send output to /dev/null where it went to a terminal, which has closed: writing would fail.

    Further SIGHUPs are ignored, since kernel and shell may each send one.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        with contextlib.suppress(OSError):  # this process was started without it
            if stat.S_ISCHR(os.fstat(output).st_mode):
                os.dup2(nowhere, output)
    os.close(nowhere)


@contextlib.contextmanager
def signals_noted() -> Iterator[Stop]:
    """Set `stop.asked` on SIGINT, SIGTERM or SIGHUP; a second SIGINT or SIGTERM ends at once."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # nobody is impatient
            leave_terminal()
        elif stop.asked:
            stop.at_once = True
            raise KeyboardInterrupt
        stop.asked = True

    with handled(note):
        yield stop


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Handle the signals that end a process by another handler within the block.

    Restores the earlier handlers on exit, except where the block installed its own.
    """
    before = {number: signal.signal(number, handler) for number in ending()}
    try:
        yield
    finally:
        for number, old in before.items():
            if signal.getsignal(number) == handler:
                signal.signal(number, old)
