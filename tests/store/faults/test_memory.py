"""A process that is temporarily out of memory: puts are refused, and resume afterwards."""

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE_S, bodies, eventually, put_all, small_config

from firetrail import FlushFailedError, FlushMode, Message, Store
from firetrail.store.log import flusher
from firetrail.store.log.commit_log import CommitLog
from firetrail.store.queues.consume_queue import ConsumeQueue
from firetrail.store.retention.housekeeper import Housekeeper


@contextmanager
def no_mappings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refuse)
        yield


def test_at_the_next_file_of_the_log(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(root, small_config()) as store:
        put_all(store, [b"first"])
        taken = 0
        with no_mappings(monkeypatch), pytest.raises(MemoryError, match="no memory to map"):
            for _ in range(50):
                store.put(Message("T", b"x" * 500))
                taken += 1
        put_all(store, [b"last"])
        assert bodies(store) == [b"first", *[b"x" * 500] * taken, b"last"]


def test_dispatch_waits_for_memory_at_the_next_file_of_a_queue(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(root, small_config(log=1 << 16, units=4)) as store:
        put_all(store, [b"%d" % number for number in range(4)])
        with no_mappings(monkeypatch):
            store.put(Message("T", b"4"))
            eventually(lambda: "no memory to map" in store.refusal)
        eventually(lambda: store.try_put(Message("T", b"last")).ok)
        assert store.wait_dispatched(PATIENCE_S)
        assert bodies(store) == [b"0", b"1", b"2", b"3", b"4", b"last"]


@pytest.mark.parametrize("mode", FlushMode)
def test_background_threads_survive_a_memory_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, mode: FlushMode
) -> None:
    """Neither the flusher nor the housekeeper gives up, because no sync has failed."""
    monkeypatch.setattr(flusher, "OUT_OF_MEMORY_PAUSE_MS", 1)
    failures = []

    def hungry(self: Any, *_: Any, **__: Any) -> None:
        failures.append(type(self))
        raise MemoryError

    config = small_config(
        flush=mode,
        sync_flush_timeout_ms=500,
        flush_interval_ms=10,
        flush_least_pages=0,
        consume_queue_flush_interval_ms=10,
    )
    with Store.open(root, config) as store:
        store.put(Message("T", b"first", wait_for_flush=False))
        store.flush()  # which has no time limit
        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "flush", hungry)
            patch.setattr(Housekeeper, "round", hungry)
            store.try_put(Message("T", b"second"))
            eventually(lambda: {CommitLog, Housekeeper} <= set(failures))
        store.put(Message("T", b"last", wait_for_flush=False))
        store.flush()
        assert store.wait_dispatched(PATIENCE_S)
        assert bodies(store) == [b"first", b"second", b"last"]


def test_between_a_unit_and_the_note_that_it_is_not_synced(root: Path) -> None:
    """The unit existed at the next attempt, so its queue was never synced."""

    class Hungry(set[ConsumeQueue]):
        def __init__(self) -> None:
            super().__init__()
            self.refused = 0

        def add(self, queue: ConsumeQueue) -> None:
            if not self.refused:
                self.refused += 1
                raise MemoryError
            super().add(queue)

    config = small_config(consume_queue_flush_interval_ms=3_600_000)
    with Store.open(root, config) as store:
        queues = store._engine.queues
        queues.dirty = dirty = Hungry()
        store.put(Message("T", b"x"))
        assert store.wait_dispatched(PATIENCE_S)
        assert dirty.refused and dirty == {queues.open("T", 0)}


def test_a_memory_error_at_a_clean_stop(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(root, small_config())
    put_all(store, [b"x"])

    def hungry(self: Housekeeper, is_over: object = None) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Housekeeper, "flush_derived", hungry)
        with pytest.raises(FlushFailedError):
            store.close()
    with Store.open(root, small_config()) as again:
        assert not again.recovery.clean
        assert bodies(again) == [b"x"]
