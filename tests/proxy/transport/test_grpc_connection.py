"""Connections of clients that are idle, slow, dead or wrong, frame by frame."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
import uvloop
from tests.helpers import PATIENCE_S, eventually
from tests.proxy.http2.wire import REQUEST, SETTINGS_FRAME, Frame, data, frame, headers, uint32
from tests.proxy.servers import ServerThread, connected
from tests.proxy.servers import Text as Message

from firetrail.proxy.http2.codes import (
    ACK,
    END_STREAM,
    HEAD_SIZE,
    PREFACE,
    FrameType,
    Http2Error,
    SettingId,
)
from firetrail.proxy.http2.frames import read_head
from firetrail.proxy.http2.limits import Http2Limits
from firetrail.proxy.http2.response_headers import encode_block
from firetrail.proxy.kernels.block_decoder import BlockDecoder
from firetrail.proxy.transport.call import StatusCode
from firetrail.proxy.transport.codec import frame_message
from firetrail.proxy.transport.grpc_connection import GrpcConnection
from firetrail.proxy.transport.grpc_limits import GrpcLimits


def request(method: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    path = (":path", f"/test.Service/{method}")
    return (*REQUEST[:2], path, *REQUEST[3:], *more)


class RawClient:
    """A client that sends what it likes."""

    def __init__(self, server: ServerThread, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", server.port))
        self.file = self.socket.makefile("rb")
        self.decoder = BlockDecoder(Http2Limits())

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def greet(self, *parts: bytes) -> None:
        self.send(PREFACE, SETTINGS_FRAME, *parts)

    def read(self) -> Frame | None:
        """Return the next frame; None if the server has closed the connection."""
        head = self.file.read(HEAD_SIZE)
        if len(head) < HEAD_SIZE:
            return None
        high, low, kind, flags, stream_id = read_head(head, 0)
        payload = self.file.read(high << 8 | low)
        return Frame(FrameType(kind), flags, stream_id, payload)

    def read_until(self, kind: FrameType) -> Frame:
        while (found := self.read()) is not None:
            if found.kind is kind:
                return found
        raise AssertionError(f"the connection was closed without {kind.name}")

    def status(self) -> dict[str, str]:
        """Return the fields of the next headers or trailers that end a call."""
        while True:
            found = self.read_until(FrameType.HEADERS)
            fields = self.decoder.decode(found.payload)
            if found.flags & END_STREAM:
                return {name: value for name, value, _ in fields}

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    limits = GrpcLimits(connections=2, http2=Http2Limits(queued_bytes=8 << 20))
    with ServerThread(request.param).serving(limits) as server:
        for listener in server.server._acceptor._listeners._servers:
            for listening in listener.sockets:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        yield server


@pytest.fixture
def client(server: ServerThread) -> Iterator[RawClient]:
    client = RawClient(server)
    yield client
    client.close()


def check_at(connection: GrpcConnection, after_s: float) -> None:
    connection.check(connection.loop.time() + after_s)


def check(server: ServerThread, *after_s: float) -> None:
    """Check the only connection at times in the future."""
    connection: GrpcConnection
    (connection,) = server.server.connections
    for second in after_s:
        server.call(partial(check_at, connection, second))


def test_requests_that_are_not_grpc(client: RawClient) -> None:
    client.greet()
    get = ((":method", "GET"), *REQUEST[1:])
    other = (*REQUEST[:-1], ("content-type", "application/json"))
    for number, fields, status in (
        (1, get, "405"),
        (3, other, "415"),
        (5, REQUEST[:-1], "415"),
        (7, (*REQUEST[:-1], ("content-type", "application/grpcs")), "415"),
        (9, (*REQUEST[:-1], ("content-type", "application/grpc+json")), "415"),
    ):
        client.send(headers(number, fields))
        assert client.status() == {":status": status}
    client.send(headers(11, (*REQUEST[:-1], ("content-type", "application/grpc+proto"))))
    client.send(data(11, frame_message(b"x")))
    assert client.status() == {"grpc-status": "0"}


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        (request("Echo"), b"", StatusCode.INTERNAL),
        (request("Echo"), frame_message(b"x")[:-1], StatusCode.INTERNAL),
        (request("Echo"), frame_message(b"x") * 2, StatusCode.INTERNAL),
        (request("Echo"), frame_message(b"\xff"), StatusCode.INTERNAL),
        (request("Stream"), frame_message(b"\xff"), StatusCode.INTERNAL),
        (request("Stream"), frame_message(b"x")[:-1], StatusCode.INTERNAL),
        (request("Echo", ("grpc-timeout", "soon")), frame_message(b"x"), StatusCode.INTERNAL),
        (request("Echo", ("grpc-encoding", "br")), frame_message(b"x"), StatusCode.UNIMPLEMENTED),
    ],
)
def test_malformed_calls(
    client: RawClient,
    caplog: pytest.LogCaptureFixture,
    fields: tuple[tuple[str, str], ...],
    body: bytes,
    code: StatusCode,
) -> None:
    client.greet(headers(1, fields), data(1, body))
    assert client.status()["grpc-status"] == str(int(code))
    client.send(headers(3), data(3, frame_message(b"still here")))
    assert client.status() == {"grpc-status": "0"}
    assert not caplog.records  # otherwise clients could fill the log


def test_the_server_ends_calls_at_their_deadline(server: ServerThread, client: RawClient) -> None:
    client.greet(headers(1, request("Wait", ("grpc-timeout", "50m"))), data(1, frame_message(b"")))
    assert client.status()["grpc-status"] == str(int(StatusCode.DEADLINE_EXCEEDED))
    server.recorder.wait_for(lambda: server.recorder.events == ["waiting", "cancelled"])
    server.recorder.wait_for(lambda: server.recorder.ends == [False])
    client.send(headers(3, request("Stream", ("grpc-timeout", "50m"))))
    assert client.status()["grpc-status"] == str(int(StatusCode.DEADLINE_EXCEEDED))
    server.recorder.wait_for(lambda: server.recorder.events[2:] == ["opened", "closed"])


def test_calls_whose_deadline_has_passed_are_not_started(
    server: ServerThread, client: RawClient
) -> None:
    client.greet(headers(1, request("Echo", ("grpc-timeout", "0S"))), data(1, frame_message(b"")))
    assert client.status()["grpc-status"] == str(int(StatusCode.DEADLINE_EXCEEDED))
    assert not server.recorder.calls


def test_a_connection_without_calls_is_closed(server: ServerThread, client: RawClient) -> None:
    client.greet(headers(1), data(1, frame_message(b"x")))
    assert client.status() == {"grpc-status": "0"}
    check(server, 119.0)
    client.send(frame(FrameType.PING, 0, 0, bytes(8)))
    client.read_until(FrameType.PING)
    check(server, 121.0)
    assert client.read_until(FrameType.GOAWAY).error is Http2Error.NO_ERROR
    assert client.read() is None


def test_an_open_stream_keeps_the_connection(server: ServerThread, client: RawClient) -> None:
    client.greet(headers(1, request("Stream")))
    server.recorder.wait_for(lambda: server.recorder.events == ["opened"])
    check(server, 1000.0)
    ping = client.read_until(FrameType.PING)
    client.send(frame(FrameType.PING, ACK, 0, ping.payload), data(1, frame_message(b"x"), 0))
    assert client.read_until(FrameType.DATA).payload == frame_message(b"x")
    check(server, 50.0)
    assert len(server.server.connections) == 1


def test_a_client_that_does_not_answer_is_dropped(server: ServerThread, client: RawClient) -> None:
    client.greet(headers(1, request("Stream")))
    server.recorder.wait_for(lambda: server.recorder.events == ["opened"])
    check(server, 61.0, 80.0)
    assert server.recorder.events == ["opened"]
    check(server, 82.0)
    server.recorder.wait_for(lambda: server.recorder.events == ["opened", "closed"])
    assert server.recorder.ends == [False]


def test_a_client_that_says_nothing_is_dropped(server: ServerThread, client: RawClient) -> None:
    eventually(lambda: len(server.server.connections) == 1)
    check(server, 31.0)
    assert client.read() is None


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_other_protocols_are_refused(client: RawClient, first: bytes) -> None:
    client.send(first)
    assert client.read_until(FrameType.GOAWAY).error is Http2Error.PROTOCOL_ERROR
    assert client.read() is None


@pytest.mark.parametrize("method", ["Echo", "Stream"])
def test_a_request_must_arrive_in_time(
    server: ServerThread, client: RawClient, method: str
) -> None:
    client.greet(headers(1, request(method)), data(1, frame_message(b"x" * 100)[:50], 0))
    (connection,) = eventually_connections(server)
    held = 50 + len(encode_block(request(method)))
    eventually(lambda: connection.memory.taken == held)
    check(server, 29.0)
    assert connection.memory.taken == held
    check(server, 31.0)
    assert client.status()["grpc-status"] == str(int(StatusCode.DEADLINE_EXCEEDED))
    assert connection.memory.taken == 0


def eventually_connections(server: ServerThread) -> set[GrpcConnection]:
    eventually(lambda: bool(server.server.connections))
    return server.server.connections


def test_an_address_has_a_limited_number_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    limits = GrpcLimits(connections_per_address=1, limit_loopback=True)
    with ServerThread(asyncio.new_event_loop).serving(limits) as server:
        first = RawClient(server)
        first.greet()
        first.read_until(FrameType.SETTINGS)
        second = RawClient(server)
        with suppress(OSError):
            assert second.read() is None
        assert "127.0.0.1 has 1 connections, the limit for an address" in caplog.text
        first.close()
        eventually(lambda: not server.server.connections)
        third = RawClient(server)
        third.greet()
        third.read_until(FrameType.SETTINGS)
        for client in (second, third):
            client.close()


def window_of_everything() -> bytes:
    widest = SettingId.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + uint32(2**31 - 1)
    update = frame(FrameType.WINDOW_UPDATE, 0, 0, uint32(2**31 - 1 - 65_535))
    return frame(FrameType.SETTINGS, 0, 0, widest) + update


@pytest.fixture
def deaf(server: ServerThread) -> Iterator[RawClient]:
    """A client whose windows are wide open, and whose socket buffers little."""
    client = RawClient(server, receive_buffer=4096)
    client.greet(window_of_everything())
    yield client
    client.close()


def ask_for(client: RawClient, mebibytes: int) -> None:
    body = frame_message(f"{mebibytes} {'x' * (1 << 20)}".encode())
    parts = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    client.send(headers(1, request("Repeat")), *(data(1, part, 0) for part in parts), data(1, b""))


def test_a_client_that_does_not_read_is_dropped_for_its_memory(
    server: ServerThread, deaf: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    ask_for(deaf, 12)
    eventually(lambda: "does not read its responses" in caplog.text)
    eventually(lambda: not server.server.connections)


def test_a_client_that_does_not_read_is_dropped_after_a_time(
    server: ServerThread, deaf: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    ask_for(deaf, 6)
    (connection,) = eventually_connections(server)
    eventually(lambda: connection._is_held)
    check(server, 0.0, 59.0)
    assert server.server.connections
    check(server, 61.0)
    eventually(lambda: not server.server.connections)
    assert "does not read its responses" in caplog.text


def test_a_client_that_reads_again_is_served_again(server: ServerThread, deaf: RawClient) -> None:
    ask_for(deaf, 6)
    (connection,) = eventually_connections(server)
    eventually(lambda: connection._is_held)
    deaf.send(headers(3), data(3, frame_message(b"x")))
    assert [deaf.status(), deaf.status()] == [{"grpc-status": "0"}] * 2
    assert not connection._is_held


def test_many_calls_at_once_leave_time_for_others(server: ServerThread, client: RawClient) -> None:
    """Calls that arrive together are started in slices; all of them are answered."""
    numbers = range(1, 2001, 2)
    client.greet(window_of_everything())
    client.send(*(headers(n) + data(n, frame_message(b"x")) for n in numbers))
    ended: set[int] = set()
    while len(ended) < len(numbers):
        found = client.read_until(FrameType.HEADERS)
        if found.flags & END_STREAM:
            ended.add(found.stream_id)
    assert ended == set(numbers)


def test_calls_are_refused_while_responses_wait(server: ServerThread) -> None:
    limits = GrpcLimits(response_bytes=1000)
    with ServerThread(asyncio.new_event_loop).serving(limits) as small:
        client = RawClient(small)
        none = SettingId.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + uint32(0)
        client.greet(frame(FrameType.SETTINGS, 0, 0, none))
        client.send(headers(1, request("Repeat")), data(1, frame_message(b"1 " + b"x" * 2000)))
        client.send(headers(3), data(3, frame_message(b"x")))
        assert client.status()["grpc-message"] == "too many bytes of responses wait for the client"
        client.close()


def test_a_violation_is_logged(
    server: ServerThread, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    client.greet(data(1, b"x"))
    assert client.read_until(FrameType.GOAWAY).error is Http2Error.PROTOCOL_ERROR
    assert client.read() is None
    assert "a frame names a stream that was never opened" in caplog.text


def test_pings_are_answered_however_many(server: ServerThread) -> None:
    """grpcio's server answers frequent pings with GOAWAY; clients of RocketMQ send them."""
    client = RawClient(server)
    client.greet()
    for _ in range(50):
        client.send(frame(FrameType.PING, 0, 0, b"12345678"))
        assert client.read_until(FrameType.PING).payload == b"12345678"
    with connected(server.port) as other:
        assert other.unary("Echo")(Message("x"), timeout=PATIENCE_S) == Message("x")
    client.close()


