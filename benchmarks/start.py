"""Firetrail's start: opening stores after clean and unclean stops, and how soon it dispatches."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from benchmarks.load import BATCH, QUEUES, TOPIC, batch_body, message
from benchmarks.puts import DISPATCH_PATIENCE_S, Figures
from benchmarks.reads import percentiles
from firetrail import Batch, Store, StoreConfig

IDLE_S = 0.05
"""Pause before each put: a dispatcher that has seen nothing for so long waits to be woken."""


def fill(folder: str, size: int, settings: Mapping[str, str], kill: bool = False) -> Figures:
    """Write ``size`` bytes of messages; close the store unless the process is to be killed."""
    store = Store.open(folder, StoreConfig.from_mapping(settings).config)
    number = 0
    while store.log_range[1] < size:
        body = batch_body(number, BATCH)
        store.put_batch(Batch(TOPIC, body, queue_id=number // BATCH % QUEUES))
        number += BATCH
    if not store.wait_dispatched(DISPATCH_PATIENCE_S):
        raise RuntimeError("dispatch did not keep up")
    figures: Figures = {"messages": number, "bytes": store.log_range[1]}
    if not kill:
        store.close()
    return figures


def reopen(folder: str, kill: bool = False) -> Figures:
    """Measure the seconds to open the store and the bytes of log scanned; end as fill does."""
    started = perf_counter()
    store = Store.open(folder)
    seconds = perf_counter() - started
    report = store.recovery
    figures = {
        "seconds": seconds,
        "clean": report.clean,
        "bytes": store.log_range[1] - store.log_range[0],
        "scanned": report.end - report.scanned_from,
        "messages": sum(store.max_offset(TOPIC, queue_id) for queue_id in store.queues(TOPIC)),
    }
    if not kill:
        store.close()
    return figures


def lag(folder: str, count: int) -> Figures:
    """Seconds from the start of a put until its message can be read, in an idle store."""
    times = []
    readable = threading.Event()
    arrived_at = 0.0

    def note(arrivals: list[Any]) -> None:
        nonlocal arrived_at
        arrived_at = perf_counter()
        readable.set()

    with Store.open(folder) as store:
        store.on_arrival(note)
        for number in range(count):
            time.sleep(IDLE_S)
            readable.clear()
            started = perf_counter()
            store.put(message(number))
            if not readable.wait(DISPATCH_PATIENCE_S):
                raise RuntimeError(f"message {number} was not dispatched")
            times.append(arrived_at - started)
    return {"mean": sum(times) / len(times), "max": max(times)} | percentiles(times)
