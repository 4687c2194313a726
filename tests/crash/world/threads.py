"""Threads and a clock that a test controls: one thread runs at a time, and a seed decides which.

A :class:`World` replaces :mod:`threading` in the modules of the store. A thread yields where it
would block and, with some probability, at each of its calls to the file system; a seeded generator
chooses the next one. Time does not advance while any thread can run, and jumps to the next deadline
when none can. A run is therefore deterministic, never waits, and can be abandoned at any point:
:meth:`World.abandon` has the effect of killing the process.
"""

from __future__ import annotations

import queue
import random
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from firetrail.system import Clock, Condition, Event, Lock, Thread, Threads

A = TypeVar("A")
B = TypeVar("B")
START_MS = 1_800_000_000_000


class Abandoned(BaseException):
    """Raised in every thread of a world that was abandoned."""


class Deadlock(AssertionError):
    """A deadlock: no thread can run, and none waits for a deadline."""


class Task:
    """One thread; it runs while it holds the baton."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = threading.Lock()
        self.baton.acquire()
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.done = False
        self.thread: threading.Thread | None = None
        self.ident = threading.get_ident()
        """The thread that may use the world while it holds the baton."""
        self.owner: _Thread | None = None
        """The object that the store knows the thread by; None for the main thread."""


class World:
    """The threads of one simulated process and their clock."""

    def __init__(self, seed: int, preemption: float = 0.0, now: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.preemption = preemption
        self.now = now
        self.main = Task("main")
        self.current = self.main
        self.tasks = [self.main]
        self.abandoned = False
        self.failures: list[BaseException] = []
        """Exceptions that escaped from threads; a store's own threads let none escape."""

    # -- threads ------------------------------------------------------------------------------

    def spawn(self, target: Callable[[], object], name: str) -> Task:
        """Start a new thread, which runs when it is chosen."""
        task = Task(name)
        self.tasks = [other for other in self.tasks if not other.done]
        task.thread = threading.Thread(
            target=self._body, args=(task, target), name=name, daemon=True
        )
        self.tasks.append(task)
        task.thread.start()
        return task

    def _body(self, task: Task, target: Callable[[], object]) -> None:
        task.ident = threading.get_ident()
        task.baton.acquire()
        try:
            if not self.abandoned:
                target()
        except Abandoned:
            pass
        except BaseException as error:  # kept for the test, as an excepthook would
            self.failures.append(error)
        task.done = True
        if not self.abandoned:
            self._hand_over()

    def block(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let others run until ``ready()``, at most ``timeout`` seconds of this world's time."""
        if self.abandoned:
            raise Abandoned
        task = self.current
        assert task.ident == threading.get_ident(), (
            "only one thread of a test can use stepped threads; do without the mark stepped_threads"
        )
        if ready():
            return True
        if timeout is not None and timeout <= 0:
            return False
        task.ready = ready
        task.deadline = None if timeout is None else self.now + timeout
        self._give_way(task)
        task.ready = task.deadline = None
        return ready()

    def yield_point(self) -> None:
        """Let another thread run at this point, if the world chooses so."""
        if self.abandoned:
            raise Abandoned
        if self.preemption and self.random.random() < self.preemption:
            self._give_way(self.current)

    def _give_way(self, task: Task) -> None:
        self._hand_over()
        task.baton.acquire()
        if self.abandoned:
            raise Abandoned
        if task is self.main and self.failures and isinstance(self.failures[-1], Deadlock):
            raise self.failures[-1]

    def _hand_over(self) -> None:
        try:
            chosen = self._choose()
        except Deadlock as error:
            self.failures.append(error)
            chosen = self.main
        self.current = chosen
        chosen.baton.release()

    def _choose(self) -> Task:
        while True:
            runnable = [task for task in self.tasks if self._is_runnable(task)]
            if runnable:
                return self.random.choice(runnable) if len(runnable) > 1 else runnable[0]
            deadlines = [t.deadline for t in self.tasks if not t.done and t.deadline is not None]
            if not deadlines:
                waiting = [task.name for task in self.tasks if not task.done]
                raise Deadlock(f"all of {', '.join(waiting)} wait for ever")
            self.now = min(deadlines)

    def _is_runnable(self, task: Task) -> bool:
        if task.done:
            return False
        if task.ready is None or task.ready():
            return True
        return task.deadline is not None and task.deadline <= self.now

    def settle(self) -> None:
        """Let the other threads run until all of them wait; the clock does not advance."""
        others = [task for task in self.tasks if task is not self.current]
        self.block(lambda: not any(self._is_runnable(task) for task in others))

    def pause(self, seconds: float) -> None:
        """Let time pass for the caller while other threads run."""
        self.block(lambda: False, seconds)

    def abandon(self) -> None:
        """End every thread at its current point. Nothing of this world runs afterwards."""
        self.abandoned = True
        for task in self.tasks:
            if task.thread is not None:
                if not task.done:
                    task.baton.release()
                task.thread.join()

    @contextmanager
    def replaces_threading(self) -> Iterator[None]:
        """Have the store's modules use this world's threads, locks and events."""
        stand_ins = {_Threading: _Threading(self), _Queues: _Queues(self), _Executors: _Executors()}
        replaced = []
        for module, attribute, kind in _uses():
            replaced.append((module, attribute, getattr(module, attribute)))
            setattr(module, attribute, stand_ins[kind])
        try:
            yield
        finally:
            for module, attribute, value in replaced:
                setattr(module, attribute, value)


class WorldClock(Clock):
    """The time of a world; ``shift_ms`` moves the wall clock alone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.shift_ms = 0

    def time_ns(self) -> int:
        return (START_MS + self.shift_ms) * 1_000_000 + int(self._world.now * 1e9)

    def monotonic(self) -> float:
        return self._world.now

    def sleep_ms(self, pause_ms: int) -> None:
        self._world.pause(max(pause_ms / 1000, 1e-6))  # time passes even if the pause is 0


class WorldThreads(Threads):
    """The threads of a world, and their locks."""

    def __init__(self, world: World) -> None:
        self._world = world

    def thread(self, name: str, run: Callable[[], object]) -> Thread:
        return _Thread(self._world, run, name)

    def lock(self) -> Lock:
        return _Lock(self._world)

    def event(self) -> Event:
        return _Event(self._world)

    def condition(self) -> Condition:
        return _Condition(self._world)

    def map(
        self, name: str, width: int, function: Callable[[A], B], items: Sequence[A]
    ) -> Generator[B, None, None]:
        yield from map(function, items)

    def ahead(self, name: str, items: Iterable[A], limit: int) -> Generator[A, None, None]:
        yield from items


# -- replacements of the classes of threading -----------------------------------------------------


class _Threading:
    """Looks like the module ``threading`` to the modules of the store."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Thread(
        self, target: Callable[..., object], name: str, daemon: bool, args: tuple[Any, ...] = ()
    ) -> _Thread:
        return _Thread(self._world, partial(target, *args), name)

    def current_thread(self) -> _Thread | None:
        return self._world.current.owner

    def Event(self) -> _Event:
        return _Event(self._world)

    def Lock(self) -> _Lock:
        return _Lock(self._world)

    def Condition(self) -> _Condition:
        return _Condition(self._world)

    def get_ident(self) -> int:
        return threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated threading module has no {name} yet")


