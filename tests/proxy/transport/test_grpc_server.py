"""The gRPC server and a client that we did not write: grpcio, on both event loops."""

import asyncio
import base64
import ssl
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import grpc
import pytest
import uvloop
from tests.helpers import PATIENCE_S, eventually
from tests.proxy.servers import (
    Client,
    ServerThread,
    Text,
    connected,
    connected_with_tls,
    methods_of,
)

from firetrail.auth.caller import Caller
from firetrail.auth.policies import User
from firetrail.errors import AddressInUseError
from firetrail.proxy.transport.call import Call, UnaryMethod
from firetrail.proxy.transport.grpc_limits import GrpcLimits
from firetrail.proxy.transport.grpc_server import GrpcServer
from firetrail.system import SYSTEM
from firetrail.tls.self_signed import self_signed_context
from firetrail.tls.server_tls import ServerTls

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


def status_of(failed: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    return failed.value.code(), failed.value.details()


INTERNAL = "the server failed to handle the call; its log has the reason"


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("Refuse", "FAILED_PRECONDITION", "50 % größer\n✓"),
        ("RefuseLater", "FAILED_PRECONDITION", "50 % größer\n✓"),
        ("Crash", "INTERNAL", INTERNAL),
        ("CrashLater", "INTERNAL", INTERNAL),
        ("Wrong", "INTERNAL", INTERNAL),
        ("Cancel", "CANCELLED", "the server cancelled the call"),
        ("Nothing", "UNIMPLEMENTED", "there is no method /test.Service/Nothing"),
    ],
)
def test_errors_of_methods_reach_the_client(
    client: Client, caplog: pytest.LogCaptureFixture, name: str, code: str, text: str
) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        client.unary(name)(Text("50 % größer\n✓"), timeout=PATIENCE_S)
    assert status_of(failed) == (grpc.StatusCode[code], text)
    assert (f"/test.Service/{name} of 127.0.0.1:" in caplog.text) == (code == "INTERNAL")
    assert client.unary("Echo")(Text("ok"), timeout=PATIENCE_S) == Text("ok")


@pytest.mark.parametrize(
    ("word", "code"), [("refuse", "PERMISSION_DENIED"), ("crash", "INTERNAL"), ("finish", "OK")]
)
def test_a_stream_ends_with_a_status(
    server: ServerThread, client: Client, word: str, code: str
) -> None:
    outgoing: SimpleQueue[Text | None] = SimpleQueue()
    replies = client.stream("Stream")(iter(outgoing.get, None), timeout=PATIENCE_S)
    outgoing.put(Text("a"))
    assert next(replies) == Text("a")
    outgoing.put(Text(word))
    assert replies.code() is grpc.StatusCode[code]
    outgoing.put(None)
    server.recorder.wait_for(lambda: server.recorder.events == ["opened", "closed"])
    server.recorder.wait_for(lambda: server.recorder.ends == [True])


def test_metadata_and_addresses_reach_the_method(server: ServerThread, client: Client) -> None:
    metadata = (("x-a", "1"), ("x-a", "2"), ("x-b-bin", b"\0\xff"), ("x-c", "a b"))
    client.unary("Echo")(Text(), timeout=PATIENCE_S, metadata=metadata)
    call = server.recorder.calls[0]
    assert (call.metadata["x-a"], call.metadata["x-c"]) == ("2", "a b")
    assert base64.b64decode(call.metadata["x-b-bin"] + "==") == b"\0\xff"
    assert call.local == call.authority == f"127.0.0.1:{server.port}"
    assert call.peer.startswith("127.0.0.1:")
    remaining = call.remaining_s()
    assert remaining is not None
    assert 0 <= remaining <= 1.01 * PATIENCE_S  # grpcio rounds it up
    client.unary("Echo")(Text())
    assert server.recorder.calls[1].remaining_s() is None


def test_a_deadline_cancels_the_method(server: ServerThread, client: Client) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        client.unary("Wait")(Text(), timeout=0.1)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server.recorder.wait_for(lambda: server.recorder.events == ["waiting", "cancelled"])
    server.recorder.wait_for(lambda: len(server.recorder.ends) == 1)


def test_a_cancelled_call_cancels_the_method(server: ServerThread, client: Client) -> None:
    call = client.unary("Wait").future(Text())
    server.recorder.wait_for(lambda: "waiting" in server.recorder.events)
    call.cancel()
    server.recorder.wait_for(lambda: "cancelled" in server.recorder.events)
    server.recorder.wait_for(lambda: server.recorder.ends == [False])


