"""Cancels a coroutine at its n-th suspension, and checks what it leaves."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, Generic, TypeVar

from tests.client.clusters import until
from tests.helpers import PATIENCE_S

T = TypeVar("T")
SUSPENSIONS_MAX = 200
"""More suspensions than any call of a client has; a test with more would never end."""


class Moment(Enum):
    """The moment at which a waiting task is cancelled."""

    EARLY = "before it has come"
    LATE = "when it has come, and the task has not seen it yet"


class Interrupted(Generic[T]):
    """Awaits something, and cancels the current task at one of the suspensions."""

    def __init__(self, work: Coroutine[Any, Any, T], at: int, moment: Moment) -> None:
        self._work = work
        self._at = at
        self._moment = moment
        self.was_interrupted = False

    def __await__(self) -> Generator[Any, None, T]:
        steps = self._work.__await__()
        suspensions = 0
        thrown: BaseException | None = None
        while True:
            try:
                future = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            suspensions += 1
            if suspensions == self._at:
                self.was_interrupted = True
                self._cancel(future)
            thrown = None
            try:
                yield future
            except BaseException as error:
                thrown = error

    def _cancel(self, future: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._moment is Moment.LATE and future is not None:
            future.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


class Cancelled(Exception):
    """A call was cancelled."""


async def interrupted(work: Coroutine[Any, Any, T], at: int, moment: Moment) -> tuple[bool, T]:
    """Return whether the work was interrupted, and its result; raise Cancelled without one."""
    interruption = Interrupted(work, at, moment)

    async def run() -> T:
        return await interruption

    task = asyncio.ensure_future(run())
    await asyncio.wait({task})
    if task.cancelled():
        assert interruption.was_interrupted, "another task cancelled it"
        raise Cancelled
    return interruption.was_interrupted, task.result()


async def at_every_await(attempt: Callable[[int, Moment], Awaitable[bool]]) -> int:
    """Cancel attempts at await 1, 2, … until one has no more awaits; return how many it has.

    An attempt returns whether it was interrupted.
    """
    most = 0
    for moment in Moment:
        for at in range(1, SUSPENSIONS_MAX):
            if not await attempt(at, moment):
                most = max(most, at - 1)
                break
        else:
            raise AssertionError(f"more than {SUSPENSIONS_MAX} suspensions")
    return most


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Check that no task or connection is left at the end, or a moment later."""
    tasks, sockets = asyncio.all_tasks(), _sockets()
    yield
    try:
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: asyncio.all_tasks() <= tasks and _sockets() <= sockets)
    except TimeoutError:
        left = asyncio.all_tasks() - tasks
        raise AssertionError(f"left: {left}, {_sockets() - sockets} sockets") from None


def _sockets() -> int:
    """Return the number of open sockets, of both ends: the broker is in the same process."""
    count = 0
    for file in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing itself, or a socket that was just closed
            count += os.readlink(f"/proc/self/fd/{file}").startswith("socket:")
    return count
