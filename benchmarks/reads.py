"""Firetrail's reads: sequential gets, key queries, the scan of a log file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from benchmarks.load import PULL, TOPIC
from benchmarks.puts import Figures
from firetrail import Store
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import scan
from firetrail.format.names import COMMIT_LOG

ROWS_PER_STEP = 4096
"""Records noted at a time, as dispatch does it: their columns stay in the processor's cache."""


def get(folder: str, rounds: int, slices: bool) -> Figures:
    """Read all queues in pulls; return the best of some rounds after one to warm up."""
    with Store.open(folder) as store:
        messages = _read_all(store, slices)
        best = min(_seconds_to_read(store, slices, messages) for _ in range(rounds))
    return {"messages": messages, "per_second": messages / best}


def _seconds_to_read(store: Store, slices: bool, messages: int) -> float:
    started = perf_counter()
    if _read_all(store, slices) != messages:
        raise RuntimeError("two rounds over the same queues found different numbers of messages")
    return perf_counter() - started


def _read_all(store: Store, slices: bool) -> int:
    messages = 0
    for queue_id in store.queues(TOPIC):
        offset = store.min_offset(TOPIC, queue_id)
        end = store.max_offset(TOPIC, queue_id)
        while offset < end:
            result = store.get(TOPIC, queue_id, offset, PULL)
            messages += len(result.buffers) if slices else result.count
            offset = max(offset + 1, result.next_offset)
    return messages


def query(folder: str, keys_file: str) -> Figures:
    """Measure the seconds of one query per key, after a round of all of them to warm up."""
    keys = Path(keys_file).read_text(encoding="utf-8").split()
    with Store.open(folder) as store:
        for key in keys:
            store.query(TOPIC, key)
        times = []
        found = 0
        for key in keys:
            started = perf_counter()
            messages = store.query(TOPIC, key)
            times.append(perf_counter() - started)
            found += len(messages)
    if found != len(keys):
        raise RuntimeError(f"{len(keys)} queries for keys of one message each found {found}")
    return {"mean": sum(times) / len(times)} | percentiles(times)


def percentiles(times: list[float]) -> Figures:
    """Median and 99th percentile, taken as the Java peer does."""
    ordered = sorted(times)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)]}


def scan_and_copy(folder: str, rounds: int) -> Figures:
    """Bytes a second of a scan with checksums, of one without, and of copying as many bytes.

    The rounds alternate, each on warm memory; the best of each counts.
    """
    path = min((Path(folder) / COMMIT_LOG).iterdir())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        size, records = _scanned(mapping, Check.BODY)
        copied_from, copied_to = (memoryview(bytearray(b"x") * size) for _ in range(2))
        seconds: dict[str, list[float]] = {"crc": [], "plain": [], "memcpy": []}
        for _ in range(rounds):
            for name, check in (("crc", Check.BODY), ("plain", Check.NONE)):
                started = perf_counter()
                done = _scanned(mapping, check)
                seconds[name].append(perf_counter() - started)
                if done != (size, records):
                    raise RuntimeError(f"{path}: scanned {done}, then {(size, records)}")
            started = perf_counter()
            copied_to[:] = copied_from
            seconds["memcpy"].append(perf_counter() - started)
    return {name: size / min(times) for name, times in seconds.items()} | {"size": size}


def _scanned(mapping: mmap.mmap, check: Check) -> tuple[int, int]:
    """Return the numbers of bytes and records."""
    at = records = 0
    for rows, at in _steps(mapping, check):  # noqa: B007
        records += rows
    return at, records


def _steps(mapping: mmap.mmap, check: Check) -> Iterator[tuple[int, int]]:
    table = Columns(ROWS_PER_STEP).table
    at, stop = 0, int(Stop.FULL)
    with memoryview(mapping) as view:
        while stop == Stop.FULL:
            rows, at, stop = scan(view, at, len(view), 0, table, check)
            yield rows, at
    if Stop(stop).is_damage:
        raise RuntimeError(f"no good record at {at}: {Stop(stop).name}")
