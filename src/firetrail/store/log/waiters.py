"""Callers that wait until the log has reached a state up to an offset: synced, or replicated."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future
from collections import deque
from contextlib import suppress


class Waiter:
    """A caller that waits until the log is safe up to an offset: on disk, or on replicas."""

    __slots__ = ("durable", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.durable = False

    def tell(self, durable: bool) -> None:
        """End the wait: the log is safe up to the offset, or never will be."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread that is blocked until :meth:`tell` is called."""

    __slots__ = ("_released",)

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self._released = threading.Lock()
        self._released.acquire()

    def tell(self, durable: bool) -> None:
        self.durable = durable
        self._released.release()

    def wait(self, timeout_s: float) -> bool:
        """Block; return whether :meth:`tell` was called in time."""
        return self._released.acquire(timeout=timeout_s)


class LoopWaiter(Waiter):
    """A coroutine of an event loop."""

    __slots__ = ("future", "loop")

    def __init__(self, offset: int, loop: AbstractEventLoop) -> None:
        super().__init__(offset)
        self.loop = loop
        self.future: Future[bool | None] = loop.create_future()
        """Whether the log is safe up to the offset; None after a timeout."""

    def time_out(self) -> None:
        """Stop waiting; called in the event loop."""
        if not self.future.done():
            self.future.set_result(None)

    def tell(self, durable: bool) -> None:
        self.tell_all(self.loop, [self], durable)

    @staticmethod
    def tell_all(loop: AbstractEventLoop, waiters: list[LoopWaiter], durable: bool) -> None:
        """Notify several coroutines of a loop with one call."""
        with suppress(RuntimeError):  # the loop is closed, so no coroutine waits any more
            loop.call_soon_threadsafe(_resolve, waiters, durable)


def _resolve(waiters: list[LoopWaiter], durable: bool) -> None:
    for waiter in waiters:
        if not waiter.future.done():
            waiter.future.set_result(durable)


class Waiters:
    """The callers that wait for one kind of progress, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, waiter: Waiter) -> None:
        """Let a caller wait until :meth:`tell` is called with its offset or a later one."""
        self._waiting.append(waiter)

    def tell(self, reached: int, *, ended: bool = False) -> bool:
        """Notify those whose offset is reached; all of them if there is no more progress.

        Returns whether some still wait.
        """
        loops: dict[AbstractEventLoop, list[LoopWaiter]] = {}
        for _ in range(len(self._waiting)):
            try:
                waiter = self._waiting.popleft()
            except IndexError:
                break  # another thread notifies them at the same time
            if waiter.offset > reached and not ended:
                self._waiting.append(waiter)
            elif isinstance(waiter, LoopWaiter) and waiter.offset <= reached:
                loops.setdefault(waiter.loop, []).append(waiter)
            else:
                waiter.tell(waiter.offset <= reached)
        for loop, waiters in loops.items():
            LoopWaiter.tell_all(loop, waiters, True)
        return bool(self._waiting)