def echo_all(number: int, text: str) -> bytes:
    return headers(number, request("EchoAll")) + data(number, frame_message(text.encode()))


def answers(client: RawClient, count: int) -> dict[int, bytes | str]:
    """Return the messages, or the statuses of failed calls, by the number of their stream."""
    found: dict[int, bytes | str] = {}
    while count:
        frame = client.read()
        assert frame is not None
        if frame.kind is FrameType.DATA:
            found[frame.stream_id] = frame.payload[5:]
        elif frame.kind is FrameType.HEADERS:
            fields = {name: value for name, value, _ in client.decoder.decode(frame.payload)}
            if frame.flags & END_STREAM:
                count -= 1
                if fields["grpc-status"] != "0":
                    found[frame.stream_id] = fields["grpc-status"]
    return found


def test_calls_that_arrive_together_are_handled_together(
    server: ServerThread, client: RawClient
) -> None:
    other = headers(5, request("Echo")) + data(5, frame_message(b"c"))
    reset = frame(FrameType.RST_STREAM, 0, 9, uint32(Http2Error.CANCEL))
    calls = [echo_all(1, "a"), echo_all(3, "b"), other]
    calls += [echo_all(7, "d"), echo_all(9, "x"), reset, echo_all(11, "later")]
    client.greet(*calls)
    expected = {1: b"a", 3: b"b", 5: b"c", 7: b"d", 11: b"later"}
    assert answers(client, len(expected)) == expected
    noted = [event for event in server.recorder.events if " " in event]
    assert noted == ["a b", "d later"]


def test_a_failure_ends_all_calls_that_are_handled_together(client: RawClient) -> None:
    client.greet(echo_all(1, "a"), echo_all(3, "crash"))
    assert answers(client, 2) == dict.fromkeys((1, 3), str(int(StatusCode.INTERNAL)))
    client.send(echo_all(5, "crash"))  # alone, it is handled as any other call
    assert answers(client, 1) == {5: b"crash"}
