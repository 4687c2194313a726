"""The event loop of the synchronous clients, in a thread that exists while one of them is open."""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from firetrail.errors import ClientClosedError

T = TypeVar("T")


class OpenClient(Protocol):
    """A client that is open."""

    def close(self) -> None:
        """Close it."""


class LoopThread:
    """Runs coroutines for the threads of a program. All its methods can be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[int, OpenClient] = {}  # open clients, by their identity
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def enter(self, user: OpenClient) -> bool:
        """Start the thread if it does not run, and keep it until the client leaves.

        Return whether the client was not there before.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="firetrail-client", daemon=True
                )
                self._thread.start()
            is_new = id(user) not in self._users
            self._users[id(user)] = user
            return is_new

    def leave(self, user: OpenClient) -> None:
        """Let the thread end if no other client needs it."""
        with self._lock:
            if self._users.pop(id(user), None) is None or self._users or self._loop is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread, self._thread, self._loop = self._thread, None, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the thread; raise ClientClosedError if that is not possible."""
        loop = self._loop
        if loop is None or self._thread is threading.current_thread():
            work.close()
            why = "its event loop has ended" if loop is None else "it would wait for itself"
            raise ClientClosedError(f"a synchronous client cannot be used here: {why}")
        return asyncio.run_coroutine_threadsafe(work, loop)

    def close_all(self) -> None:
        """Close all clients; called when the interpreter exits."""
        for user in list(self._users.values()):
            user.close()

    def forget(self) -> None:
        """Forget the thread, which does not exist in a child process."""
        self.__init__()  # type: ignore[misc]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


LOOP_THREAD = LoopThread()
"""The thread of this process."""

atexit.register(LOOP_THREAD.close_all)
os.register_at_fork(after_in_child=LOOP_THREAD.forget)
