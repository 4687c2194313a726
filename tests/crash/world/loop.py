"""An event loop in a simulated world: its time is the world's, its threads are the world's."""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from tests.crash.world.threads import World

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class _Waiting(selectors.SelectSelector):
    """Waits for other threads and for the time; there are no sockets."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.woken = False

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout == 0:
            self._world.yield_point()
        else:
            self._world.block(lambda: self.woken, timeout)
        self.woken = False
        return []


class WorldLoop(asyncio.SelectorEventLoop):
    """Runs in the world's main thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting = _Waiting(world)
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._world.now

    def _write_to_self(self) -> None:
        self._waiting.woken = True

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Run each call in a thread of the world; an abandoned thread never answers."""
        future: asyncio.Future[Result] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon_threadsafe(_settle, future, None, error)
            else:
                self.call_soon_threadsafe(_settle, future, result, None)

        self._world.spawn(work, "executor")
        return future

    def leave(self) -> None:
        """Drop all tasks that were under way, as a kill does."""
        self.set_exception_handler(lambda loop, context: None)
        for task in asyncio.all_tasks(self):
            task.cancel()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
