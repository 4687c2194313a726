"""Clusters with Java and Firetrail in every role: name server, broker, client, administrator."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.servers import LINES, Servers, our_name_server
from interop.stock import registered

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    Admin,
    Message,
    MessageQueue,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
    by_sql,
)
from firetrail.remoting.messages.bodies import ConsumeFromWhere, MessageModel
from firetrail.store.settings.store_config import StoreConfig

FIRST = ConsumeFromWhere.FIRST_OFFSET
WAIT_S = 120
pytestmark = pytest.mark.time_limit(3 * WAIT_S)  # some tests also start Java servers


class Cluster(NamedTuple):
    """A Java broker at Firetrail's name server."""

    java: Servers
    namesrv: str
    broker: str


@pytest.fixture(scope="module", params=LINES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    java = Servers(request.param, tmp_path_factory.mktemp(request.param))
    with our_name_server() as namesrv, java.broker(namesrv, "java-a") as broker:
        asyncio.run(registered(namesrv))
        yield Cluster(java, namesrv, broker)


def decided(outcome: Outcome, message: Message) -> Outcome:
    """Decide about a half message."""
    return outcome


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


async def read_all(namesrv: str, topic: str, count: int) -> list[Received]:
    """Return all messages of a topic, as soon as there are this many."""
    async with PullConsumer(namesrv, "reading") as consumer:
        queues = await consumer.queues(topic)
        while sum([await consumer.offsets.end(queue) for queue in queues]) < count:
            await asyncio.sleep(0.02)
        return [message for queue in queues async for message in consumer.read(queue)]


class TestNameServer:
    """Firetrail's name server with Java's broker and administrator."""

    async def test_the_broker_is_known(self, cluster: Cluster) -> None:
        async with Admin(cluster.namesrv) as admin:
            assert await admin.masters() == {"java-a": cluster.broker}
            assert {"TBW102", "DefaultCluster", "java-a"} <= set(await admin.topics())

    async def test_mqadmin_manages_topics_and_permissions(self, cluster: Cluster) -> None:
        at = ("-n", cluster.namesrv)
        admin = cluster.java.mqadmin
        listed = admin("clusterList", *at)
        assert "java-a" in listed and cluster.broker in listed
        made = admin(
            "updateTopic", *at, "-c", "DefaultCluster", "-t", "FromAdmin", "-r", "3", "-w", "3"
        )
        assert "success" in made
        route = admin("topicRoute", *at, "-t", "FromAdmin")
        assert cluster.broker in route and '"readQueueNums":3' in route
        assert "success" in admin("updateKvConfig", *at, "-s", "ns", "-k", "k", "-v", "v")
        assert "java-a" in admin("wipeWritePerm", *at, "-b", "java-a")
        assert "java-a" in admin("addWritePerm", *at, "-b", "java-a")
        assert "success" in admin("deleteTopic", *at, "-c", "DefaultCluster", "-t", "FromAdmin")

        async with Admin(cluster.namesrv) as ours:
            assert "FromAdmin" not in await ours.topics()


class TestClient:
    """Firetrail's client with the Java broker."""

    async def test_every_kind_of_send_is_stored_once(self, cluster: Cluster) -> None:
        async with Producer(cluster.namesrv, "PG") as producer:
            await producer.send(Message("Sends", b"one", tags="a", keys=["k"]))
            await producer.send_batch([Message("Sends", b"b%d" % n) for n in range(3)])
            await producer.send(Message("Sends", b"x" * 50_000))
            await producer.send_one_way(Message("Sends", b"one way"))
            await producer.send(Message("Sends", b"delayed", delay_level=1))
        got = await read_all(cluster.namesrv, "Sends", 7)
        bodies = Counter(message.body for message in got)
        expected = [b"one", b"b0", b"b1", b"b2", b"x" * 50_000, b"one way", b"delayed"]
        assert bodies == Counter(expected)
        assert len({message.message_id for message in got}) == 7
        (waited,) = [message for message in got if message.body == b"delayed"]
        kept = {name: waited.properties.get(name) for name in ("DELAY", "REAL_TOPIC")}
        assert kept == {"DELAY": "1", "REAL_TOPIC": "Sends"}  # as Firetrail's broker keeps them

    async def test_only_committed_transactions_are_seen(self, cluster: Cluster) -> None:
        async with Producer(cluster.namesrv, "PG") as producer:
            for outcome in (Outcome.COMMIT, Outcome.ROLLBACK):
                message = Message("Halves", outcome.name.encode())
                await producer.send_in_transaction(message, partial(decided, outcome))
            await producer.send(Message("Halves", b"whole"))
        got = await read_all(cluster.namesrv, "Halves", 2)
        assert sorted(message.body for message in got) == [b"COMMIT", b"whole"]

    async def test_a_request_gets_its_reply(self, cluster: Cluster) -> None:
        namesrv = cluster.namesrv
        async with Admin(namesrv) as admin:
            await admin.create_topic("Ask", 2)
            await admin.create_group("GR")
        async with Producer(namesrv, "asking") as asking, Producer(namesrv, "GR") as replying:

            async def listener(message: Received) -> None:
                await replying.reply(message, message.body.upper())

            async with PushConsumer(namesrv, "GR", listener, {"Ask": "*"}, start=FIRST):
                reply = await asking.request(Message("Ask", b"question"), 20)
        assert reply.body == b"QUESTION"

    @pytest.mark.parametrize("in_order", [False, True])
    async def test_members_share_queues_and_retry(self, cluster: Cluster, in_order: bool) -> None:
        topic = f"Group{in_order}"
        heard: list[Received] = []

        def listener(message: Received) -> None:
            heard.append(message)
            if message.body == b"7" and message.reconsume_times == 0:
                raise ValueError("not yet")

        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(topic, 4)
            await admin.create_group(f"G{in_order}")

        def member() -> PushConsumer:
            group = f"G{in_order}"
            return PushConsumer(
                cluster.namesrv, group, listener, {topic: "*"}, in_order=in_order, start=FIRST
            )

        async with member() as a, member() as b, Producer(cluster.namesrv) as producer:
            await until(
                lambda: [len([q for q in m.assigned if q.topic == topic]) for m in (a, b)] == [2, 2]
            )
            for n in range(40):
                await producer.send(Message(topic, b"%d" % n), order_key=str(n % 8))
            await until(lambda: len(heard) >= 41)
        assert Counter(m.body for m in heard) == Counter([*(b"%d" % n for n in range(40)), b"7"])
        assert {m.topic for m in heard} == {topic}
        if in_order:
            for key in range(8):
                seen = [int(m.body) for m in heard if int(m.body) % 8 == key]
                assert seen == sorted(seen)

    async def test_a_broadcast_with_a_filter_reaches_every_member(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        heard: list[list[bytes]] = [[], []]
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("All", 2)

        def member(number: int) -> PushConsumer:
            return PushConsumer(
                cluster.namesrv,
                "GB",
                lambda message: heard[number].append(message.body),
                {"All": by_sql("All", "n > 4")},
                model=MessageModel.BROADCASTING,
                start=FIRST,
                offsets_folder=tmp_path,
                instance=f"I{number}",
            )

        async with member(0), member(1), Producer(cluster.namesrv) as producer:
            for n in range(8):
                await producer.send(Message("All", b"%d" % n, properties={"n": str(n)}))
            await until(lambda: all(len(got) >= 3 for got in heard))
        assert [sorted(got) for got in heard] == [[b"5", b"6", b"7"]] * 2

    async def test_topics_and_groups_are_administered(self, cluster: Cluster) -> None:
        async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
            await admin.create_topic("Admin", 2)
            await admin.create_group("GA")
            assert "GA" in await admin.groups()
            sent = [await producer.send(Message("Admin", b"%d" % n, keys=["k"])) for n in range(4)]
            await read_all(cluster.namesrv, "Admin", 4)
            stats = await admin.topic_stats("Admin")
            assert [(o.min_offset, o.max_offset) for o in stats.offset_table.values()] == [
                (0, 2)
            ] * 2
            assert (await admin.view(sent[0].offset_message_id)).body == b"0"
            while len(await admin.find("Admin", "k")) < 4:
                await asyncio.sleep(0.05)
            for queue in await admin.queues("Admin"):
                await admin.offsets.commit("GA", queue, 2)
            assert set((await admin.reset_offsets("GA", "Admin", 0)).values()) == {0}
            progress = await admin.consume_stats("GA", "Admin")
            assert [
                (o.broker_offset, o.consumer_offset) for o in progress.offset_table.values()
            ] == [(2, 0)] * 2
            assert (await admin.broker_config(cluster.broker))["brokerName"] == "java-a"
            assert "brokerVersionDesc" in await admin.runtime_info(cluster.broker)
            await admin.delete_group("GA")
            await admin.delete_topic("Admin")
            assert "Admin" not in await admin.topics()
            await admin.create_topic("Admin", 2)
            again = await producer.send(Message("Admin", b"again"))
            assert again.queue_offset == 0  # as with Firetrail's broker


@pytest.mark.parametrize("line", LINES)
async def test_a_topic_is_served_by_both_brokers(line: str, tmp_path: Path) -> None:
    """At a Java name server, a Java broker beside Firetrail's."""
    java = Servers(line, tmp_path)
    with java.name_server() as namesrv, java.broker(namesrv, "java-a"):
        config = BrokerConfig(name="ours", namesrv=namesrv)
        small = StoreConfig(commit_log_file_size=16 << 20, consume_queue_file_size=60_000)
        async with Broker.running(tmp_path / "ours", config, small) as broker:
            async with Admin(namesrv) as admin:
                while len(masters := await admin.masters()) < 2:
                    await asyncio.sleep(0.1)
                assert masters["ours"] == broker.address
            async with Producer(namesrv) as producer:
                for name in masters:
                    await producer.send(Message("Both", b"0"), queue=MessageQueue("Both", name, 0))
                while len(await fresh_queues(namesrv, "Both")) < 8:
                    await asyncio.sleep(0.05)
            async with Producer(namesrv) as producer:
                sends = [await producer.send(Message("Both", b"%d" % n)) for n in range(1, 41)]
            assert Counter(sent.queue.broker_name for sent in sends) == {"java-a": 20, "ours": 20}
            heard: list[bytes] = []
            async with PushConsumer(
                namesrv, "G", lambda m: heard.append(m.body), {"Both": "*"}, start=FIRST
            ):
                await until(lambda: len(heard) >= 42)
            assert sorted(heard) == sorted([b"0", *(b"%d" % n for n in range(41))])
        async with Admin(namesrv) as admin:
            assert list(await admin.masters()) == ["java-a"], "ours has unregistered"


async def fresh_queues(namesrv: str, topic: str) -> list[MessageQueue]:
    """Return the current queues of a topic."""
    async with Admin(namesrv) as admin:
        return await admin.queues(topic)


@pytest.mark.parametrize("line", LINES)
async def test_mqadmin_asks_firetrails_broker_and_consumer(line: str, tmp_path: Path) -> None:
    """Its questions to broker and consumer, with bodies that have objects as keys."""
    java = Servers(line, tmp_path)
    heard: list[bytes] = []
    async with Broker.running() as broker, Producer(broker.namesrv) as producer:

        async def ask(*arguments: str) -> str:
            return await asyncio.to_thread(java.mqadmin, *arguments, "-n", broker.namesrv)

        made = await ask("updateTopic", "-c", "DefaultCluster", "-t", "T", "-r", "2", "-w", "2")
        assert "success" in made
        for n in range(4):
            await producer.send(Message("T", b"%d" % n))
        async with PushConsumer(
            broker.namesrv, "G", lambda m: heard.append(m.body), {"T": "*"}, start=FIRST
        ) as consumer:
            await until(lambda: len(heard) >= 4)
            await consumer.commit()
            rows = [row.split() for row in (await ask("topicStatus", "-t", "T")).splitlines()]
            assert [row[:4] for row in rows if row[:1] == ["broker-a"]] == [
                ["broker-a", str(queue), "0", "2"] for queue in range(2)
            ]
            assert "Diff Total: 0" in await ask("consumerProgress", "-g", "G")
            assert "Rebalance OK" in await ask("consumerStatus", "-g", "G")
            stats = (await ask("statsAll", "-t", "T")).split()
            assert stats[-7:-4] == ["T", "G", "0"] and stats[-2:] == ["4", "4"]
            there = "-b", broker.address
            assert "Diff Total: 0" in await ask("brokerConsumeStats", *there)
            units = await ask("queryCq", "-t", "T", "-q", "0", "-i", "1", "-c", "1", *there)
            assert "max: 2, min: 0" in units and "physicSize=" in units
            change = "updateBrokerConfig", *there, "-k", "fileReservedTime", "-v", "48"
            assert "success" in await ask(*change)
            assert broker.store.config.file_reserved_hours == 48
            await ask("resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0")
            await until(lambda: len(heard) >= 8)
