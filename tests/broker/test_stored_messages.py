"""Outcomes of puts. Damaged internal records are skipped, and do not block others."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, talking
from tests.crash.files_check import readable

from firetrail.broker.broker import Broker
from firetrail.broker.stored_messages import CODES, require_stored
from firetrail.client import Message, Producer, SimpleConsumer
from firetrail.errors import StoreError
from firetrail.format.values.delay import DelayLevels
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.store.results import UNCONFIRMED, PutResult, PutStatus


def spoil_body(root: Path, topic: str) -> None:
    """Flip a bit in the body of the first record of a topic."""
    folder = root / "commitlog"
    record = next(record for record in readable(folder) if record.topic.startswith(topic))
    path = sorted(folder.iterdir())[0]
    content = bytearray(path.read_bytes())
    content[content.index(record.body, record.offset)] ^= 1
    path.write_bytes(content)


async def test_a_damaged_record_of_a_pop_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker.running(tmp_path, store=SMALL) as broker:
        async with Producer(broker.namesrv) as producer:
            await producer.send(Message("T1", b"popped"))
        first = ConsumeFromWhere.FIRST_OFFSET
        async with SimpleConsumer(broker.namesrv, "G", {"T1": "*"}, start=first) as consumer:
            while not await consumer.receive(invisible_s=60):
                pass
        async with Producer(broker.namesrv) as producer:  # the last record is always checked
            await producer.send(Message("T2", b"last"))
    spoil_body(tmp_path, "rmq_sys_REVIVE_LOG")
    async with talking(tmp_path) as talk:
        assert (await talk.send("T1", b"next")).code == 0
    assert "rmq_sys_REVIVE_LOG" in caplog.text and "is damaged and left out" in caplog.text


async def test_a_damaged_delayed_message_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages after it are delivered."""
    async with (
        Broker.running(tmp_path, store=SMALL) as broker,
        Producer(broker.namesrv) as producer,
    ):
        for body in (b"to be damaged", b"good"):
            await producer.send(Message("T1", body, delay_level=18))
    spoil_body(tmp_path, "SCHEDULE")
    levels = DelayLevels.parse(" ".join(["0s"] * 18))
    async with talking(tmp_path, store=SMALL.replace(delay_levels=levels)) as talk:
        bodies: list[bytes] = []
        while not bodies:
            await asyncio.sleep(0.01)
            store = talk.broker.store
            for queue_id in store.queues("T1"):
                bodies += [record.body for record in store.read("T1", queue_id)]
        assert bodies == [b"good"]
    assert "a delayed message is damaged and not delivered" in caplog.text


@pytest.mark.parametrize("status", PutStatus)
def test_a_message_in_the_log_counts_as_stored_although_it_is_not_confirmed(
    status: PutStatus,
) -> None:
    result = PutResult(status, detail="the reason")
    in_the_log = {"PUT_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}
    if status.value in in_the_log:
        assert require_stored(result) is result
    else:
        with pytest.raises(StoreError, match="the reason"):
            require_stored(result)


def test_every_outcome_of_a_put_has_a_code() -> None:
    assert CODES.keys() == set(PutStatus)
    assert {CODES[status] for status in UNCONFIRMED} == {10, 11, 12}
