"""Lookups that concurrent calls of one client share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from firetrail.errors import ClientClosedError

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Lookups by name, of which one per name runs at a time: concurrent callers share its outcome.

    A lookup runs in a task of its own, so that a cancelled caller does not take it from the others.

    Args:
        spawn: Starts a task that ends with the client.
        owner: The public class that uses it, for error messages.
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
