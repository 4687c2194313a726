"""The limits for peers that send slowly, do not read, or come in crowds."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.remoting.loopbacks import ECHO, FAIL, HANDLERS, NOTE, SLOW, Loopback, serving

from firetrail.pace.limited_log import BURST
from firetrail.remoting.connections.connection import COUNTED_MIN, Connection
from firetrail.remoting.connections.output_queue import PORTION
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.servers.remoting_server import _TOO_FAST
from firetrail.remoting.wire.codes import CommandFlag, RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameReader, encode_frame
from firetrail.tls.self_signed import self_signed_context
from firetrail.tls.server_tls import ServerTls

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def frame_of(command: RemotingCommand) -> bytes:
    return b"".join(encode_frame(command))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return await reader.read(1) == b""
    return True


async def connected(loopback: Loopback, count: int) -> None:
    while len(loopback.server.connections) < count:
        await asyncio.sleep(0.001)


@asynccontextmanager
async def not_reading(loopback: Loopback) -> AsyncIterator[tuple[Streams, Connection]]:
    """A connection whose peer does not read, on both sides."""
    known = set(loopback.server.connections)
    async with loopback.raw() as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connected(loopback, len(known) + 1)
        (connection,) = loopback.server.connections - known
        yield (reader, writer), connection


class TestUnfinishedFrames:
    async def test_the_slowest_stranger_is_dropped(self, caplog: pytest.LogCaptureFixture) -> None:
        frame = frame_of(RemotingCommand(ECHO, body=b"x" * 1_000_000))
        async with serving(ServerLimits(stranger_bytes=1_000_000)) as loopback:
            await loopback.ask(ECHO)
            async with loopback.raw() as (slow, to_slow), loopback.raw() as (quick, to_quick):
                to_slow.write(frame[:600_000])
                while loopback.server._budget.strangers < 600_000:
                    await asyncio.sleep(0.001)
                to_quick.write(frame[:600_000])
                assert await is_closed(slow)
                to_quick.write(frame[600_000:])
                (answer,) = FrameReader().feed(await quick.readexactly(len(frame)))
                assert answer.opaque == 0
            assert (await loopback.ask(ECHO)).code == 0
        assert "has made no progress for longest" in caplog.text

    async def test_a_client_whose_request_succeeded_may_keep_more(self) -> None:
        frame = frame_of(RemotingCommand(ECHO, body=b"x" * 500_000))
        async with serving(ServerLimits(stranger_bytes=100_000)) as loopback:
            async with loopback.raw() as (reader, writer):
                small = frame_of(RemotingCommand(ECHO))
                writer.write(small)
                await reader.readexactly(len(small))
                writer.write(frame[:400_000])
                while loopback.server._budget.total < 400_000:
                    await asyncio.sleep(0.001)
                writer.write(frame[400_000:])
                await reader.readexactly(len(frame))
            assert loopback.server._budget.strangers == 0

    async def test_a_closed_connection_keeps_nothing(self) -> None:
        async with serving() as loopback:
            async with loopback.raw() as (_, writer):
                writer.write(frame_of(RemotingCommand(ECHO, body=b"x" * 1000))[:500])
                while not loopback.server._budget.total:
                    await asyncio.sleep(0.001)
            while loopback.server.connections:
                await asyncio.sleep(0.001)
            assert (loopback.server._budget.total, loopback.server._budget.strangers) == (0, 0)


async def test_the_headers_of_requests_in_progress_are_counted() -> None:
    async with serving() as loopback:
        asked = asyncio.ensure_future(loopback.ask(SLOW, fields={"a": "x" * 10_000}))
        while not loopback.server._tasks:
            await asyncio.sleep(0.001)
        assert loopback.server._waiting_bytes > 10_000
        await asked
        assert loopback.server._waiting_bytes == 0


SIXTY = b"".join(frame_of(RemotingCommand(NOTE, opaque=n)) for n in range(60))


def answer_at_length(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answer NOTE with half a megabyte; return the numbers of the requests that were begun."""
    begun: list[int] = []

    def note(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        begun.append(request.opaque)
        return request.answer(body=bytes(500_000))

    monkeypatch.setitem(HANDLERS, NOTE, note)
    return begun


class TestUnreadAnswers:
    async def test_no_request_of_a_peer_is_begun_while_it_does_not_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun = answer_at_length(monkeypatch)
        async with serving() as loopback:
            async with not_reading(loopback) as ((reader, writer), connection):
                writer.write(SIXTY)
                while not connection.backlog.deferred_bytes:
                    await asyncio.sleep(0.001)
                assert len(begun) < 50
                assert (await loopback.ask(ECHO)).code == 0
                assert connection.is_held
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                found: list[int] = []
                answers = FrameReader()
                while len(found) < 60:
                    found += [a.opaque for a in answers.feed(await reader.read(1 << 20))]
                assert found == begun == list(range(60))
            assert loopback.server._waiting_bytes == 0

    async def test_deferred_urgent_requests_are_handled_before_deferred_ordinary_ones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun = answer_at_length(monkeypatch)
        monkeypatch.setitem(HANDLERS, RequestCode.HEART_BEAT, HANDLERS[NOTE])
        async with serving() as loopback, not_reading(loopback) as ((reader, writer), connection):
            writer.write(SIXTY)
            while not connection.backlog.deferred_bytes or loopback.server._ordinary:
                await asyncio.sleep(0.001)
            before = len(begun)
            connection.tell(RemotingCommand(NOTE, body=bytes(5_000_000)))
            late = [RemotingCommand(RequestCode.HEART_BEAT, opaque=n) for n in (100, 101)]
            loopback.server.received(connection, late)
            loopback.server._work()  # while the peer has not read the message above
            assert begun == list(range(before))
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            while len(begun) < 62:
                await reader.read(1 << 20)
            ordinary = list(range(60))
            assert begun == [*ordinary[:before], 100, 101, *ordinary[before:]]

    async def test_deferred_requests_of_a_closed_connection_are_forgotten(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer_at_length(monkeypatch)
        async with serving() as loopback:
            async with not_reading(loopback) as ((_, writer), connection):
                writer.write(SIXTY)
                while not connection.backlog.deferred_bytes:
                    await asyncio.sleep(0.001)
                writer.transport.abort()
            while loopback.server.connections:
                await asyncio.sleep(0.001)
            assert loopback.server._deferred == {}
            assert loopback.server._budget.total == loopback.server._waiting_bytes == 0

    async def test_a_peer_that_does_not_read_what_others_send_it_is_dropped(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = ServerLimits(unread_bytes=8_000_000)
        async with serving(limits) as loopback, not_reading(loopback) as (_, connection):
            pushed = 0
            while not connection.is_closed and pushed < 100:
                connection.tell(RemotingCommand(NOTE, body=bytes(1_000_000)))
                pushed += 1
                await asyncio.sleep(0)
            assert pushed < 30
        assert "the peer does not read, and " in caplog.text

    async def test_a_transport_gets_only_a_portion_and_everything_counts(self) -> None:
        """A transport copies what it gets, so that it would keep each answer once more."""
        async with serving() as loopback, not_reading(loopback) as (_, connection):
            for _ in range(30):
                connection.tell(RemotingCommand(NOTE, body=bytes(1_000_000)))
            total = connection.unwritten
            connection._write()
            assert connection._transport is not None
            given = connection._transport.get_write_buffer_size()
            assert COUNTED_MIN < given <= PORTION
            kept = loopback.server._budget.total
            assert given + connection._out.size == kept == connection.unwritten
            assert 10_000_000 < kept < total

    async def test_a_close_waits_until_the_peer_has_read(self) -> None:
        async with serving() as loopback:
            async with not_reading(loopback) as ((reader, writer), connection):
                for _ in range(30):
                    connection.tell(RemotingCommand(NOTE, body=bytes(1_000_000)))
                connection._write()
                connection.close()
                connection.tell(RemotingCommand(NOTE))  # too late
                assert not connection.is_usable
                assert connection._out.size > 10_000_000
                assert loopback.server._budget.total == connection.unwritten
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                found = list(FrameReader().feed(await reader.read()))
                assert [len(each.body) for each in found] == [1_000_000] * 30
            while loopback.server.connections:
                await asyncio.sleep(0.001)

    async def test_unread_answers_count_towards_the_limit_of_strangers(self) -> None:
        limits = ServerLimits(stranger_bytes=1_000_000)
        async with serving(limits) as loopback, not_reading(loopback) as (_, connection):
            for _ in range(30):
                connection.tell(RemotingCommand(NOTE, body=bytes(1_000_000)))
            while not connection.is_closed:
                await asyncio.sleep(0.001)
            assert loopback.server._budget.total == 0


class TestAddresses:
    async def test_an_address_has_a_limited_number_of_connections(self) -> None:
        limits = ServerLimits(connections_per_address=2, limit_loopback=True)
        async with serving(limits) as loopback:
            async with loopback.raw(), loopback.raw():
                await connected(loopback, 2)
                async with loopback.raw() as (reader, _):
                    assert await is_closed(reader)
            while loopback.server.connections:
                await asyncio.sleep(0.001)
            assert (await loopback.ask(ECHO)).code == 0

    async def test_an_address_that_sends_too_fast_is_not_read_from_for_a_while(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held: list[bool] = []

        def note(connection: Connection, request: RemotingCommand) -> None:
            held.append(_TOO_FAST in connection._holds)

        monkeypatch.setitem(HANDLERS, NOTE, note)
        limits = ServerLimits(request_rate=1)
        async with serving(limits) as loopback, loopback.raw() as (_, writer):
            writer.write(frame_of(RemotingCommand(NOTE, flag=CommandFlag.ONE_WAY)) * 100)
            while True not in held:
                await asyncio.sleep(0.001)


class TestSlots:
    @pytest.mark.parametrize("begun", [b"", b"\0", b"\x16\x03\x01\x02\x00\x01"])
    async def test_strangers_give_way_to_newcomers(
        self, caplog: pytest.LogCaptureFixture, begun: bytes
    ) -> None:
        """Whether they are silent, or have begun a frame or the handshake of TLS."""
        ended: list[Connection] = []
        tls = ServerTls.of_context(self_signed_context())
        limits = ServerLimits(connections=2)
        async with serving(limits, ended.append, tls=tls) as loopback, AsyncExitStack() as stack:
            strangers = [await stack.enter_async_context(loopback.raw()) for _ in range(2)]
            for _, writer in strangers:
                writer.write(begun)
            await connected(loopback, 2)
            assert (await loopback.ask(ECHO)).code == 0
            assert await is_closed(strangers[0][0])
            reader, writer = await stack.enter_async_context(loopback.raw())
            assert await is_closed(strangers[1][0])
            writer.write(frame_of(RemotingCommand(ECHO)))
            await reader.readexactly(4)
            refused, _ = await stack.enter_async_context(loopback.raw())
            assert await is_closed(refused)
            assert (await loopback.ask(ECHO)).code == 0
            assert len(ended) == 2
        assert "it is the oldest on which no request has succeeded, and the limit" in caplog.text
        assert "refused a connection from 127.0.0.1" in caplog.text

    async def test_a_request_that_fails_proves_nothing(self) -> None:
        limits = ServerLimits(connections=1)
        async with serving(limits) as loopback, loopback.raw() as (reader, writer):
            writer.write(frame_of(RemotingCommand(FAIL)))
            await reader.readexactly(4)
            assert (await loopback.ask(ECHO)).code == 0


async def test_bad_frames_are_logged_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "firetrail")
    async with serving() as loopback:
        for _ in range(BURST + 5):
            async with loopback.raw() as (reader, writer):
                writer.write(b"\xff" * 16)
                assert await is_closed(reader)
    assert len([m for m in caplog.messages if "is closed" in m]) == BURST
