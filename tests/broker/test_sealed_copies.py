"""Messages that are stored again have exactly one checksum, that of the new record."""

from pathlib import Path

import pytest
from tests.client.clusters import SOON, until

from firetrail import Batch, Store
from firetrail.broker.broker import Broker
from firetrail.client import (
    Message,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
    SimpleConsumer,
)
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.kernels.draft import Message as StoredMessage
from firetrail.format.layout import PROPERTY_CRC_MARK
from firetrail.format.record import Record
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.store.bulk import BulkAppend
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.view import StoreView

SEALED = SOON.replace(property_crc=True)
FIRST = ConsumeFromWhere.FIRST_OFFSET


def check(root: Path, *topics: str, sealed: bool = True) -> None:
    """Check that every record has one valid checksum, and that these topics have messages."""
    with Store.open(root, SEALED) as store:
        found: list[Record] = []
        at, end = store.log_range
        while at < end:
            record = store.at(at)
            assert record is not None
            found.append(record)
            at += record.size
    assert set(topics) <= {record.topic for record in found}
    counts = {record.raw_properties.count(PROPERTY_CRC_MARK) for record in found}
    assert counts == ({1} if sealed else {0, 1})
    with StoreView.open(root) as view:
        assert check_store(view, SEALED.delay_levels).ok


async def test_delayed_retried_and_dead_messages_have_one_checksum(tmp_path: Path) -> None:
    tries: list[int] = []

    def listener(message: Received) -> None:
        tries.append(message.reconsume_times)
        raise ValueError("never")

    async with Broker.running(tmp_path, store=SEALED) as broker:
        async with Producer(broker.namesrv) as producer:
            await producer.send(Message("T", b"late", keys=("k",), delay_level=2))
        wanted = {"T": "*"}
        async with PushConsumer(broker.namesrv, "G", listener, wanted, start=FIRST, max_retries=1):
            await until(lambda: broker.store.max_offset("%DLQ%G", 0))
    assert tries == [0, 1]
    check(tmp_path, "SCHEDULE_TOPIC_XXXX", "T", "%RETRY%G", "%DLQ%G")


async def test_transactional_messages_have_one_checksum(tmp_path: Path) -> None:
    async with (
        Broker.running(tmp_path, store=SEALED) as broker,
        Producer(broker.namesrv) as producer,
    ):
        await producer.send_in_transaction(Message("T", b"half"), lambda _: Outcome.COMMIT)
        await until(lambda: any(broker.store.max_offset("T", n) for n in range(4)))
    check(tmp_path, "RMQ_SYS_TRANS_HALF_TOPIC", "T")


async def test_redelivered_pops_have_one_checksum(tmp_path: Path) -> None:
    async with Broker.running(tmp_path, store=SEALED) as broker:
        async with Producer(broker.namesrv) as producer:
            await producer.send(Message("T", b"popped"))
        async with SimpleConsumer(broker.namesrv, "G", {"T": "*"}, start=FIRST) as consumer:
            tries = 0
            while tries < 2:
                for message in await consumer.receive(invisible_s=1):
                    assert message.body == b"popped"
                    tries += 1
    check(tmp_path, "T", "%RETRY%G_T")


async def forward(broker: Broker) -> None:
    """Send the properties of the first message again, with a wrong checksum among them."""
    async with Producer(broker.namesrv) as producer, PullConsumer(broker.namesrv) as consumer:
        queues = await consumer.queues("T")
        (got,) = [m for q in queues async for m in consumer.read(q)][:1]
        given = {"__CRC32#": "0123456789", **got.properties}
        await producer.send(Message("U", b"on", properties=given))
        await producer.send_batch([Message("V", b"on", properties=given)] * 2)


@pytest.mark.parametrize("sealed", [True, False])
async def test_forwarded_properties_have_one_checksum(tmp_path: Path, sealed: bool) -> None:
    async with (
        Broker.running(tmp_path, store=SEALED) as broker,
        Producer(broker.namesrv) as producer,
    ):
        await producer.send(Message("T", b"first", properties={"a": "b"}))
        await until(lambda: any(broker.store.max_offset("T", n) for n in range(4)))
        await forward(broker)
    if not sealed:
        async with Broker.running(tmp_path, store=SOON) as broker:
            await forward(broker)
    check(tmp_path, "T", "U", "V", sealed=sealed)


@pytest.mark.parametrize("sealed", [True, False])
def test_bulk_appends_and_batches_have_one_checksum(tmp_path: Path, sealed: bool) -> None:
    stale = b"a\x01b\x02__CRC32#\x010123456789\x02"
    items = encode_batch([BatchItem(0, b"copied", stale), BatchItem(0, b"new", b"c\x01d\x02")])
    config = SEALED.replace(property_crc=sealed)
    with Store.open(tmp_path, config) as store:
        store.put_batch(Batch("T", items))
        store.put_batch(Batch("T", items, shared_properties=stale))
    with BulkAppend(tmp_path, config) as bulk:
        bulk.add("U", 0, items)
        bulk.commit()
    with Store.open(tmp_path, config) as store:
        found = [*store.read("T"), *store.read("U")]
    assert len(found) == 6
    assert {m.raw_properties.count(PROPERTY_CRC_MARK) for m in found} == {int(sealed)}


@pytest.mark.parametrize("sealed", [True, False])
def test_a_delay_level_after_an_old_checksum_is_applied(tmp_path: Path, sealed: bool) -> None:
    raw = b"__CRC32#\x010123456789\x02DELAY\x0199\x02a\x01b\x02"
    with Store.open(tmp_path, SEALED.replace(property_crc=sealed)) as store:
        store.put(StoredMessage("T", b"again", raw_properties=raw))
        last = SEALED.delay_levels.max_level
        assert store.wait_dispatched()
        (record,) = store.read("SCHEDULE_TOPIC_XXXX", last - 1)
    known = {"DELAY": str(last), "a": "b", "REAL_TOPIC": "T", "REAL_QID": "0"}
    assert {k: v for k, v in record.properties.items() if k != "__CRC32#"} == known