class _Thread:
    def __init__(self, world: World, target: Callable[[], object], name: str) -> None:
        self._world = world
        self._target = target
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._world.spawn(self._target, self._name)
        self._task.owner = self

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        self._world.block(lambda: not self.is_alive(), timeout)


class _Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._world.block(self.is_set, timeout)


class _Lock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False

    def locked(self) -> bool:
        return self._held

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._world.abandoned:
            raise Abandoned
        wait = 0 if not blocking else None if timeout < 0 else timeout
        if not self._world.block(lambda: not self._held, wait):
            return False
        self._held = True
        return True

    def release(self) -> None:
        self._held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition(_Lock):
    _rounds = 0

    def wait(self, timeout: float | None = None) -> bool:
        rounds = self._rounds
        return self.wait_for(lambda: self._rounds != rounds, timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        self.release()
        met = self._world.block(predicate, timeout)
        self.acquire()
        return met

    def notify_all(self) -> None:
        """Count the call: waiting threads check their conditions themselves."""
        self._rounds += 1


class _Queues:
    """Looks like the class ``queue.Queue``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self, maxsize: int = 0) -> _Queue:
        return _Queue(self._world, maxsize)


class _Queue:
    def __init__(self, world: World, maxsize: int) -> None:
        self._world = world
        self._maxsize = maxsize
        self._items: list[Any] = []

    def empty(self) -> bool:
        return not self._items

    def put(self, item: object) -> None:
        self._world.block(lambda: not self._maxsize or len(self._items) < self._maxsize)
        self._items.append(item)

    def get(self) -> Any:
        self._world.block(lambda: bool(self._items))
        return self._items.pop(0)


class _Executors:
    """A replacement of ``ThreadPoolExecutor`` that runs everything in the caller's thread."""

    def __call__(self, *_: object) -> _Executors:
        return self

    def __enter__(self) -> _Executors:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was left running."""

    def map(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        return map(function, arguments)


@contextmanager
def real_threads_afterwards() -> Iterator[None]:
    """Put :mod:`threading` back at the end, also if a simulation was not ended."""
    before = [(module, name, getattr(module, name)) for module, name, _ in _uses()]
    yield
    for module, name, value in before:
        setattr(module, name, value)


def _uses() -> list[tuple[ModuleType, str, type]]:
    """Return the names in the store's modules that have replacements; they are looked up once."""
    if not _USES:
        for name, module in list(sys.modules.items()):
            if name.startswith("firetrail."):
                for attribute, value in vars(module).items():
                    if id(value) in _STANDS_IN_FOR:
                        _USES.append((module, attribute, _STANDS_IN_FOR[id(value)]))
    return _USES


_USES: list[tuple[ModuleType, str, type]] = []
_STANDS_IN_FOR = {
    id(threading): _Threading,
    id(queue.Queue): _Queues,
    id(ThreadPoolExecutor): _Executors,
}
