"""Routes, name servers and heartbeats of a session."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.broker.brokers import SMALL
from tests.client.clusters import SOON, fill, until
from tests.helpers import PATIENCE_S

from firetrail.broker.broker import Broker
from firetrail.client import (
    Admin,
    Message,
    NoRouteYetError,
    NotRocketMQError,
    Producer,
    ProtocolError,
    PullConsumer,
    PushConsumer,
    RequestError,
)
from firetrail.client.cluster import known_routes
from firetrail.client.cluster.session import Session
from firetrail.errors import NoAnswerError, NoSuchError, NotReachedError
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.messages.bodies import TopicConfig, TopicConfigTable
from firetrail.remoting.messages.headers import SendResponse
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.reads.queue_lookups import QueueLookups
from firetrail.system import SYSTEM


async def test_addresses_stay_known_while_a_route_is_requested_again(namesrv: str) -> None:
    """A consumer must be able to commit its offsets to a broker that was restarted."""
    await fill(namesrv, "T", 1)
    session = await Session(namesrv).open()
    await session.route("T")
    address = session.address_of("broker-a")
    session.forget_route("T")
    assert session.address_of("broker-a") == address
    assert session.coordinators() == {address}
    session.forget_route("unknown")
    assert (await session.route("T")).queue_datas
    await session.close()


async def test_a_broker_may_be_registered_with_its_name() -> None:
    """The id of a message has the IP address of its broker."""
    server = NameServer(NameServerConfig(listen_port=0))
    for name, address in (("a", "localhost:10911"), ("b", "no/host:10912")):
        topics = TopicConfigTable()
        server.register_local(cluster="C", name=name, address=address, topics=topics)
    session = await Session(f"127.0.0.1:{await server.start()}").open()
    try:
        assert await session.name_servers.listed("127.0.0.1:10911") == "localhost:10911"
        with pytest.raises(NoSuchError, match=r"^127\.0\.0\.1:10912: the name server lists no"):
            await session.name_servers.listed("127.0.0.1:10912")
    finally:
        await session.close()
        await server.stop()


@contextlib.asynccontextmanager
async def name_server(port: int = 0) -> AsyncIterator[str]:
    """A name server without brokers."""
    server = NameServer(NameServerConfig(listen_port=port))
    port = await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop()


@contextlib.asynccontextmanager
async def stranger(answer: bytes) -> AsyncIterator[str]:
    """A server of another protocol, which answers every request in the same way."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        (32).to_bytes(4, "big") + (16).to_bytes(4, "big") + b"not json at all.............",
        bytes.fromhex("00001e040000000000 000100001000"),  # the port for gRPC clients
    ],
)
async def test_an_answer_of_another_protocol_is_not_retriable(answer: bytes, namesrv: str) -> None:
    async with stranger(answer) as address:
        async with Producer(address, "p") as producer:
            with pytest.raises(NotRocketMQError) as caught:
                await producer.send(Message("T", b"x"))
        async with Admin(address) as admin:
            with pytest.raises(ProtocolError):
                await admin.topics()
        async with Admin([address, namesrv]) as admin:
            await admin.topics()  # the next name server is asked
    assert not caught.value.retriable
    assert str(caught.value).startswith(f"{address}: the connection was lost, because the answer ")
    assert "check that the address is that of a name server or broker" in str(caught.value)


