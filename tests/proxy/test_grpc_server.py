"""The gRPC server and a client that we did not write: grpcio, on both event loops."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import grpc
import pytest
import uvloop
from tests.helpers import PATIENCE_S
from tests.proxy.servers import Client, ServerThread, Text, connected, connected_with_tls

from firetrail.proxy.transport.tls import self_signed_context

Loops = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loops(request: pytest.FixtureRequest) -> Loops:
    factory: Loops = request.param
    return factory


@pytest.fixture
def server(loops: Loops) -> Iterator[ServerThread]:
    with ServerThread(loops).serving() as server:
        yield server


@pytest.fixture
def client(server: ServerThread) -> Iterator[Client]:
    with connected(server.port) as client:
        yield client


@pytest.mark.parametrize("name", ["Echo", "EchoLater"])
def test_a_unary_call_is_answered(server: ServerThread, client: Client, name: str) -> None:
    reply = client.unary(name)(Text("hello"), timeout=PATIENCE_S)
    assert reply == Text("hello")
    server.recorder.wait_for(lambda: server.recorder.ends == [True])


@pytest.mark.parametrize("name", ["Repeat", "RepeatLater"])
def test_responses_arrive_in_order(server: ServerThread, client: Client, name: str) -> None:
    replies = client.responses(name)(Text("34 x"), timeout=PATIENCE_S)
    assert list(replies) == [Text("x")] * 34
    server.recorder.wait_for(lambda: server.recorder.ends == [True])


def test_a_stream_exchanges_messages(server: ServerThread, client: Client) -> None:
    outgoing: SimpleQueue[Text | None] = SimpleQueue()
    replies = client.stream("Stream")(iter(outgoing.get, None), timeout=PATIENCE_S)
    for text in ("a", "b"):
        outgoing.put(Text(text))
        assert next(replies) == Text(text)
    outgoing.put(None)
    assert list(replies) == []
    assert replies.code() is grpc.StatusCode.OK
    server.recorder.wait_for(lambda: server.recorder.events == ["opened", "closed"])
    server.recorder.wait_for(lambda: server.recorder.ends == [True])


def test_tls_and_plaintext_share_a_port(loops: Loops) -> None:
    context = self_signed_context()
    with ServerThread(loops).serving(tls=context) as server:
        certificate = ssl.get_server_certificate(("127.0.0.1", server.port))
        with connected(server.port) as plain, connected_with_tls(server.port, certificate) as tls:
            for client in (plain, tls, plain):
                for name in ("Echo", "EchoLater"):
                    reply = client.unary(name)(Text("x" * 100_000), timeout=PATIENCE_S)
                    assert reply == Text("x" * 100_000)
