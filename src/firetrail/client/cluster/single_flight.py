"""Limits of what many concurrent calls of one client ask of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from firetrail.errors import ClientClosedError

IN_FLIGHT_MAX = 256
"""Sends that wait for one broker at the same time. More would only wait in the connection, while
the time limits of all of them run."""

T = TypeVar("T")


class SharedLookups(Generic[T]):
    """Lookups by name, of which one per name runs at a time: concurrent callers share its outcome.

    A lookup runs in a task of its own, so that a cancelled caller does not take it from the others.

    Args:
        spawn: starts a task that ends with the client.
        owner: the public class that uses it, for error messages.
    """

    def __init__(
        self, spawn: Callable[[Coroutine[Any, Any, T]], asyncio.Task[T]], owner: str
    ) -> None:
        self._spawn = spawn
        self._owner = owner
        self._running: dict[str, asyncio.Task[T]] = {}

    async def get(self, name: str, look_up: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the lookup that runs, or of a new one."""
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = self._spawn(look_up())
            task.add_done_callback(lambda done: self._ended(name, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller and caller.cancelling()):
                raise ClientClosedError(f"{self._owner} was closed during the call") from None
            raise

    def _ended(self, name: str, task: asyncio.Task[T]) -> None:
        del self._running[name]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, in case all callers were cancelled


class Slots:
    """At most ``IN_FLIGHT_MAX`` sends per broker at a time; others wait in the order of arrival.

    An address is forgotten when its last send ends, because brokers come and go.
    """

    def __init__(self) -> None:
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, address: str) -> AbstractAsyncContextManager[None]:
        """Return the context in which a request to a broker may be sent."""
        slots = self._slots.get(address)
        if slots is None:
            slots = self._slots[address] = asyncio.Semaphore(IN_FLIGHT_MAX)
        return slots
