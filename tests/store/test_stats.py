"""Counters and rates."""

import asyncio

import pytest
from tests.helpers import Machine, put_all
from tests.store.conftest import OpenStore

from firetrail import Batch, FlushMode, Message, Store
from firetrail.store.stats import PUT_LATENCY_BOUNDS_MS, Statistics


class Puts:
    calls = messages = bytes = 0


class TestLatency:
    @pytest.mark.parametrize(
        ("seconds", "number"),
        [(0, 0), (0.0009, 0), (0.001, 1), (0.0109, 1), (0.011, 2), (0.2, 4), (10.0, 11), (99, 12)],
    )
    def test_latencies_are_counted_in_the_classes_of_the_java_store(
        self, seconds: float, number: int
    ) -> None:
        statistics = Statistics(Puts())  # type: ignore[arg-type]
        statistics.note_latency(seconds)
        latency = statistics.snapshot(0).put_latency
        assert len(latency) == len(PUT_LATENCY_BOUNDS_MS) + 1
        assert [n for n, count in enumerate(latency) if count] == [number]


class TestStore:
    def test_puts_and_gets_are_counted(self, store: Store) -> None:
        size = store.put(Message("T", b"abc")).size
        store.put(Message("T", b"abc"))
        batch = store.put_batch([Message("T", b"d"), Message("T", b"e")])
        assert store.wait_dispatched()
        store.get("T", 0, 0, 3)
        store.get("missing")
        snapshot = store.statistics()
        assert (snapshot.put_calls, snapshot.put_messages) == (3, 4)
        assert snapshot.put_bytes == 2 * size + batch.size
        assert (snapshot.get_calls, snapshot.get_messages) == (2, 3)
        assert snapshot.get_found == 1
        assert snapshot.get_bytes == 2 * size + batch.size // 2
        assert snapshot.put_refused == 0

    def test_refused_puts_are_counted(self, store: Store) -> None:
        store.try_put(Message("no/topic", b""))
        store.try_put(Message("T", b"x" * 10_000))
        snapshot = store.statistics()
        assert (snapshot.put_refused, snapshot.put_messages) == (2, 0)

    def test_syncs_are_timed(self, open_store: OpenStore) -> None:
        store = open_store(flush=FlushMode.SYNC)
        for _ in range(3):
            store.put(Message("T", b"x"))
        assert sum(store.statistics().put_latency) == 3

    @pytest.mark.parametrize("flush", FlushMode)
    @pytest.mark.parametrize("wait", [True, False])
    def test_every_put_is_timed_if_and_only_if_it_waits_for_the_disk(
        self, open_store: OpenStore, flush: FlushMode, wait: bool
    ) -> None:
        store = open_store(flush=flush)
        message = Message("T", b"x", wait_for_flush=wait)
        batch = Batch.of([message])
        store.put(message)
        store.try_put(message)
        store.put_batch(batch)
        store.try_put_batch(batch)
        asyncio.run(store.put_async(message))
        store.try_put(Message("no/topic", b""))
        timed = 5 if flush is FlushMode.SYNC and wait else 0
        assert sum(store.statistics().put_latency) == timed

    def test_rates_are_per_second(self, store: Store, machine: Machine) -> None:
        before = store.statistics()
        put_all(store, [b"x"] * 10)
        machine.clock.advance(100_000)
        rates = store.statistics().since(before)
        assert rates.put_messages == pytest.approx(0.1, rel=0.05)
        assert rates.put_bytes == pytest.approx(10 * 93 / 100, rel=0.05)
        assert rates.get_messages == rates.get_bytes == 0

    def test_statistics_of_the_same_moment_differ_by_0(self, store: Store) -> None:
        now = store.statistics()
        assert now.since(now).put_messages == 0
