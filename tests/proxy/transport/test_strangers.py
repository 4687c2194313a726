"""Clients of which no call was allowed yet: what they can make the server keep, and how long."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.helpers import eventually
from tests.proxy.http2.wire import REQUEST, data, headers
from tests.proxy.servers import SERVICE, ServerThread, Text
from tests.proxy.transport.test_grpc_connection import (
    RawClient,
    check,
    request,
    window_of_everything,
)
from tests.tls.key_updates import DeafTransport

from firetrail.auth.caller import Caller
from firetrail.pace.limited_log import BURST
from firetrail.proxy.transport import grpc_connection
from firetrail.proxy.transport.call import Call, UnaryMethod
from firetrail.proxy.transport.codec import frame_message
from firetrail.proxy.transport.grpc_connection import GrpcConnection
from firetrail.proxy.transport.grpc_limits import GrpcLimits
from firetrail.proxy.transport.grpc_server import GrpcServer
from firetrail.system import SYSTEM
from firetrail.tls.self_signed import self_signed_context
from firetrail.tls.server_tls import ServerTls

LIMIT = 100_000
LONG = 1_000_000
TLS_BEGUN = b"\x16\x03\x01\x02\x00\x01\x00"
Answer = Callable[[Call, Text], Text]


def accept(call: Call, message: Text) -> Text:
    call.accept()
    return message


def accept_unsigned(call: Call, message: Text) -> Text:
    """Answer a call on the white list of a server with access control."""
    call.caller = Caller(None, "127.0.0.1", is_checked=False)
    return accept(call, message)


def long_answer(call: Call, message: Text) -> Text:
    call.accept()
    return Text(message.text * LONG)


@contextmanager
def small_server(
    tls: ServerTls | None = None, connections: int = 10, method: Answer = accept
) -> Iterator[ServerThread]:
    """A server whose strangers may keep little."""
    methods = {f"{SERVICE}/Accept": UnaryMethod(Text, method)}
    thread = ServerThread(asyncio.new_event_loop)
    limits = GrpcLimits(connections=connections, stranger_bytes=LIMIT)
    with thread.serving(limits, tls, methods) as server:
        yield server


@contextmanager
def raw_client(server: ServerThread, receive_buffer: int = 0) -> Iterator[RawClient]:
    client = RawClient(server, receive_buffer)
    yield client
    client.close()


def half_request(client: RawClient, size: int) -> None:
    body = frame_message(bytes(2 * size))[:size]
    parts = [data(1, body[at : at + 16_384], 0) for at in range(0, size, 16_384)]
    client.greet(headers(1, request("Accept")), *parts)


def is_closed(client: RawClient) -> bool:
    with suppress(OSError):
        while client.read() is not None:
            pass
    return True


def test_the_slowest_stranger_is_dropped_for_unfinished_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with small_server() as server, raw_client(server) as slow, raw_client(server) as quick:
        half_request(slow, LIMIT * 3 // 4)
        eventually(lambda: server.server.budget.strangers > LIMIT // 2)
        half_request(quick, LIMIT * 3 // 4)
        assert is_closed(slow)
        eventually(lambda: LIMIT // 2 < server.server.budget.strangers < LIMIT)
        assert len(server.server.connections) == 1
        assert "has made no progress for longest" in caplog.text
    assert (server.server.budget.total, server.server.memory.taken) == (0, 0)


def test_a_client_with_an_allowed_call_is_not_dropped() -> None:
    with small_server() as server, raw_client(server) as known, raw_client(server) as stranger:
        half_request(known, LIMIT * 3 // 4)
        known.send(headers(3, request("Accept")), data(3, frame_message(b"x")))
        assert known.status() == {"grpc-status": "0"}
        assert server.server.budget.total == 0
        half_request(stranger, 2 * LIMIT)
        assert is_closed(stranger)
        assert [each.is_proven for each in server.server.connections] == [True]


def ask(client: RawClient) -> None:
    client.greet(headers(1, request("Accept")), data(1, frame_message(b"x")))
    assert client.status() == {"grpc-status": "0"}


@pytest.mark.parametrize("begun", [b"", b"P", TLS_BEGUN], ids=["silent", "one byte", "TLS"])
def test_the_oldest_stranger_gives_its_slot_to_a_newcomer(
    caplog: pytest.LogCaptureFixture, begun: bytes
) -> None:
    tls = ServerTls.of_context(self_signed_context())
    with small_server(tls, connections=2) as server, raw_client(server) as stranger:
        stranger.send(begun)
        eventually(lambda: len(server.server.connections) == 1)
        for _ in range(2):
            with raw_client(server) as client:
                ask(client)
                with raw_client(server) as other:
                    ask(other)
                    assert is_closed(stranger)
                    with raw_client(server) as refused:
                        assert is_closed(refused)
            eventually(lambda: not server.server.connections)
    assert "it is the oldest on which no request has succeeded, and the limit of 2 " in caplog.text
    assert "refused a connection from 127.0.0.1" in caplog.text


def test_a_call_on_the_white_list_proves_nothing() -> None:
    with (
        small_server(connections=1, method=accept_unsigned) as server,
        raw_client(server) as stranger,
    ):
        ask(stranger)
        with raw_client(server) as client:
            ask(client)
            assert is_closed(stranger)


@pytest.mark.parametrize("size", [0, 12_000], ids=["calls", "headers"])
def test_open_calls_and_their_headers_count(size: int) -> None:
    """Their memory grows without a byte of a request."""
    with small_server() as server, raw_client(server) as client:
        fields = (*REQUEST[:2], (":path", f"{SERVICE}/Accept"), *REQUEST[3:], ("x", "y" * size))
        client.greet()
        with suppress(OSError):
            for number in range(1, 1 << 10, 2):
                client.send(headers(number, fields))
        assert is_closed(client)


def test_responses_that_a_stranger_does_not_read_count() -> None:
    with small_server() as server, raw_client(server, 4096) as client:
        client.greet(window_of_everything())
        with suppress(OSError):
            for number in range(1, 1 << 20, 2):  # these calls have no method
                client.send(headers(number))
        assert is_closed(client)


def test_responses_that_known_clients_do_not_read_count_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each of them is within the limits of one connection."""
    methods = {f"{SERVICE}/Long": UnaryMethod(Text, long_answer)}
    thread = ServerThread(asyncio.new_event_loop)
    with (
        thread.serving(GrpcLimits(server_bytes=3 * LONG // 2), None, methods) as server,
        raw_client(server, 4096) as slow,
        raw_client(server, 4096) as quick,
    ):
        budget = server.server.budget
        ask = headers(1, request("Long")), data(1, frame_message(b"x"))
        slow.greet(*ask)  # without a window for the response
        eventually(lambda: budget.total > LONG // 2)
        assert budget.strangers == 0
        quick.greet(*ask)
        assert is_closed(slow)
        assert "has made no progress for longest" in caplog.text
        assert len(server.server.connections) == 1
    assert budget.total == 0


def test_handshakes_have_to_begin_and_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    with small_server(ServerTls.of_context(self_signed_context())) as server:
        for first, seconds in ((b"", 5), (TLS_BEGUN, 10)):
            with raw_client(server) as client:
                client.send(first)
                eventually(lambda: len(server.server.connections) == 1)
                if first:
                    (connection,) = server.server.connections
                    eventually(lambda one=connection: one._has_begun)  # type: ignore[misc]
                check(server, seconds - 1.0)
                assert server.server.connections
                check(server, seconds + 1.0)
                assert is_closed(client)
                eventually(lambda: not server.server.connections)
        assert "has not begun, or not finished, the TLS handshake in time" in caplog.text


def test_refused_connections_are_logged_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    with small_server() as server:
        for _ in range(BURST + 5):
            with raw_client(server) as client:
                client.send(b"GET / HTTP/1.1\r\n\r\n")
                assert is_closed(client)
    said = [record.getMessage() for record in caplog.records]
    assert len([each for each in said if "does not speak HTTP/2" in each]) == BURST


async def test_activemq_cve_2026_39304_a_flood_of_key_updates_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_connection, "WRITE_HIGH", 20_000)
    context = self_signed_context()
    server = GrpcServer(
        {}, SYSTEM, GrpcLimits(stranger_bytes=1_000_000), ServerTls.of_context(context)
    )
    connection = GrpcConnection(server)
    transport = DeafTransport(connection)
    transport.flood(tmp_path / "keys")
    assert 20_000 < len(transport.written) < 21_000
    assert server.budget.strangers == len(transport.written)
    connection.connection_lost(None)
    assert server.budget.total == 0