def test_a_lost_client_cancels_its_calls(server: ServerThread) -> None:
    with connected(server.port) as client:
        outgoing: SimpleQueue[Text | None] = SimpleQueue()
        calls = [
            client.unary("Wait").future(Text()),
            client.stream("Stream")(iter(outgoing.get, None)),
        ]
        server.recorder.wait_for(lambda: len(server.recorder.events) == 2)
    outgoing.put(None)
    assert all(call.done() for call in calls)
    server.recorder.wait_for(lambda: len(server.recorder.events) == 4)
    assert set(server.recorder.events) == {"waiting", "opened", "cancelled", "closed"}
    server.recorder.wait_for(lambda: server.recorder.ends == [False, False])
    eventually(lambda: not server.server.connections)
    assert (server.server.shares.total, server.server.memory.taken) == (0, 0)
    assert not server.server.tasks


def test_messages_of_5_mib(server: ServerThread, client: Client) -> None:
    text = Text("abcdefgh" * (5 << 17))
    assert client.unary("Echo")(text, timeout=PATIENCE_S) == text
    assert client.unary("EchoLater")(text, timeout=PATIENCE_S) == text
    replies = client.responses("Repeat")(Text(f"10 {'x' * (1 << 20)}"), timeout=PATIENCE_S)
    assert [len(one.text) for one in replies] == [1 << 20] * 10
    eventually(lambda: not server.server.memory.taken)


def test_many_streams_on_one_connection(server: ServerThread, client: Client) -> None:
    waits = [client.unary("Wait").future(Text()) for _ in range(300)]
    server.recorder.wait_for(lambda: server.recorder.events.count("waiting") == 300)
    echoes = [client.unary("EchoLater").future(Text(str(n))) for n in range(300)]
    assert [echo.result(PATIENCE_S).text for echo in echoes] == [str(n) for n in range(300)]
    assert len(server.server.connections) == 1
    for wait in waits:
        wait.cancel()
    server.recorder.wait_for(lambda: server.recorder.events.count("cancelled") == 300)


def test_compressed_requests(client: Client) -> None:
    text = Text("a" * 100_000)
    compressed = {"compression": grpc.Compression.Gzip, "timeout": PATIENCE_S}
    assert client.unary("Echo")(text, **compressed) == text
    with pytest.raises(grpc.RpcError) as failed:
        client.unary("Echo")(text, compression=grpc.Compression.Deflate, timeout=PATIENCE_S)
    assert status_of(failed) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "the compression 'deflate' is not supported",
    )


def test_messages_above_the_limits_are_refused() -> None:
    limits = GrpcLimits(message_bytes=1000, inflated_bytes=2000, connection_bytes=1500)
    thread = ServerThread(asyncio.new_event_loop)
    with thread.serving(limits) as server, connected(server.port) as client:
        echo = client.unary("Echo")
        for size, compression in ((1001, 0), (2001, 2)):
            with pytest.raises(grpc.RpcError) as failed:
                echo(Text("x" * size), compression=compression, timeout=PATIENCE_S)
            assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "is longer than" in failed.value.details()
        waiting = client.unary("Wait").future(Text("x" * 900))
        server.recorder.wait_for(lambda: "waiting" in server.recorder.events)
        with pytest.raises(grpc.RpcError) as failed:
            echo(Text("x" * 900), timeout=PATIENCE_S)
        expected = "the server has too many bytes of requests waiting"
        assert status_of(failed) == (grpc.StatusCode.RESOURCE_EXHAUSTED, expected)
        waiting.cancel()
        server.recorder.wait_for(lambda: "cancelled" in server.recorder.events)
        assert echo(Text("x" * 900), timeout=PATIENCE_S)


def test_a_method_may_have_a_smaller_limit() -> None:
    thread = ServerThread(asyncio.new_event_loop)
    methods = {"/test.Service/Echo": UnaryMethod(Text, lambda call, text: text, None, 1000)}
    with thread.serving(None, None, methods) as server, connected(server.port) as client:
        echo = client.unary("Echo")
        for compression in (0, 2):
            assert echo(Text("x" * 900), compression=compression, timeout=PATIENCE_S)
            with pytest.raises(grpc.RpcError) as failed:
                echo(Text("x" * 1001), compression=compression, timeout=PATIENCE_S)
            assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_calls_above_the_limit_are_refused() -> None:
    thread = ServerThread(asyncio.new_event_loop)
    with thread.serving(GrpcLimits(calls=1)) as server, connected(server.port) as client:
        waiting = client.unary("Wait").future(Text())
        server.recorder.wait_for(lambda: "waiting" in server.recorder.events)
        with pytest.raises(grpc.RpcError) as failed:
            client.unary("Echo")(Text(), timeout=PATIENCE_S)
        code, text = status_of(failed)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "address 127.0.0.1 has 1 gRPC calls, and all callers have 1 of at most 1" in text
        waiting.cancel()


