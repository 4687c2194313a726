"""Clients while the master of a broker is being replaced: they wait for the next one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.pairs import pair, promote
from tests.client.clusters import Heard, until

from firetrail.client import (
    ConsumeFromWhere,
    Message,
    MessageQueue,
    NoMasterYetError,
    NoRouteYetError,
    Outcome,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from firetrail.client.cluster import backoff, known_routes
from firetrail.client.cluster.session import Session
from firetrail.client.producers import message_sender
from firetrail.errors import NoSuchError, RequestError
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.messages.bodies import MASTER_ID, TopicConfig, TopicConfigTable
from firetrail.remoting.messages.headers import SendResponse
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

TOPICS = TopicConfigTable({"T": TopicConfig("T", 1, 1)})
QUEUE = MessageQueue("T", "b", 0)
Send = Callable[[Producer], Awaitable[object]]


async def in_transaction(producer: Producer) -> None:
    await producer.send_in_transaction(Message("T", b""), lambda _: Outcome.COMMIT)


SENDS: dict[str, Send] = {
    "one": lambda producer: producer.send(Message("T", b"")),
    "batch": lambda producer: producer.send_batch([Message("T", b""), Message("T", b"")]),
    "one way": lambda producer: producer.send_one_way(Message("T", b"")),
    "to a queue": lambda producer: producer.send(Message("T", b""), queue=QUEUE),
    "one way to a queue": lambda producer: producer.send_one_way(Message("T", b""), queue=QUEUE),
    "in a transaction": in_transaction,
}


class Cluster:
    """A name server, and a broker ``b`` that only accepts messages and counts the requests."""

    def __init__(self) -> None:
        self.names = NameServer(NameServerConfig(listen_port=0))
        self.asked: list[int] = []
        codes = (
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.END_TRANSACTION,
        )
        self.server = RemotingServer(dict.fromkeys(codes, self._take), SYSTEM)
        self.refusals: list[ResponseCode] = []
        self.namesrv = self.address = ""

    def _take(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.asked.append(request.code)
        if self.refusals:
            raise RequestError(self.refusals.pop(), "not the master now")
        return request.answer(fields=SendResponse("00" * 16, 0, 7).encode())

    def register(self, broker_id: int, name: str = "b") -> None:
        """Register the broker in a role; leave the other one."""
        self.names.register_local(
            cluster="C", name=name, address=self.address, topics=TOPICS, broker_id=broker_id
        )
        other = 1 - broker_id
        self.names.unregister_local(name=name, address=self.address, broker_id=other)


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """A cluster whose broker is a replica at first."""
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(backoff, "PAUSE_MAX_S", 0.01)
    monkeypatch.setattr(message_sender, "BUSY_S", 0.01)
    cluster = Cluster()
    cluster.namesrv = f"127.0.0.1:{await cluster.names.start()}"
    cluster.address = f"127.0.0.1:{await cluster.server.start('127.0.0.1', 0)}"
    cluster.register(MASTER_ID)  # its queues become known
    cluster.register(1)
    yield cluster
    await cluster.server.stop()
    await cluster.names.stop()


async def waits(cluster: Cluster, sending: asyncio.Future[Any]) -> bool:
    """Return whether a send requests the route again and again."""
    looks = 0
    look_up = cluster.names.routes.route

    def count(topic: str) -> object:
        nonlocal looks
        looks += 1
        return look_up(topic)

    cluster.names.routes.route = count  # type: ignore[method-assign, assignment]
    await until(lambda: looks > 2 or sending.done())
    return not sending.done()


@pytest.mark.parametrize("way", SENDS)
async def test_a_send_waits_for_the_next_master(cluster: Cluster, way: str) -> None:
    async with Producer(cluster.namesrv, retries=0, timeout_s=60) as producer:
        sending = asyncio.ensure_future(SENDS[way](producer))
        assert await waits(cluster, sending) and not cluster.asked
        cluster.register(MASTER_ID)
        await sending
        await until(lambda: len(cluster.asked) == (2 if way == "in a transaction" else 1))


async def test_the_end_of_a_transaction_waits_as_well(cluster: Cluster) -> None:
    cluster.register(MASTER_ID)

    def decide(_: Message) -> Outcome:
        cluster.register(1)
        producer._session.forget_route("T")
        return Outcome.COMMIT

    async with Producer(cluster.namesrv, timeout_s=60) as producer:
        ending = asyncio.ensure_future(producer.send_in_transaction(Message("T", b""), decide))
        assert await waits(cluster, ending)
        cluster.register(MASTER_ID)
        await ending
        await until(lambda: RequestCode.END_TRANSACTION in cluster.asked)


async def test_a_queue_on_a_broker_without_a_master(cluster: Cluster) -> None:
    """Other brokers of the topic have masters, but the program wants this one."""
    cluster.register(MASTER_ID, "c")
    async with Producer(cluster.namesrv, retries=0, timeout_s=60) as producer:
        assert (await producer.send(Message("T", b""))).queue.broker_name == "c"
        sending = asyncio.ensure_future(SENDS["to a queue"](producer))
        assert await waits(cluster, sending)
        cluster.register(MASTER_ID)
        await sending


@pytest.mark.parametrize("way", SENDS)
async def test_the_error_says_that_there_is_no_master(cluster: Cluster, way: str) -> None:
    async with Producer(cluster.namesrv, retries=1, timeout_s=0.03) as producer:
        with pytest.raises(NoMasterYetError, match="T: no master is registered for b") as caught:
            await SENDS[way](producer)
    assert caught.value.retriable and caught.value.code == ResponseCode.TOPIC_NOT_EXIST
    assert "firetrail replica promote" in str(caught.value)


async def test_a_master_that_hands_over_is_asked_again(cluster: Cluster) -> None:
    cluster.register(MASTER_ID)
    cluster.refusals = [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE]
    async with Producer(cluster.namesrv) as producer:
        await producer.send(Message("T", b""))
    assert len(cluster.asked) == 3


async def test_a_broker_that_is_absent_for_now(cluster: Cluster) -> None:
    session = await Session(cluster.namesrv).open()
    await session.route("T")
    assert session.address_of("b") == cluster.address
    with pytest.raises(NoMasterYetError):
        session.master_of("b")
    cluster.register(MASTER_ID, "c")
    cluster.names.unregister_local(name="b", address=cluster.address, broker_id=1)
    await session.route("T", fresh=True)
    with pytest.raises(NoRouteYetError, match=r"b is not registered .* at the moment") as caught:
        session.address_of("b")
    assert caught.value.retriable
    with pytest.raises(NoSuchError, match="no topic of this client is on a broker d; check"):
        session.address_of("d")
    await session.close()


async def test_a_refusal_makes_a_client_look_for_another_master(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route is otherwise used for half a minute, also after its master became a replica."""
    monkeypatch.setattr(known_routes, "ROUTE_RETRY_S", 0.0)
    cluster.register(MASTER_ID)
    session = await Session(cluster.namesrv).open()
    await session.route("T")
    cluster.register(1)
    await session.request(cluster.address, RequestCode.SEND_MESSAGE_V2)
    assert (await session.route("T")).broker_datas[0].master is not None  # the known one
    cluster.refusals = [ResponseCode.SYSTEM_BUSY]
    await session.request(cluster.address, RequestCode.SEND_MESSAGE_V2)
    assert (await session.route("T")).broker_datas[0].master is None
    await session.close()


