"""Trials of one process that go through its PLM together.

Each trial has a thread and a Trainer, which know nothing of the others. Where a step needs the PLM,
the Trainer hands its rows to the Pool and waits. As soon as all trials that train have done so, one
of their threads runs the rows of all in one pass, forward and backward, and each gets its own loss
and its own gradients: what a trial computes does not depend on who its neighbours are. Rows that
share no pass are run by their own thread; a trial by itself never waits.

Optimizer, clipping, schedule, dropout masks, the look for NaN and the checkpoints stay with each
trial. What a trial does with the PLM beside that, as evaluating, it does within `alone()`.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tinyattn.errors import is_out_of_memory, is_thread_spoilt
from tinyattn.model import AdaptedModel
from tinyattn.stream import Stream


@dataclass(eq=False)
class Request:
    """Rows of one trial that are to go through the PLM and back."""

    model: AdaptedModel
    name: str
    """The trial's adapter in `model`."""
    stream: Stream | None
    """The rows; None: they cannot share a pass with others."""
    loss_of: Callable[[Tensor], Tensor]
    """Logits [B, num_outputs] to the rows' summed loss."""
    share: float
    """What the summed loss is multiplied with before it goes back."""
    row_keys: Tensor
    """As `Adapter.drop_by` takes them."""
    alone: Callable[[], Tensor]
    """Forward and backward without others; returns the rows' summed loss."""
    thread: threading.Thread = field(default_factory=threading.current_thread, init=False)
    """Whose it is."""
    loss: Tensor | None = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    is_single: bool = field(default=False, init=False)
    """Whether it shares no pass, so that its own thread runs it."""

    @property
    def is_told(self) -> bool:
        """Whether it has its loss, or an error in its place, or is to run by itself."""
        return self.loss is not None or self.error is not None or self.is_single


class Pool:
    """Where the trials of a process meet."""

    def __init__(self, most_tokens: int = sys.maxsize) -> None:
        """Start without trials.

        Args:
            most_tokens: of a pass that several share; one that does not fit halves it.
        """
        self._changed = threading.Condition()
        self._taken = False
        """Whether a thread runs the PLM."""
        self._asking = 0
        """Threads that wait to have it alone; they come first, or they would wait for ever."""
        self._training = 0
        """Trials that are taking steps."""
        self._waiting: list[Request] = []
        self._most_tokens = most_tokens
        self._spoilt: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Those that can compile no kernels any more: others run what is shared. Not by their
        numbers, which come again."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block nobody else runs the PLM, or changes who is attached to it."""
        with self._changed:
            self._asking += 1
            try:
                self._changed.wait_for(lambda: not self._taken)
            finally:
                self._asking -= 1
            self._taken = True
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Around the steps of one trial: the others wait for its rows."""
        with self._changed:
            self._training += 1
        try:
            yield
        finally:
            with self._changed:
                self._training -= 1
                self._changed.notify_all()

    def loss(self, request: Request) -> Tensor:
        """Run a trial's rows, with those of the others if there are any.

        Returns:
            The rows' summed loss, detached; the adapter's parameters have their gradients.
        """
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: request.is_told or self._may_run(request))
            except BaseException:  # Ctrl-C: nobody must run what nobody waits for
                if request in self._waiting:
                    self._waiting.remove(request)
                raise
            together: list[Request] = []
            if not request.is_told:
                self._taken, together, self._waiting = True, self._waiting, []
        if together:
            try:
                self._run(together)
            except BaseException as error:  # the others must hear of it too, or wait for ever
                for other in together:
                    other.error = other.error or (None if other.is_told else error)
                raise
            finally:
                self._leave()
        if request.is_single:
            with self.alone():
                return _run_single(request)
        if request.error is not None:
            raise request.error
        assert request.loss is not None
        return request.loss

    def _may_run(self, request: Request) -> bool:
        """Whether all who train have brought their rows, nobody else has the PLM, and the thread of
        this request is as good as any."""
        everybody = len(self._waiting) >= self._training
        bad = {other.thread in self._spoilt for other in self._waiting}
        fit = request.thread not in self._spoilt or bad == {True}
        return everybody and fit and not self._taken and not self._asking

    def _leave(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()

    def _run(self, requests: Sequence[Request]) -> None:
        """Give each request its loss, or have its own thread run it, where it shares no pass.

        Those of one model that begin at one layer share passes.
        """
        kinds: dict[tuple[int, int], list[Request]] = {}
        for request in requests:
            if request.stream is None:
                request.is_single = True
            else:
                kind = id(request.model), request.stream.start
                kinds.setdefault(kind, []).append(request)
        for own in kinds.values():
            for together in _fitting(own, self._most_tokens):
                self._run_joined(together)

    def _run_joined(self, requests: list[Request]) -> None:
        """One pass for all; where that fails, passes for halves of them.

        An error of a single request is its own thread's, which may have to be left.
        """
        if len(requests) == 1:
            requests[0].is_single = True
            return
        before: list[_Before] = []
        try:
            before += [_Before(request) for request in requests]
            losses = _pass(requests)
        except Exception as failed:
            # Of such errors of a thread only the first is a lack of memory.
            again = is_thread_spoilt(failed) and threading.current_thread() in self._spoilt
            if is_out_of_memory(failed) and not again:
                self._most_tokens = sum(_tokens(request) for request in requests) // 2
            error: Exception | None = failed
        else:
            error = None
            for request, loss in zip(requests, losses, strict=True):
                request.loss = loss
        if error is None:
            return
        error.__traceback__ = None  # it holds on to all that its frames hold
        for old in before:
            old.restore()
        if is_thread_spoilt(error):
            self._spoilt.add(threading.current_thread())
            for request in requests:
                request.is_single = True
            return
        self._run_joined(requests[: len(requests) // 2])
        self._run_joined(requests[len(requests) // 2 :])


def _fitting(requests: list[Request], most: int) -> list[list[Request]]:
    """Requests that go together, in passes of at most so many tokens."""
    found: list[list[Request]] = []
    room = 0
    for request in requests:
        if not found or _tokens(request) > room:
            found.append([])
            room = most
        found[-1].append(request)
        room -= _tokens(request)
    return found


def _tokens(request: Request) -> int:
    assert request.stream is not None
    return request.stream.tokens


def _run_single(request: Request) -> Tensor:
    try:
        return request.alone()
    except BaseException as error:
        if is_out_of_memory(error):
            error.__traceback__ = None  # its frames hold what the neighbours need
        raise


def _pass(requests: list[Request]) -> list[Tensor]:
    """Forward and backward of all; their summed losses."""
    model = requests[0].model
    model.ready_to_train()
    for request in requests:
        model.adapter(request.name).drop_by(request.row_keys)
    logits = model.run_streams([(r.name, r.stream) for r in requests])  # type: ignore[misc]
    losses = [r.loss_of(found) for r, found in zip(requests, logits, strict=True)]
    shares = [loss * r.share for r, loss in zip(requests, losses, strict=True)]
    torch.stack(shares).sum().backward()
    return [loss.detach() for loss in losses]


class _Before:
    """What a pass changes in a trial, to undo a pass that failed half-way."""

    def __init__(self, request: Request) -> None:
        self._adapter = request.model.adapter(request.name)
        self._gradients = [
            None if p.grad is None else p.grad.clone() for p in self._adapter.parameters()
        ]

    def restore(self) -> None:
        for parameter, gradient in zip(self._adapter.parameters(), self._gradients, strict=True):
            parameter.grad = gradient