def test_the_calls_of_one_user_leave_room_for_those_of_others() -> None:
    def enter(call: Call, request: Text) -> Text:
        call.caller = Caller(User(request.text, "password"), "127.0.0.1", is_checked=True)
        call.accept()
        return request

    thread = ServerThread(asyncio.new_event_loop)
    methods = {**methods_of(thread.recorder), "/test.Service/Enter": UnaryMethod(Text, enter)}
    limits = GrpcLimits(calls=4)
    with (
        thread.serving(limits, None, methods) as server,
        connected(server.port) as greedy,
        connected(server.port) as other,
    ):
        greedy.unary("Enter")(Text("alice"), timeout=PATIENCE_S)
        waiting = [greedy.unary("Wait").future(Text()) for _ in range(2)]
        server.recorder.wait_for(lambda: server.recorder.events == ["waiting"] * 2)
        with pytest.raises(grpc.RpcError) as failed:
            greedy.unary("Echo")(Text(), timeout=PATIENCE_S)
        assert "user alice has 2 gRPC calls" in status_of(failed)[1]
        other.unary("Enter")(Text("bob"), timeout=PATIENCE_S)
        other.unary("Echo")(Text(), timeout=PATIENCE_S)
        for call in waiting:
            call.cancel()


def test_a_stop_lets_calls_finish_and_ends_streams(loops: Loops) -> None:
    release: list[asyncio.Event] = []

    async def slow(call: Call, request: Text) -> Text:
        release.append(asyncio.Event())
        await release[0].wait()
        return request

    thread = ServerThread(loops)
    methods = {**methods_of(thread.recorder), "/test.Service/Slow": UnaryMethod(Text, slow)}
    with thread.serving(methods=methods) as server, connected(server.port) as client:
        call = client.unary("Slow").future(Text("done"), timeout=PATIENCE_S)
        outgoing: SimpleQueue[Text | None] = SimpleQueue()
        replies = client.stream("Stream")(iter(outgoing.get, None), timeout=PATIENCE_S)
        eventually(lambda: bool(release) and "opened" in server.recorder.events)
        server.stop()
        assert replies.code() is grpc.StatusCode.UNAVAILABLE
        assert replies.details() == "the server is stopping"
        outgoing.put(None)
        server.loop.call_soon_threadsafe(release[0].set)
        assert call.result() == Text("done")


def test_a_stop_ends_calls_that_take_too_long(loops: Loops) -> None:
    with ServerThread(loops).serving() as server, connected(server.port) as client:
        call = client.unary("Wait").future(Text(), timeout=PATIENCE_S)
        server.recorder.wait_for(lambda: "waiting" in server.recorder.events)
        server.grace_s = 0.0
        server.stop()
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        server.recorder.wait_for(lambda: "cancelled" in server.recorder.events)


async def test_a_port_in_use_is_named() -> None:
    first, second = GrpcServer({}, SYSTEM), GrpcServer({}, SYSTEM)
    port = await first.start("127.0.0.1", 0)
    assert first.port == port
    expected = f"127.0.0.1:{port}: the port is in use; stop the program that listens there"
    with pytest.raises(AddressInUseError, match=expected):
        await second.start("127.0.0.1", port)
    await second.stop()
    await first.stop()


def test_tls_and_plaintext_share_a_port(loops: Loops) -> None:
    port_tls = ServerTls.of_context(self_signed_context())
    with ServerThread(loops).serving(tls=port_tls) as server:
        certificate = ssl.get_server_certificate(("127.0.0.1", server.port))
        with connected(server.port) as plain, connected_with_tls(server.port, certificate) as tls:
            for client in (plain, tls, plain):
                for name in ("Echo", "EchoLater"):
                    reply = client.unary(name)(Text("x" * 100_000), timeout=PATIENCE_S)
                    assert reply == Text("x" * 100_000)