async def test_all_clients_work_through_a_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.client.consumers.push.process_queue.PULL_RETRY_S", 0.05)
    monkeypatch.setattr("firetrail.client.consumers.simple_consumer.BROKER_POLL_S", 0.05)
    monkeypatch.setattr(known_routes, "ROUTE_RETRY_S", 0.05)
    heard, received, sent = Heard(), set[bytes](), set[bytes]()
    first = ConsumeFromWhere.FIRST_OFFSET
    async with (
        pair(tmp_path) as (group, _, new),
        Producer(group.namesrv, timeout_s=60) as producer,
        PushConsumer(group.namesrv, "G", heard, {"T1": "*"}, start=first),
        SimpleConsumer(group.namesrv, "H", {"T1": "*"}, start=first) as simple,
    ):

        async def send() -> None:
            for number in range(1_000_000):
                await producer.send(Message("T1", b"%d" % number))
                sent.add(b"%d" % number)
                await asyncio.sleep(0.002)

        async def receive() -> None:
            while True:
                received.update(message.body for message in await simple.receive(wait_s=60))

        working = [asyncio.ensure_future(send()), asyncio.ensure_future(receive())]
        await until(lambda: len(received) > 10)
        await promote(new)
        done = len(sent)
        await until(lambda: len(sent) > done + 10 or any(task.done() for task in working))
        working[0].cancel()
        await asyncio.wait(working[:1])
        await until(lambda: sent <= received or working[1].done())
        await until(lambda: sent <= {message.body for message in heard.messages})
        assert not working[1].done()
        working[1].cancel()


async def test_the_newest_route_tells_the_addresses_of_a_broker(cluster: Cluster) -> None:
    """The first topic is never used again, so its route is not requested again either."""
    old, new = "127.0.0.1:1", cluster.address
    names = cluster.names
    names.unregister_local(name="b", address=new, broker_id=1)
    both = TopicConfigTable({"Once": TopicConfig("Once", 1, 1), **TOPICS.topic_config_table})
    names.register_local(cluster="C", name="b", address=old, topics=both, broker_id=MASTER_ID)
    session = await Session(cluster.namesrv).open()
    await session.route("Once")
    await session.route("T")
    assert session.master_of("b") == old
    names.unregister_local(name="b", address=old, broker_id=MASTER_ID)
    names.register_local(cluster="C", name="b", address=new, topics=both, broker_id=MASTER_ID)
    await session.route("T", fresh=True)
    assert session.master_of("b") == session.address_of("b") == new
    assert session._routes.coordinators() == {new}
    await session.close()
