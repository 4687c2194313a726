"""POP consumption between Firetrail and RocketMQ 5.x, in both roles and across a handover."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from interop.servers import Servers, jars, our_name_server
from interop.stock import registered

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Message, Popped, Producer, SimpleConsumer
from firetrail.remoting.messages.bodies import ConsumeFromWhere
from firetrail.store.settings.store_config import StoreConfig

LINE = "v5"
CLIENT = Path(__file__).parent / "java" / "clients" / "PopClient.java"
FIRST = ConsumeFromWhere.FIRST_OFFSET
WAIT_S = 90
STORE = StoreConfig(
    commit_log_file_size=16 << 20,
    consume_queue_file_size=60_000,
    index_slots=1000,
    index_entries=10_000,
)
"""The sizes of ``interop.servers.BROKER_CONF``."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Servers:
    return Servers(LINE, tmp_path_factory.mktemp("java"))


def test_javas_push_consumers_pop(java: Servers) -> None:
    with BackgroundBroker() as broker:
        where = ["-n", broker.namesrv, "-c", "DefaultCluster", "-t", "JavaPop", "-g", "CGP"]
        said = java.mqadmin("setConsumeMode", *where, "-m", "POP", "-q", "0")
        assert "success" in said
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars(LINE), str(CLIENT)]
        done = subprocess.run(
            [*command, broker.namesrv, "JavaPop", "CGP", "12"],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert not done.returncode, done.stderr[-2000:]
        got = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.count("\t") == 2]
        expected = {(f"pop{n}", "0 popped") for n in range(12)} | {("pop3", "1 popped")}
        assert {tuple(columns) for columns in got} == expected


def test_pops_survive_handovers(java: Servers) -> None:
    asyncio.run(popped_by_firetrail(java.folder / "java-b"))
    with our_name_server() as namesrv, java.broker(namesrv, "java-b"):
        asyncio.run(popped_from_java(namesrv))
    asyncio.run(left_by_java(java.folder / "java-b"))


async def popped_by_firetrail(folder: Path) -> None:
    """Leave a store in which one message of two is popped and open, the other acknowledged."""
    config = BrokerConfig(name="java-b")
    async with asyncio.timeout(WAIT_S), Broker.running(folder, config, STORE) as broker:
        async with Producer(broker.namesrv) as producer:
            for body in (b"open", b"done"):
                await producer.send(Message("P", body))
        async with SimpleConsumer(broker.namesrv, "G", {"P": "*"}, start=FIRST) as consumer:
            found = await received(consumer, 2)
            await consumer.ack(found[b"done"])


async def popped_from_java(namesrv: str) -> None:
    """Messages that Firetrail did not acknowledge are redelivered; then a message's whole life."""
    async with asyncio.timeout(WAIT_S):
        await registered(namesrv)
        async with (
            Producer(namesrv) as producer,
            SimpleConsumer(namesrv, "G", {"P": "*"}, start=FIRST) as consumer,
        ):
            left = await received(consumer, 1)
            assert left[b"open"].reconsume_times == 1
            await consumer.ack(left[b"open"])
            for body in (b"a", b"b", b"c"):
                await producer.send(Message("P", body, tags="T", keys=["k"]))
            found = await received(consumer, 3)
            assert set(found) == {b"a", b"b", b"c"}
            await consumer.ack(found[b"a"], found[b"b"])
            await consumer.change_invisible(found[b"c"], 1.0)
            again = await received(consumer, 1)
            assert again[b"c"].reconsume_times == 1
            assert again[b"c"].topic == "P"
            longer = await consumer.change_invisible(again[b"c"], 60.0)
            await consumer.ack(longer)
            for body in (b"left", b"gone"):
                await producer.send(Message("P", body))
            found = await received(consumer, 2)
            await consumer.ack(found[b"gone"])


async def left_by_java(folder: Path) -> None:
    """Firetrail takes over the pops and acknowledgements of Java."""
    config = BrokerConfig(name="java-b")
    async with (
        asyncio.timeout(WAIT_S),
        Broker.running(folder, config, STORE) as broker,
        SimpleConsumer(broker.namesrv, "G", {"P": "*"}) as consumer,
    ):
        found = await received(consumer, 1)
        assert {body: m.reconsume_times for body, m in found.items()} == {b"left": 1}
        await consumer.ack(*found.values())
        assert await consumer.receive(wait_s=1) == []


async def received(consumer: SimpleConsumer, count: int) -> dict[bytes, Popped]:
    """Receive until there are ``count`` messages; return them by their bodies."""
    found: dict[bytes, Popped] = {}
    while len(found) < count:
        for message in await consumer.receive(invisible_s=5, wait_s=2):
            found[message.body] = message
    return found
