"""A client in the same process: answers at once, later and never, and requests of the server."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.helpers import PATIENCE_S

from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.servers.local_connection import LocalConnection
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

NOW, SOON, LATER, REFUSED, SOON_THEN_LATER = range(1, 6)


class Scene:
    """A server whose answers the test gives, and the client's side of a connection."""

    def __init__(self) -> None:
        limits = ServerLimits(waiting_requests=2)
        handlers: dict[int, Handler] = {
            NOW: self.now,
            SOON: self.soon,
            LATER: self.later,
            REFUSED: self.refused,
            SOON_THEN_LATER: self.soon_then_later,
        }
        self.server = RemotingServer(handlers, SYSTEM, limits)
        self.requests: list[RemotingCommand] = []
        self.closings = 0
        self.gate = asyncio.Event()
        self.held: list[tuple[Connection, RemotingCommand]] = []
        self.cancelled = 0
        self.connection = LocalConnection(self, "192.0.2.1:5")

    def ask(self, code: int) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        return self.connection.ask(self.server.ask, RemotingCommand(code))

    # -- the handlers of the server

    def now(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(remark=connection.peer)

    async def soon(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request.answer(remark="soon")

    def later(self, connection: Connection, request: RemotingCommand) -> None:
        self.held.append((connection, request))

    def refused(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise RequestError(ResponseCode.NO_PERMISSION, "no")

    async def soon_then_later(self, connection: Connection, request: RemotingCommand) -> None:
        await self.gate.wait()
        self.held.append((connection, request))

    # -- the client's side

    def opened(self, connection: Connection) -> None:
        raise AssertionError

    def drained(self, connection: Connection) -> None:
        raise AssertionError

    def received(self, connection: Connection, requests: Sequence[RemotingCommand]) -> None:
        self.requests += requests

    def closed(self, connection: Connection, error: Exception | None) -> None:
        self.closings += 1


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def finished(answer: RemotingCommand | asyncio.Future[RemotingCommand]) -> RemotingCommand:
    assert isinstance(answer, asyncio.Future)
    return await asyncio.wait_for(answer, PATIENCE_S)


async def test_an_answer_at_once_needs_no_waiting(scene: Scene) -> None:
    answer = scene.ask(NOW)
    assert isinstance(answer, RemotingCommand)
    assert answer.remark == "192.0.2.1:5"
    refusal = scene.ask(REFUSED)
    assert isinstance(refusal, RemotingCommand)
    assert (refusal.code, refusal.remark) == (ResponseCode.NO_PERMISSION, "no")


async def test_an_answer_may_take_time(scene: Scene) -> None:
    answer = scene.ask(SOON)
    scene.gate.set()
    assert (await finished(answer)).remark == "soon"


@pytest.mark.parametrize("code", [LATER, SOON_THEN_LATER])
async def test_the_server_may_reply_later(scene: Scene, code: int) -> None:
    first, second = scene.ask(code), scene.ask(code)
    scene.gate.set()
    while len(scene.held) < 2:
        await asyncio.sleep(0)
    for connection, request in reversed(scene.held):
        connection.reply(request, request.answer(remark=f"reply to {request.opaque}"))
    assert [(await finished(each)).remark for each in (first, second)] == [
        "reply to 1",
        "reply to 2",
    ]


async def test_a_cancelled_request_cancels_its_handler(scene: Scene) -> None:
    answer = scene.ask(SOON)
    assert isinstance(answer, asyncio.Future)
    await asyncio.sleep(0)
    answer.cancel()
    await scene.server.drain()
    assert scene.cancelled == 1


async def test_a_reply_to_a_cancelled_request_is_dropped(scene: Scene) -> None:
    answer = scene.ask(LATER)
    assert isinstance(answer, asyncio.Future)
    answer.cancel()
    (connection, request) = scene.held[0]
    connection.reply(request, request.answer())
    assert answer.cancelled()


async def test_the_limits_of_the_server_count(scene: Scene) -> None:
    first, second = scene.ask(SOON), scene.ask(SOON)
    third = scene.ask(SOON)
    assert isinstance(third, RemotingCommand)
    assert third.code == ResponseCode.SYSTEM_BUSY
    scene.gate.set()
    await finished(first)
    await finished(second)
    assert isinstance(scene.ask(SOON), asyncio.Future)
    await scene.server.drain()


async def test_a_server_waits_for_requests_before_it_stops(scene: Scene) -> None:
    answer = scene.ask(SOON)
    asyncio.get_running_loop().call_later(0.01, scene.gate.set)
    await scene.server.stop()
    assert (await finished(answer)).remark == "soon"


async def test_requests_of_the_server_reach_the_client(scene: Scene) -> None:
    asking = asyncio.ensure_future(scene.connection.request(RemotingCommand(77), PATIENCE_S))
    await asyncio.sleep(0)
    scene.connection.tell(RemotingCommand(78))
    assert [(each.code, each.is_one_way) for each in scene.requests] == [(77, False), (78, True)]
    scene.connection.answer(scene.requests[0].answer(remark="here"))
    assert (await asking).remark == "here"


async def test_requests_fail_when_the_connection_is_closed(scene: Scene) -> None:
    held = scene.ask(LATER)
    asking = asyncio.ensure_future(scene.connection.request(RemotingCommand(77), PATIENCE_S))
    await asyncio.sleep(0)
    scene.connection.close()
    scene.connection.abort()
    assert scene.connection.is_closed
    assert scene.closings == 1
    with pytest.raises(ConnectionError, match=r"192\.0\.2\.1:5: the connection is closed"):
        await finished(held)
    with pytest.raises(ConnectionError):
        await asking
    scene.connection.tell(RemotingCommand(78))
    assert len(scene.requests) == 1
