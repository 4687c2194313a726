"""A damaged message is logged and skipped, and consumers continue.

A message is still served if only its unit in the queue is damaged, because the log has it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.client.clusters import until
from tests.crash.files_check import UNIT, Raw, readable

from firetrail.broker.broker import Broker
from firetrail.broker.stored_messages import internal_records
from firetrail.client import (
    Admin,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
    by_sql,
    by_tags,
)
from firetrail.format.kernels.draft import Message as StoredMessage
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.store import checked_store
from firetrail.store.broker_store import BrokerStore
from firetrail.store.reads import reader as reading
from firetrail.store.results import GetStatus
from firetrail.system import SYSTEM

COUNT, VICTIM = 5, 2
ALL = [b"body %d" % number for number in range(COUNT)]
GOOD = [body for number, body in enumerate(ALL) if number != VICTIM]
ROOM = 37
"""Bytes in a property that make every record 256 bytes long."""
FIRST = ConsumeFromWhere.FIRST_OFFSET


def flip(path: Path, at: int, mask: int = 0x80) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ mask]))


def body(root: Path, record: Raw) -> None:
    path = root / "commitlog" / f"{0:020}"
    flip(path, path.read_bytes().index(record.body, record.offset))


def size(root: Path, record: Raw) -> None:
    flip(root / "commitlog" / f"{0:020}", record.offset)


def magic(root: Path, record: Raw) -> None:
    flip(root / "commitlog" / f"{0:020}", record.offset + 4)


def unit_offset(root: Path, record: Raw) -> None:
    folder = root / "consumequeue" / record.topic / str(record.queue_id)
    flip(folder / f"{0:020}", record.queue_offset * UNIT.size)


def unit_size(root: Path, record: Raw) -> None:
    folder = root / "consumequeue" / record.topic / str(record.queue_id)
    flip(folder / f"{0:020}", record.queue_offset * UNIT.size + 8)


async def made(root: Path) -> None:
    async with Broker.running(root, store=SMALL) as broker, Producer(broker.namesrv) as producer:
        for number in range(COUNT):
            properties = {"n": str(number), "room": "." * ROOM}
            message = Message("T", b"body %d" % number, tags="A", properties=properties)
            await producer.send(message, order_key="one queue")


@asynccontextmanager
async def damaged(root: Path, damage: Callable[[Path, Raw], None]) -> AsyncIterator[str]:
    """Run a broker whose third message is damaged; yield the address of its name server."""
    await made(root)
    damage(root, readable(root / "commitlog")[VICTIM])
    async with Broker.running(root, store=SMALL) as broker:
        yield broker.namesrv


def with_property(topic: str) -> object:
    return by_sql(topic, "n >= 0")


def size_of_three(root: Path, record: Raw) -> None:
    """The record has 256 bytes; write a size of 768, up to the end of the last record."""
    assert record.size == 256
    flip(root / "commitlog" / f"{0:020}", record.offset + 2, 0x02)


def both(root: Path, record: Raw) -> None:
    """Neither the unit nor the record leads to the message."""
    unit_offset(root, record)
    body(root, record)


@pytest.mark.parametrize("damage", [body, size, size_of_three, both])
@pytest.mark.parametrize("wanted", ["*", with_property], ids=["all", "sql"])
async def test_a_push_consumer_skips_damaged_messages(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path, Raw], None],
    wanted: object,
) -> None:
    heard: list[bytes] = []

    def listener(message: Received) -> None:
        heard.append(message.body)

    chosen = wanted("T") if callable(wanted) else wanted
    async with (
        damaged(tmp_path, damage) as namesrv,
        PushConsumer(namesrv, "G", listener, {"T": chosen}, start=FIRST),  # type: ignore[dict-item]
    ):
        await until(lambda: len(heard) >= COUNT - 1)
    assert sorted(heard) == GOOD
    assert "left out" in caplog.text


@pytest.mark.parametrize("damage", [body, size, size_of_three, both])
async def test_a_reader_skips_damaged_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path, Raw], None]
) -> None:
    async with damaged(tmp_path, damage) as namesrv, PullConsumer(namesrv) as consumer:
        queues = await consumer.queues("T")
        found = [m.body for queue in queues async for m in consumer.read(queue)]
    assert found == GOOD
    assert "left out" in caplog.text


async def test_each_range_is_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the kind of damage nor the number of consumers makes a difference."""
    await made(tmp_path)
    stored = readable(tmp_path / "commitlog")
    size(tmp_path, stored[1])
    for number in (2, 3):
        body(tmp_path, stored[number])
    queue = stored[1].queue_id
    async with Broker.running(tmp_path, store=SMALL) as broker:
        for _ in range(2):
            async with PullConsumer(broker.namesrv) as consumer:
                queues = await consumer.queues("T")
                found = [m.body for each in queues async for m in consumer.read(each)]
                assert found == [ALL[0], ALL[4]]
    lines = [r.getMessage() for r in caplog.records if "damaged and left out" in r.getMessage()]
    begin = f"T queue {queue}: messages 1 to 3 are damaged and left out: "
    assert [line.startswith(begin) for line in lines] == [True]


def test_one_read_skips_a_limited_number_of_damaged_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one needs a search in the log: many at once would make other requests wait."""
    monkeypatch.setattr(checked_store, "SKIPPED_UNITS_MAX", 2)
    monkeypatch.setattr(reading, "search", lambda *place: None)
    with BrokerStore.open(tmp_path, SMALL, system=SYSTEM) as store:
        for body in ALL:
            store.embedded.put(StoredMessage("T", body))
        assert store.embedded.wait_dispatched()
        units = tmp_path / "consumequeue/T/0" / f"{0:020}"
        for number in range(3):
            flip(units, number * UNIT.size)
        store._engine.reader.forget_cursors()
        result = store.reads.get_hashed("T", 0, 0)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 2)
        assert [record.body for record in internal_records(store, "T", 0, 0)] == ALL[3:]


@pytest.mark.parametrize("damage", [unit_offset, unit_size])
@pytest.mark.parametrize("tags", ["*", "A"])
async def test_damaged_units_are_read_from_the_log(
    tmp_path: Path, damage: Callable[[Path, Raw], None], tags: str
) -> None:
    async with damaged(tmp_path, damage) as namesrv, PullConsumer(namesrv) as consumer:
        queues = await consumer.queues("T")
        wanted = by_tags("T", tags)
        found = [
            m.body for queue in queues async for m in consumer.read(queue, subscription=wanted)
        ]
    assert found == ALL


@pytest.mark.parametrize("damage", [body, size, magic])
async def test_runtime_info_works_with_a_damaged_first_message(
    damage: Callable[[Path, Raw], None], tmp_path: Path
) -> None:
    await made(tmp_path)
    damage(tmp_path, readable(tmp_path / "commitlog")[0])
    async with Broker.running(tmp_path, store=SMALL) as broker, Admin(broker.namesrv) as admin:
        found = await admin.runtime_info(broker.address)
        assert int(found["commitLogMaxOffset"]) > 0
        assert (int(found["earliestMessageTimeStamp"]) == -1) is (damage is magic)
