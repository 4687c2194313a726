"""Spark finds the same damage, and reads the same other messages, in files and over brokers."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.rules.ways import all_ways, spark

from firetrail import Message
from firetrail.errors import DataLostError, StoreDamagedError
from firetrail.format.layout import RECORD_HEAD

COUNT, DAMAGED = 6, 3
FIELDS = ("total_size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "body")


async def test_a_damaged_message(tmp_path: Path) -> None:
    """The broker is one that does not look at what it serves, as Java's."""
    async with all_ways(tmp_path, store=SMALL.replace(verify_reads=False)) as ways:
        for field in FIELDS:
            ways.create(field)
            for number in range(COUNT):
                await ways.producer.send(Message(field, b"body %d" % number))
        await ways.dispatched()
        log = bytearray((tmp_path / "commitlog" / f"{0:020}").read_bytes())
        for field in FIELDS:
            unit = ways.talk.broker.broker_store.queues.unit(field, 0, DAMAGED)
            assert unit is not None
            at = unit.physical_offset
            at = log.index(b"body", at) if field == "body" else at + RECORD_HEAD.offsets[field]
            with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as file:
                file.seek(at)
                file.write(bytes([log[at] ^ 1]))
        for field in FIELDS:
            for place in ways.places:
                how = {"subscribe": field, **place}
                with pytest.raises((StoreDamagedError, DataLostError)):
                    await asyncio.to_thread(spark, "queue_offset", **how)
                found = await asyncio.to_thread(spark, "queue_offset", mode="permissive", **how)
                assert found == [0, 1, 2, 4, 5], (field, place)
