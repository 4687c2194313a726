"""The append: which numbers and times a record gets, whatever way it takes to the log."""

from collections.abc import Callable

import pytest
from tests.helpers import Machine
from tests.store.conftest import OpenStore

from firetrail import Batch, Message, PutResult, Store
from firetrail.format import layout
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.store.kernels.append import CLOCK_STEP_BACK_MS_MAX

pytestmark = pytest.mark.stepped_threads


def quickly(store: Store, message: Message) -> PutResult:
    return store.put(message)


def slowly(store: Store, message: Message) -> PutResult:
    store._engine.log.appender.pause()
    return store.put(message)


def in_a_batch(store: Store, message: Message) -> PutResult:
    item = BatchItem(message.flag, bytes(message.body), message.encode_properties())
    return store.put_batch(Batch(message.topic, encode_batch([item]), message.queue_id))


Put = Callable[[Store, Message], PutResult]
every_way = pytest.mark.parametrize("put", [quickly, slowly, in_a_batch])


@every_way
@pytest.mark.parametrize(
    ("step_ms", "expected_ms"),
    [
        (1, 1),
        (-1, 0),
        (-CLOCK_STEP_BACK_MS_MAX, 0),
        (-CLOCK_STEP_BACK_MS_MAX - 1, -CLOCK_STEP_BACK_MS_MAX - 1),
    ],
)
def test_store_times_stand_still_if_the_clock_steps_back_a_little(
    store: Store, machine: Machine, put: Put, step_ms: int, expected_ms: int
) -> None:
    before = store.put(Message("T", b"first")).store_time
    machine.clock.ms += step_ms
    result = put(store, Message("T", b"second"))
    assert result.store_time - before == expected_ms
    assert store.wait_dispatched()
    stored = list(store.read("T"))[-1]
    assert (stored.store_time, stored.born_time) == (result.store_time, result.store_time)


@pytest.mark.parametrize("put", [quickly, slowly])
@pytest.mark.parametrize("sys_flag", [layout.TRANSACTION_PREPARED, layout.TRANSACTION_ROLLBACK])
def test_an_open_or_rolled_back_transaction_takes_no_queue_offset(
    store: Store, put: Put, sys_flag: int
) -> None:
    assert store.put(Message("T", b"first")).queue_offset == 0
    assert put(store, Message("T", b"half", sys_flag=sys_flag)).queue_offset == 0
    committed = Message("T", b"second", sys_flag=layout.TRANSACTION_COMMIT)
    assert put(store, committed).queue_offset == 1


@every_way
@pytest.mark.parametrize("pool", [True, False])
def test_every_put_is_counted_once(open_store: OpenStore, put: Put, pool: bool) -> None:
    store = open_store(write_buffer_pool=pool, log=1 << 20)
    results = [put(store, Message("T", b"x" * size)) for size in (1, 100, 10)]
    appender = store._engine.log.appender
    assert (appender.calls, appender.messages) == (3, 3)
    assert appender.bytes == sum(result.size for result in results) == results[-1].end_offset
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert [result.physical_offset for result in results[1:]] == [
        result.end_offset for result in results[:-1]
    ]


def test_an_append_without_room_is_refused(store: Store) -> None:
    store.put(Message("T", b"first"))
    log = store._engine.log
    queue = store._engine.queues.loaded["T", 0]
    end = log.max_offset
    log.appender.pause()
    assert log.appender.put(Message("T", b"second")) is None
    batch = store._engine.drafter.draft_batch(Batch.of([Message("T", b"second")]))
    with pytest.raises(ValueError, match=f"no room for {batch.size} bytes was attached"):
        log.appender.append_batch(batch, queue)
    assert (log.max_offset, queue.next_offset) == (end, 1)
