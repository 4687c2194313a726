"""The cost of planning with many queues, in the process that plans. Figures are seconds."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.load import QUEUES
from benchmarks.puts import DISPATCH_PATIENCE_S, Figures
from benchmarks.spark_jobs import timed
from firetrail import Message, Store
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.source.source_options import parse_options
from firetrail.system import allow_many_files

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def spark_fill_queues(folder: str, topics: int) -> Figures:
    """Write a store of many topics with few messages each."""
    allow_many_files()
    with Store.open(folder) as store:
        for number in range(2 * topics * QUEUES):
            topic, queue_id = divmod(number % (topics * QUEUES), QUEUES)
            store.put(Message(f"topic{topic:05}", b"x" * 100, queue_id=queue_id))
        if not store.wait_dispatched(DISPATCH_PATIENCE_S):
            raise RuntimeError("dispatch did not keep up")
    return {"queues": topics * QUEUES}


def spark_planning(folder: str, rounds: int) -> Figures:
    """Seconds to plan a read of all queues, and of one topic, from the disk and from memory."""
    everything = {"path": folder}
    one = everything | {"subscribe": "topic00000"}
    figures: Figures = {}
    for name, options in (("all", everything), ("one", one)):
        cold = []
        for _ in range(rounds + 1):
            forget(folder)
            cold.append(timed(plan_batch, parse_options(options)))
        warm = [timed(plan_batch, parse_options(options)) for _ in range(rounds + 1)]
        figures |= {f"{name}_cold": min(cold), f"{name}_warm": min(warm)}
    return figures


def forget(folder: str) -> None:
    """Evict as much of a folder from memory as the system allows."""
    os.sync()
    try:
        _DROP_CACHES.write_text("3")
    except OSError:  # not root: the files at least, if not their names
        for path in Path(folder).rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
