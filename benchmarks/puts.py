"""Firetrail's puts: from the first one until queues and index hold everything."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Mapping
from time import perf_counter

from benchmarks.load import BATCH, PRODUCERS, QUEUES, TOPIC, batch_body, message
from firetrail import Batch, Store, StoreConfig

Figures = dict[str, float]
PutAll = Callable[[Store], None]
DISPATCH_PATIENCE_S = 600.0


def put(folder: str, count: int, warm: int, settings: Mapping[str, str]) -> Figures:
    """Measure single puts from one thread; each message is built just before its put."""

    def prepare(messages: int) -> PutAll:
        def put_all(store: Store) -> None:
            for number in range(messages):
                store.put(message(number))

        return put_all

    return _measured(folder, count, warm, settings, prepare)


def batch(folder: str, count: int, warm: int, settings: Mapping[str, str]) -> Figures:
    """Batches that were encoded before, as they come from a client."""

    def prepare(messages: int) -> PutAll:
        bodies = [
            batch_body(first, min(BATCH, messages - first)) for first in range(0, messages, BATCH)
        ]

        def put_all(store: Store) -> None:
            for number, body in enumerate(bodies):
                store.put_batch(Batch(TOPIC, body, queue_id=number % QUEUES))

        return put_all

    return _measured(folder, count, warm, settings, prepare)


def put_threads(folder: str, count: int, warm: int, settings: Mapping[str, str]) -> Figures:
    """Puts of PRODUCERS threads."""

    def prepare(messages: int) -> PutAll:
        def put_share(store: Store, first: int) -> None:
            for number in range(first, messages, PRODUCERS):
                store.put(message(number))

        def put_all(store: Store) -> None:
            threads = [
                threading.Thread(target=put_share, args=(store, first))
                for first in range(PRODUCERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return put_all

    return _measured(folder, count, warm, settings, prepare)


def put_tasks(folder: str, count: int, warm: int, settings: Mapping[str, str]) -> Figures:
    """Puts of PRODUCERS tasks of one event loop."""

    def prepare(messages: int) -> PutAll:
        async def put_share(store: Store, first: int) -> None:
            for number in range(first, messages, PRODUCERS):
                await store.put_async(message(number))

        async def put_shares(store: Store) -> None:
            await asyncio.gather(*(put_share(store, first) for first in range(PRODUCERS)))

        return lambda store: asyncio.run(put_shares(store))

    return _measured(folder, count, warm, settings, prepare)


def _measured(
    folder: str,
    count: int,
    warm: int,
    settings: Mapping[str, str],
    prepare: Callable[[int], PutAll],
) -> Figures:
    """Return the figures of ``count`` messages, after ``warm`` messages in a temporary store."""
    _timed(f"{folder}.warmup", warm, settings, prepare)
    shutil.rmtree(f"{folder}.warmup")
    return _timed(folder, count, settings, prepare)


def _timed(
    folder: str, count: int, settings: Mapping[str, str], prepare: Callable[[int], PutAll]
) -> Figures:
    started = perf_counter()
    put_all = prepare(count)
    encoding = perf_counter() - started
    with Store.open(folder, StoreConfig.from_mapping(settings).config) as store:
        started = perf_counter()
        put_all(store)
        putting = perf_counter() - started
        require_dispatched(store, count)
        total = perf_counter() - started
    return {
        "per_second_put": count / putting,
        "per_second": count / total,
        "per_second_with_encoding": count / (total + encoding),
    }


def require_dispatched(store: Store, count: int) -> None:
    """Return once the queues hold ``count`` messages; anything else is no measurement."""
    in_time = store.wait_dispatched(DISPATCH_PATIENCE_S)
    there = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES))
    if not in_time or there != count:
        raise RuntimeError(f"{there} of {count} messages are in the queues")
