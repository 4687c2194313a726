"""Server and client over real sockets on loopback."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.helpers import PATIENCE_S
from tests.remoting.loopbacks import (
    BROKEN,
    ECHO,
    FAIL,
    HANDLERS,
    NOTE,
    SLOW,
    UNWRITABLE,
    Loopback,
    echo,
    serving,
)

from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.servers.remoting_server import BUSY, RemotingServer
from firetrail.remoting.wire.codes import CommandFlag, RequestCode, ResponseCode, Serialize
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameLimits, FrameReader, encode_frame
from firetrail.system import SYSTEM


@pytest.fixture
async def loopback() -> AsyncIterator[Loopback]:
    async with serving() as loopback:
        yield loopback


@pytest.mark.parametrize("serialize", Serialize)
async def test_a_request_gets_its_response(loopback: Loopback, serialize: Serialize) -> None:
    answer = await loopback.ask(ECHO, fields={"a": "b"}, body=b"x" * 100_000, serialize=serialize)
    assert (answer.code, answer.fields, len(answer.content)) == (0, {"a": "b"}, 100_000)
    assert answer.serialize is serialize


async def test_many_requests_share_one_connection(loopback: Loopback) -> None:
    answers = await asyncio.gather(
        *(loopback.ask(SLOW if n % 3 else ECHO, body=b"%d" % n) for n in range(300))
    )
    assert len(loopback.server.connections) == 1
    for n, answer in enumerate(answers):
        assert (answer.remark == "at last") if n % 3 else (answer.content == b"%d" % n)


class TestFailures:
    async def test_a_request_error_is_answered_with_its_code(self, loopback: Loopback) -> None:
        with pytest.raises(RequestError, match="no such topic") as caught:
            await loopback.client.ask(loopback.address, RemotingCommand(FAIL))
        assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST

    async def test_an_unexpected_error_is_answered_and_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving() as loopback:
            answer = await loopback.ask(BROKEN)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == "ZeroDivisionError: a bug"
            assert (await loopback.ask(ECHO)).code == 0
        assert "request 4 failed" in caplog.text

    async def test_an_unknown_code_is_answered_as_not_supported(self, loopback: Loopback) -> None:
        answer = await loopback.ask(4711)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == " request type 4711 not supported"

    async def test_a_port_without_a_server_is_a_connection_error(self) -> None:
        client = RemotingClient()
        with pytest.raises(OSError):
            await client.request("127.0.0.1:1", RemotingCommand(ECHO))
        await client.close()

    async def test_a_late_answer_after_a_timeout_is_ignored(self, loopback: Loopback) -> None:
        with pytest.raises(TimeoutError):
            await loopback.client.request(loopback.address, RemotingCommand(SLOW), 0.001)
        assert (await loopback.ask(ECHO, body=b"still fine")).content == b"still fine"

    async def test_requests_fail_when_the_server_closes_the_connection(
        self, loopback: Loopback
    ) -> None:
        asked = asyncio.ensure_future(loopback.ask(SLOW))
        while not loopback.server.connections:
            await asyncio.sleep(0.001)
        next(iter(loopback.server.connections)).abort()
        with pytest.raises(ConnectionError, match="lost"):
            await asked
        assert (await loopback.ask(ECHO)).code == 0  # on a new connection


async def test_nothing_is_written_after_a_connection_was_aborted(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    await loopback.ask(ECHO)
    (connection,) = loopback.server.connections
    written: list[object] = []
    monkeypatch.setattr(connection._transport, "writelines", written.append)
    connection.send(RemotingCommand(ECHO))  # which is written in the next cycle of the loop
    connection.abort()
    while not connection.is_closed:
        await asyncio.sleep(0)
    assert written == []


async def test_one_way_is_not_answered(loopback: Loopback) -> None:
    async with loopback.raw() as (reader, writer):
        for flag in (CommandFlag.ONE_WAY, 0):
            writer.writelines(encode_frame(RemotingCommand(ECHO, opaque=int(flag), flag=flag)))
        (answer,) = FrameReader().feed(await reader.read(1000))
        assert answer.opaque == 0


async def test_a_server_sends_requests_to_its_client() -> None:
    received: list[RemotingCommand] = []

    def note(connection: Connection, request: RemotingCommand) -> None:
        received.append(request)

    handlers: dict[int, Handler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: note, ECHO: echo}
    async with serving(client_handlers=handlers) as loopback:
        await loopback.ask(ECHO)
        (connection,) = loopback.server.connections
        connection.tell(
            RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
        )
        answer = await connection.request(RemotingCommand(ECHO, body=b"you too"), PATIENCE_S)
        assert answer.content == b"you too"
        assert (await connection.request(RemotingCommand(99), PATIENCE_S)).code == 3
        assert received[0].fields == {"consumerGroup": "G"}


async def test_requests_of_the_peer_are_handled_before_an_answer_that_follows_them() -> None:
    received: list[RemotingCommand] = []

    def note(connection: Connection, request: RemotingCommand) -> None:
        received.append(request)

    def tell(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        connection.tell(RemotingCommand(NOTE))
        return request.answer()  # which is written together with the request

    async with serving(client_handlers={NOTE: note}, handlers={ECHO: tell}) as loopback:
        for count in (1, 2):
            await loopback.ask(ECHO)
            assert len(received) == count


async def test_a_client_that_is_closed_answers_no_more() -> None:
    """Its handler had not begun, and is never awaited."""
    answered: list[RemotingCommand] = []

    async def note(connection: Connection, request: RemotingCommand) -> None:
        answered.append(request)

    async with serving(client_handlers={NOTE: note}) as loopback:
        connection = await loopback.client.connect(loopback.address)
        loopback.client.received(connection, [RemotingCommand(NOTE)])
        await loopback.client.close()
    gc.collect()  # finds coroutines that were never awaited
    assert not answered


async def test_a_client_says_that_its_answer_cannot_be_encoded() -> None:
    async with serving(client_handlers={UNWRITABLE: HANDLERS[UNWRITABLE]}) as loopback:
        await loopback.ask(ECHO)
        (connection,) = loopback.server.connections
        command = RemotingCommand(UNWRITABLE, serialize=Serialize.ROCKETMQ)
        answer = await connection.request(command, PATIENCE_S)
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_the_server_notices_a_closed_connection() -> None:
    gone: list[str] = []

    async with serving(on_closed=lambda connection: gone.append(connection.peer)) as loopback:
        async with loopback.raw() as (_, writer):
            mine = "{}:{}".format(*writer.get_extra_info("sockname"))
            await asyncio.sleep(0.01)
        while not gone:
            await asyncio.sleep(0.001)
        assert gone == [mine]


async def test_a_connection_that_fails_after_its_caller_was_cancelled_is_not_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    logged: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: logged.append(context))
    begun, ended = asyncio.Event(), asyncio.Event()

    async def refuse(*_: object) -> None:
        begun.set()
        await ended.wait()
        raise ConnectionRefusedError

    monkeypatch.setattr(loop, "create_connection", refuse)
    client = RemotingClient()
    caller = loop.create_task(client.connect("127.0.0.1:1"))
    await begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    ended.set()
    while client._connecting:
        await asyncio.sleep(0)
    del caller  # its traceback refers to the failed task
    gc.collect()
    loop.set_exception_handler(None)
    await client.close()
    assert logged == []


class TestLimits:
    @pytest.mark.parametrize(
        "garbage",
        [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\xff" * 9, b"\0" * 9],
        ids=["http", "tls", "ones", "zeros"],
    )
    async def test_garbage_closes_the_connection(self, loopback: Loopback, garbage: bytes) -> None:
        async with loopback.raw() as (reader, writer):
            writer.write(garbage.ljust(16, b"\0"))
            assert await reader.read(100) == b""
        assert (await loopback.ask(ECHO)).code == 0

    async def test_requests_before_garbage_are_handled(
        self, monkeypatch: pytest.MonkeyPatch, loopback: Loopback
    ) -> None:
        handled = asyncio.Event()

        def note(connection: Connection, request: RemotingCommand) -> None:
            handled.set()

        monkeypatch.setitem(HANDLERS, NOTE, note)
        async with loopback.raw() as (_, writer):
            writer.write(b"".join(encode_frame(RemotingCommand(NOTE))) + b"\xff" * 20)
            await handled.wait()

    async def test_a_frame_that_takes_too_long_closes_the_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("firetrail.remoting.servers.acceptor.SWEEP_S", 0.01)
        async with serving(ServerLimits(frame_s=0.1)) as loopback:
            frame = b"".join(encode_frame(RemotingCommand(ECHO, body=b"x" * 500)))
            async with loopback.raw() as (reader, writer):
                closed = asyncio.ensure_future(reader.read(1))
                for byte in frame:  # sending a byte now and then does not extend the time
                    if closed.done():
                        break
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.005)
                with contextlib.suppress(ConnectionResetError):  # the connection is reset
                    assert await closed == b""

    async def test_idle_connections_are_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("firetrail.remoting.servers.acceptor.SWEEP_S", 0.01)
        limits = ServerLimits(idle_s=0.05)
        async with serving(limits) as loopback, loopback.raw() as (reader, _):
            assert await reader.read(1) == b""

    async def test_idle_connections_are_closed_although_something_else_fails(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("firetrail.remoting.servers.acceptor.SWEEP_S", 0.01)

        def fail(*args: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr("firetrail.remoting.servers.addresses.ClientAddresses.sweep", fail)
        async with serving(ServerLimits(idle_s=0.05)) as loopback:
            for _ in range(2):
                async with loopback.raw() as (reader, _):
                    assert await reader.read(1) == b""
        assert caplog.messages == ["addresses could not be forgotten: can't start new thread"]

    async def test_a_connection_that_cannot_be_checked_is_closed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("firetrail.remoting.servers.acceptor.SWEEP_S", 0.01)

        def fail(*args: object) -> None:
            raise RuntimeError("unforeseen")

        monkeypatch.setattr(Connection, "handshake_deadline", property(fail))
        async with serving() as loopback, loopback.raw() as (reader, _):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(1) == b""
        assert "could not be checked; it is disconnected" in caplog.text

    async def test_too_many_requests_of_one_code_are_answered_as_busy(self) -> None:
        async with serving(ServerLimits(running={SLOW: 2})) as loopback:
            answers = await asyncio.gather(*(loopback.ask(SLOW) for _ in range(5)))
            busy = [a for a in answers if a.code == ResponseCode.SYSTEM_BUSY]
            assert [a.remark for a in busy] == [BUSY] * 3
            assert (await loopback.ask(SLOW)).code == 0  # later there is capacity again

    async def test_too_many_requests_of_a_connection_pause_reading(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A flood of requests without body waits in the socket, not in memory."""
        most = done = 0

        def note(connection: Connection, request: RemotingCommand) -> None:
            nonlocal most, done
            most, done = max(most, connection.backlog.requests), done + 1

        monkeypatch.setitem(HANDLERS, NOTE, note)
        monkeypatch.setattr("firetrail.remoting.servers.remoting_server.QUEUED_MAX", 100)
        async with serving() as loopback:
            flood = b"".join(encode_frame(RemotingCommand(NOTE, flag=CommandFlag.ONE_WAY))) * 60_000
            async with loopback.raw() as (_, writer):
                writer.write(flood)
                while done < 60_000:
                    await asyncio.sleep(0.01)
            assert most < 10_000

    async def test_too_many_bytes_of_a_connection_pause_reading(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        most = done = 0

        def note(connection: Connection, request: RemotingCommand) -> None:
            nonlocal most, done
            most, done = max(most, connection.backlog.bytes), done + 1

        monkeypatch.setitem(HANDLERS, NOTE, note)
        monkeypatch.setattr("firetrail.remoting.servers.remoting_server._SLICE", 1)
        monkeypatch.setattr("firetrail.remoting.servers.remoting_server.UNHANDLED_MAX", 150_000)
        async with serving() as loopback:
            command = RemotingCommand(NOTE, {"a": "x" * 60_000}, flag=CommandFlag.ONE_WAY)
            async with loopback.raw() as (_, writer):
                writer.write(b"".join(encode_frame(command)) * 100)
                while done < 100:
                    await asyncio.sleep(0.01)
            assert most < 2_000_000

    async def test_too_many_waiting_bytes_pause_reading(self) -> None:
        """Requests above the limit are read later, not lost."""
        async with serving(ServerLimits(waiting_bytes=3000)) as loopback:
            answers = await asyncio.gather(
                *(loopback.ask(SLOW, body=b"x" * 1000) for _ in range(20))
            )
            assert {a.remark for a in answers} == {"at last"}

    async def test_a_body_above_the_limit_of_its_request_is_refused(self) -> None:
        async with serving(ServerLimits(body=1000, bodies={SLOW: 2000})) as loopback:
            answer = await loopback.ask(ECHO, body=b"x" * 1001)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert answer.remark == (
                "the body of request 1 has 1001 bytes; at most 1000 are allowed. "
                "Send less in one request"
            )
            assert (await loopback.ask(ECHO, body=b"x" * 1000)).code == 0
            assert (await loopback.ask(SLOW, body=b"x" * 2000)).code == 0

    async def test_a_guard_is_not_asked_about_a_body_above_the_limit(self) -> None:
        """It would decode the body before the limit counts."""
        asked: list[int] = []

        def guard(connection: Connection, request: RemotingCommand) -> None:
            asked.append(len(request.body))

        server, client = (
            RemotingServer(HANDLERS, SYSTEM, ServerLimits(body=1000), guard=guard),
            None,
        )
        try:
            address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
            client = RemotingClient()
            with pytest.raises(RequestError, match="at most 1000 are allowed"):
                await client.ask(address, RemotingCommand(ECHO, body=b"x" * 1001))
            await client.ask(address, RemotingCommand(ECHO, body=b"x" * 1000))
            assert asked == [1000]
        finally:
            if client is not None:
                await client.close()
            await server.stop()

    async def test_a_frame_above_the_limit_closes_the_connection(self) -> None:
        async with serving(ServerLimits(frames=FrameLimits(frame=1000))) as loopback:
            with pytest.raises(ConnectionError):
                await loopback.ask(ECHO, body=b"x" * 2000)


async def test_heartbeats_are_handled_before_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[int] = []

    def note(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        order.append(request.code)
        return request.answer()

    monkeypatch.setitem(HANDLERS, RequestCode.PULL_MESSAGE, note)
    monkeypatch.setitem(HANDLERS, RequestCode.HEART_BEAT, note)

    async with serving() as loopback:
        flood = [RemotingCommand(RequestCode.PULL_MESSAGE, opaque=n) for n in range(1000)]
        heartbeat = RemotingCommand(RequestCode.HEART_BEAT, opaque=5000)
        data = b"".join(b"".join(encode_frame(c)) for c in (*flood, heartbeat))
        async with loopback.raw() as (reader, writer):
            writer.write(data)
            frames, got = FrameReader(), 0
            while got < 1001:
                got += len(list(frames.feed(await reader.read(1 << 16))))
        assert order.index(RequestCode.HEART_BEAT) < 1000


async def test_a_stop_answers_requests_in_progress() -> None:
    server, client = RemotingServer(HANDLERS, SYSTEM), RemotingClient()
    port = await server.start("127.0.0.1", 0)
    asked = asyncio.ensure_future(client.request(f"127.0.0.1:{port}", RemotingCommand(SLOW)))
    while not server._tasks:
        await asyncio.sleep(0.001)
    await server.stop()
    assert (await asked).remark == "at last"
    assert not server.connections
    with pytest.raises(OSError):
        await client.request(f"127.0.0.1:{port}", RemotingCommand(ECHO))
    await client.close()


async def test_a_response_that_cannot_be_encoded_becomes_an_error_response(
    loopback: Loopback,
) -> None:
    response = await loopback.ask(UNWRITABLE, serialize=Serialize.ROCKETMQ)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "does not fit into a binary header" in (response.remark or "")
    assert (await loopback.ask(ECHO, body=b"still there")).body == b"still there"


async def test_a_peer_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close waits for unwritten data, but must not wait forever."""
    monkeypatch.setattr("firetrail.remoting.servers.acceptor.SWEEP_S", 0.01)
    limits = ServerLimits(idle_s=0.2)
    async with serving(limits) as loopback, loopback.raw() as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        command = RemotingCommand(ECHO, body=b"x" * 1_000_000)
        writer.write(b"".join(encode_frame(command)) * 20)
        while not loopback.server.connections:
            await asyncio.sleep(0.01)
        while loopback.server.connections:
            await asyncio.sleep(0.01)
