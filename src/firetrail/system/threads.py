"""Background threads, and what they use to wait for each other.

The threads of the store and their locks come from a :class:`Threads`. A test replaces it to decide
when each thread runs, or to make all of them late.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from types import TracebackType
from typing import NamedTuple, Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Thread(Protocol):
    """A thread, as in :mod:`threading`."""

    def start(self) -> None: ...

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


class Held(Protocol):
    """A lock or another resource that is held during a ``with`` statement."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class Lock(Held, Protocol):
    """A lock, as in :mod:`threading`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def locked(self) -> bool: ...


class Event(Protocol):
    """An event, as in :mod:`threading`."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Condition(Held, Protocol):
    """A condition, as in :mod:`threading`."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Threads:
    """Creates threads of this process, which do not keep it from ending, and their locks."""

    def thread(self, name: str, run: Callable[[], object]) -> Thread:
        """Return a thread that calls ``run`` when it is started.

        Args:
            name: The name of the thread; those of Firetrail begin with ``firetrail-``.
            run: The function that the thread runs.
        """
        return threading.Thread(target=run, name=name, daemon=True)

    def lock(self) -> Lock:
        """Return a lock."""
        return threading.Lock()

    def event(self) -> Event:
        """Return an event."""
        return threading.Event()

    def condition(self) -> Condition:
        """Return a condition with a lock of its own."""
        return threading.Condition()

    def map(
        self, name: str, width: int, function: Callable[[A], B], items: Sequence[A]
    ) -> Generator[B, None, None]:
        """Call ``function`` for each item, and yield the results in the order of the items.

        Args:
            name: The beginning of the threads' names.
            width: How many calls run at the same time.
            function: The function to call; its exceptions are raised here.
            items: The arguments of the calls.
        """
        with ThreadPoolExecutor(width, name) as pool:
            yield from pool.map(function, items)

    def ahead(self, name: str, items: Iterable[A], limit: int) -> Generator[A, None, None]:
        """Yield the items, which another thread computes in advance.

        Args:
            name: The name of the thread.
            items: The items; exceptions of their iterator are raised here.
            limit: The number of items that wait at most.
        """
        computed: Queue[A | _LastItem] = Queue(limit)
        ended = threading.Event()

        def compute() -> None:
            error = None
            try:
                for item in items:
                    computed.put(item)
                    if ended.is_set():
                        return
            except BaseException as failure:
                error = failure
            computed.put(_LastItem(error))

        thread = self.thread(name, compute)
        thread.start()
        try:
            while not isinstance(item := computed.get(), _LastItem):
                yield item
            if item.error is not None:
                raise item.error
        finally:
            ended.set()
            while thread.is_alive():
                while not computed.empty():
                    computed.get()
                thread.join(0.001)


class _LastItem(NamedTuple):
    """The end of the items, and the exception of their iterator."""

    error: BaseException | None
