"""The background tasks of a session."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from firetrail.pace.periodic import GuardedStep, every

END_S = 5.0
"""The time that a close waits for tasks that ignore their cancellation."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks that run until they end or are cancelled together."""

    def __init__(self, owner: str) -> None:
        """Start without tasks; ``owner`` is a name for log messages."""
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], *, watched: bool = False) -> asyncio.Task[T]:
        """Run a coroutine in a task; log its failure unless ``watched`` is set."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not watched:
            task.add_done_callback(self._log_failure)
        return task

    async def repeat(self, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        """Call an action again and again, after a pause each time; log its failures."""
        trouble = f"{action.__qualname__} failed; retrying in {seconds:g} s"
        step = GuardedStep(action, trouble, _log, level=logging.WARNING, expected=Exception)
        await every(seconds, step)

    async def cancel(self) -> None:
        """Cancel all tasks but the current one, and wait until they have ended.

        If this is cancelled, only the wait is cut short.
        """
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        late = (await asyncio.wait(tasks, timeout=END_S))[1] if tasks else ()
        for task in late:
            _log.warning(
                "%s: a task still runs %g s after its cancellation: %s", self._owner, END_S, task
            )

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            _log.error("%s: %s failed", self._owner, task.get_name(), exc_info=error)
