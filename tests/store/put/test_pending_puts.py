"""Puts of an event loop that wait for replicas: by a callback or awaited, in time or late."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.clusters import until
from tests.helpers import PATIENCE_S
from tests.replication.logs import SMALL

from firetrail import Message, PutResult, PutStatus
from firetrail.store.admission.drafter import Batch
from firetrail.store.broker_store import BrokerStore
from firetrail.store.put.pending_puts import PendingPut
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

CONFIG = SMALL.replace(
    commit_log_file_size=16 << 10,
    role=BrokerRole.SYNC_MASTER,
    slave_timeout_ms=int(PATIENCE_S * 1000),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BrokerStore]:
    with BrokerStore.open(tmp_path, CONFIG, system=SYSTEM) as store:
        store.replica_acks.note("replica", 0)
        yield store


class Answering:
    """A caller that refers to the put for which it waits, as answers do."""

    def __init__(self, put: PendingPut) -> None:
        self.put = put

    def take(self, result: PutResult) -> None:
        """Take the result of the put."""


def begin(store: BrokerStore, body: bytes = b"x") -> PendingPut:
    pending = store.writer.begin_put(Message("T", body))
    assert isinstance(pending, PendingPut)
    return pending


async def test_a_callback_gets_the_result_once_replicas_have_confirmed(store: BrokerStore) -> None:
    store.dispatch_in(asyncio.get_running_loop())
    results: list[PutResult] = []
    first, second = begin(store), begin(store)
    first.then(results.append)
    second.then(results.append)
    await asyncio.sleep(0)
    assert not results
    store.replica_acks.note("replica", first.offset)
    await until(lambda: results)
    assert [result.status for result in results] == [PutStatus.PUT_OK]
    assert results[0].end_offset == first.offset
    store.replica_acks.note("replica", second.offset)
    await until(lambda: len(results) == 2)
    late: list[PutResult] = []
    second.then(late.append)
    assert late == results[1:]
    assert await second is results[1]


async def test_a_report_in_another_thread_ends_the_wait(store: BrokerStore) -> None:
    store.dispatch_in(asyncio.get_running_loop())
    pending = begin(store)
    thread = threading.Thread(target=store.replica_acks.note, args=("replica", pending.offset))
    thread.start()
    assert (await pending).ok
    thread.join()


async def test_puts_are_late_one_by_one(store: BrokerStore) -> None:
    """Also if the time limit was made shorter for the later ones."""
    store.dispatch_in(asyncio.get_running_loop())
    patient = begin(store)
    store.configure(slave_timeout_ms=20)
    late = [begin(store), begin(store)]
    for pending in late:
        assert (await pending).status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert patient.outcome is None
    store.replica_acks.note("replica", late[-1].offset)
    assert (await patient).ok
    assert [(await pending).ok for pending in late] == [False, False]


async def test_a_close_ends_the_wait(tmp_path: Path) -> None:
    store = BrokerStore.open(tmp_path, CONFIG, system=SYSTEM)
    store.replica_acks.note("replica", 0)
    store.dispatch_in(asyncio.get_running_loop())
    pending = begin(store)
    await asyncio.to_thread(store.close)
    assert (await pending).status is PutStatus.FLUSH_SLAVE_TIMEOUT


async def test_a_caller_that_fails_does_not_keep_others_from_their_results(
    store: BrokerStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.dispatch_in(asyncio.get_running_loop())

    def fail(result: PutResult) -> None:
        raise ValueError("no room for a result")

    first, second = begin(store), begin(store)
    first.then(fail)
    store.replica_acks.note("replica", second.offset)
    assert (await second).ok
    assert "its caller failed to take the result" in caplog.text


async def test_confirmed_messages_are_dispatched_by_the_loop(store: BrokerStore) -> None:
    """Consumers do not see them before."""
    store.dispatch_in(asyncio.get_running_loop())
    pending = begin(store)
    await asyncio.sleep(0)
    assert store.embedded.max_offset("T") == 0
    store.replica_acks.note("replica", pending.offset)
    assert (await pending).ok
    await until(lambda: store.embedded.max_offset("T") == 1)


async def test_a_confirmation_that_a_busy_loop_reads_late_counts(tmp_path: Path) -> None:
    """The report and the end of the time limit become due in one iteration of the loop."""
    loop = asyncio.get_running_loop()
    with BrokerStore.open(tmp_path, CONFIG.replace(slave_timeout_ms=10), system=SYSTEM) as store:
        store.replica_acks.note("replica", 0)
        store.dispatch_in(loop)
        pending = begin(store)
        time.sleep(0.02)
        loop.call_soon(store.replica_acks.note, "replica", pending.offset)
        assert (await pending).status is PutStatus.PUT_OK


async def test_a_batch_that_waits_while_the_store_is_closed_has_no_records(tmp_path: Path) -> None:
    with BrokerStore.open(tmp_path, CONFIG, system=SYSTEM) as store:
        store.replica_acks.note("replica", 0)
        store.dispatch_in(asyncio.get_running_loop())
        pending = store.writer.begin_put(Batch.of([Message("T", b"1"), Message("T", b"2")]))
        assert isinstance(pending, PendingPut)
        assert store.reads.records_of(pending.stored)
    result = await pending
    assert result.status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert not store.reads.records_of(result)


async def test_an_answered_put_keeps_nothing_of_its_caller(store: BrokerStore) -> None:
    """A cycle of references would keep bodies until the garbage collector runs."""
    store.dispatch_in(asyncio.get_running_loop())
    pending = begin(store)
    result = Answering(pending)
    kept = weakref.ref(result)
    pending.then(result.take)
    store.replica_acks.note("replica", pending.offset)
    await until(lambda: pending.outcome is not None)
    gc.disable()
    try:
        del result
        assert kept() is None
    finally:
        gc.enable()