class TestNameServerThatHasJustStarted:
    """No broker has registered, so it is unknown whether a topic exists."""

    async def test_clients_without_a_route_get_a_retriable_error(self) -> None:
        async with (
            name_server() as address,
            Producer(address, retries=0, timeout_s=0.1) as producer,
            PullConsumer(address) as consumer,
        ):
            message = f"no route to the topic T yet: no broker has registered at .*{address}"
            with pytest.raises(NoRouteYetError, match=message) as caught:
                await producer.send(Message("T", b""))
            assert "create it" not in str(caught.value)
            with pytest.raises(NoRouteYetError, match="if it has just started, retry"):
                await consumer.queues("T")
            async with PushConsumer(address, "G", lambda _: None, {"T": "*"}):
                pass  # it waits for the topic

    async def test_a_new_group_does_not_start_at_old_messages(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A topic that is unknown before brokers register is not treated as a new topic."""
        monkeypatch.setattr("firetrail.client.consumers.push.push_consumer.TOPIC_POLL_S", 0.05)
        monkeypatch.setattr(QueueLookups, "is_recent", lambda *_: False)  # as of a large topic
        heard: list[bytes] = []

        async with Broker.running(store=SOON) as broker:
            await fill(broker.namesrv, "T", 4)
            table = broker.topics.offered()
            names = NameServer(NameServerConfig(listen_port=0))
            address = f"127.0.0.1:{await names.start()}"
            async with PushConsumer(
                address, "G", lambda message: heard.append(message.body), {"T": "*"}
            ) as consumer:
                names.register_local(
                    cluster="C", name="broker-a", address=broker.address, topics=table
                )
                await until(lambda: any(q.topic == "T" for q in consumer.assigned))
                await consumer.rebalance()
                async with Producer(broker.namesrv) as producer:
                    await producer.send(Message("T", b"new"))
                await until(lambda: b"new" in heard)
            await names.stop()
        assert heard == [b"new"]

    async def test_clients_with_a_route_continue_to_use_it(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(known_routes, "ROUTE_S", 0.0)
        monkeypatch.setattr(known_routes, "ROUTE_RETRY_S", 0.0)

        def take(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            return request.answer(fields=SendResponse("00" * 16, 0, 7).encode())

        broker = RemotingServer({RequestCode.SEND_MESSAGE_V2: take}, SYSTEM)
        there = f"127.0.0.1:{await broker.start('127.0.0.1', 0)}"
        names = NameServer(NameServerConfig(listen_port=0))
        port = await names.start()
        topics = TopicConfigTable({"T": TopicConfig("T", 1, 1)})
        names.register_local(cluster="C", name="b", address=there, topics=topics)
        async with Producer(f"127.0.0.1:{port}", retries=0, timeout_s=PATIENCE_S) as producer:
            await producer.send(Message("T", b"1"))
            await names.stop()
            for _ in range(3):
                await producer.send(Message("T", b"2"))  # the name server is down
            assert caplog.text.count("the last known route of T remains in use") == 1
            async with (
                name_server(port),
                Producer(f"127.0.0.1:{port}", retries=0, timeout_s=0.1) as other,
            ):
                await producer.send(Message("T", b"3"))  # the name server knows no broker
                with pytest.raises(NoRouteYetError):
                    await other.send(Message("T", b"4"))
        await broker.stop()


class TestWrongAddresses:
    async def test_a_port_without_a_name_server_is_an_error(self) -> None:
        message = (
            r"^no name server answers; check namesrv: 127\.0\.0\.1:1: cannot be reached: "
            r"Connection refused; 127\.0\.0\.1:2: cannot be reached: Connection refused$"
        )
        with pytest.raises(NotReachedError, match=message):
            await Session("127.0.0.1:1; 127.0.0.1:2").open()

    async def test_the_address_of_a_broker_is_an_error(self) -> None:
        async with Broker.running(store=SMALL) as broker, Producer(broker.address) as producer:
            with pytest.raises(RequestError, match="of a name server, not of a broker"):
                await producer.send(Message("T", b""))

    async def test_a_server_that_does_not_answer_is_an_error(self) -> None:
        async def be_silent(connection: Connection, request: RemotingCommand) -> None:
            await asyncio.sleep(0.5)

        server = RemotingServer({RequestCode.GET_BROKER_CLUSTER_INFO: be_silent}, SYSTEM)
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        session = await Session(address).open()
        message = f"^{address}: no answer to GET_BROKER_CLUSTER_INFO within 0.05 s$"
        with pytest.raises(NoAnswerError, match=message):
            await session.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=0.05)
        await session.close()
        await server.stop()
