"""An event loop for code that is not asynchronous itself but uses the asyncio client."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

R = TypeVar("R")


class Loop:
    """An event loop in a thread of its own, which runs on between the calls of its user."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="firetrail-wire", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop, wait for its result, and raise its error here."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
