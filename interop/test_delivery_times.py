"""The client's delivery times and recalls, with a Java broker 5.3.3 and with Firetrail's."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from interop.servers import Servers, our_name_server
from interop.stock import registered
from interop.test_broker_features import LIMIT_S

from firetrail.client import Admin, Message, Producer, Received, SimpleConsumer

CONF = "recallMessageEnable=true\n"


async def delivered(namesrv: str) -> tuple[int, list[Received]]:
    """Send three messages, recall one; return the time of the second, and what was received."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("Later", 1)
        async with SimpleConsumer(namesrv, "G", {"Later": "*"}) as consumer:
            due_ms = int(time.time() * 1000) + 4_000
            gone = await producer.send(Message("Later", b"recalled"), deliver_at=due_ms)
            await producer.send(Message("Later", b"later"), deliver_at=due_ms)
            past = await producer.send(Message("Later", b"past"), deliver_at=due_ms - 60_000)
            assert past.recall_handle is None
            assert gone.recall_handle is not None
            assert await producer.recall(gone) == gone.message_id
            found: list[Received] = []
            while len(found) < 2:
                found += await consumer.receive(16)
            await asyncio.sleep(2)  # the recalled message was due with the other one
            found += await consumer.receive(16, wait_s=1)
            return due_ms, found


@pytest.mark.parametrize("side", ["java", "firetrail"])
@pytest.mark.time_limit(LIMIT_S)
async def test_messages_are_delivered_at_their_time_unless_recalled(
    tmp_path: Path, side: str
) -> None:
    java = Servers("v5", tmp_path)
    broker = java.broker if side == "java" else java.our_broker
    with our_name_server() as namesrv, broker(namesrv, "broker-a", settings=CONF):
        await registered(namesrv)
        due_ms, found = await delivered(namesrv)
        assert [message.body for message in found] == [b"past", b"later"]
        assert found[1].record.store_time >= due_ms
