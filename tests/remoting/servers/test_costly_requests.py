"""The turns of costly requests: they do not hold up others, and each address has its turn."""

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from tests.remoting.clocks import Clock
from tests.remoting.loopbacks import ECHO, HANDLERS, echo, serving

from firetrail.remoting.connections.connection import WRITE_HIGH, Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.servers import costly_requests
from firetrail.remoting.servers.addresses import AddressShare
from firetrail.remoting.servers.client_limits import COSTLY_BURST_S, COSTLY_WAIT_S, ServerLimits
from firetrail.remoting.servers.costly_requests import IDLE_S, CostlyRequests
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameReader, encode_frame
from firetrail.system import SYSTEM

TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG
REQUEST = RemotingCommand(TOPICS)


class Scene:
    """Costly requests of some addresses; ``ran`` has the names of those that have run."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.requests = CostlyRequests(self.clock)
        self.ran: list[str] = []
        self.tasks: list[asyncio.Future[RemotingCommand | None]] = []

    def address(self, *, is_used_up: bool = False) -> AddressShare:
        share = AddressShare(ServerLimits(), self.clock())
        if is_used_up:
            share.costly.charge(COSTLY_BURST_S + 1)
        return share

    def ask(
        self, share: AddressShare, name: str, connection: Connection | None = None
    ) -> RemotingCommand | None:
        def handle() -> RemotingCommand:
            self.ran.append(name)
            return REQUEST.answer()

        answer = self.requests.answer(share, connection or connected(), REQUEST, handle)
        if answer is None or isinstance(answer, RemotingCommand):
            return answer
        self.tasks.append(asyncio.ensure_future(answer))
        return None

    async def done(self) -> list[RemotingCommand | None]:
        return await asyncio.gather(*self.tasks)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def connected() -> Connection:
    connection = Connection(RemotingServer({}, SYSTEM))
    connection.host = "10.0.0.1"
    return connection


async def test_one_request_runs_in_each_iteration_of_the_event_loop(scene: Scene) -> None:
    share = scene.address()
    for number in range(5):
        scene.ask(share, str(number))
    counts = [len(scene.ran)]
    while counts[-1] < 5:
        await asyncio.sleep(0)
        counts.append(len(scene.ran))
    assert counts[0] == 1, "the first one runs at once"
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert scene.ran == list("01234")


async def test_addresses_take_turns(scene: Scene) -> None:
    one, other = scene.address(), scene.address()
    for number in range(4):
        scene.ask(one, f"one {number}")
    scene.ask(other, "other")
    await scene.done()
    assert scene.ran == ["one 0", "one 1", "other", "one 2", "one 3"]


async def test_an_address_without_time_continues_on_an_idle_server(scene: Scene) -> None:
    scene.clock.now += IDLE_S
    share = scene.address(is_used_up=True)
    for name in "abc":
        scene.ask(share, name)
    answers = await scene.done()
    assert scene.ran == list("abc")
    assert [answer and answer.code for answer in answers] == [ResponseCode.SUCCESS] * 3


async def test_an_address_without_time_waits_while_the_server_has_other_requests(
    scene: Scene,
) -> None:
    scene.clock.now += IDLE_S
    scene.requests.others += 1
    scene.ask(scene.address(is_used_up=True), "late")
    assert scene.ask(scene.address(), "in time") is None
    while scene.ran != ["in time"]:
        await asyncio.sleep(0)
    scene.clock.now += COSTLY_WAIT_S
    scene.requests.others += 1
    late, _ = await scene.done()
    assert scene.ran == ["in time"]
    assert late is not None and late.code == ResponseCode.SYSTEM_BUSY
    assert late.remark == (
        "GET_ALL_TOPIC_CONFIG has waited for 2 s: while the server handles other requests, costly "
        "ones of 10.0.0.1 may take 25% of its time; ask less often"
    )


async def test_an_address_continues_when_its_share_is_refilled(scene: Scene) -> None:
    scene.requests.others += 1
    share = scene.address()
    share.costly.charge(COSTLY_BURST_S)
    scene.ask(share, "later")
    await asyncio.sleep(0)
    scene.clock.now += IDLE_S / 2
    await scene.done()
    assert scene.ran == ["later"]


async def test_an_address_has_a_limited_number_of_queued_requests(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costly_requests, "COSTLY_QUEUED_MAX", 2)
    share = scene.address()
    for name in "abc":
        scene.ask(share, name)
    refused = scene.ask(share, "d")
    assert refused is not None and refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.remark == (
        "2 costly requests of 10.0.0.1, such as GET_ALL_TOPIC_CONFIG, are waiting; wait for their "
        "answers"
    )
    assert scene.ask(scene.address(), "another address") is None
    await scene.done()
    assert sorted(scene.ran) == ["a", "another address", "b", "c"]


async def test_a_request_is_not_run_for_a_client_that_is_gone(scene: Scene) -> None:
    share, gone = scene.address(), connected()
    scene.ask(share, "first")
    scene.ask(share, "gone", gone)
    gone.is_closed = True
    scene.ask(share, "cancelled")
    scene.tasks.pop().cancel()
    scene.ask(share, "last")
    await scene.done()
    assert scene.ran == ["first", "last"]


async def test_a_client_that_does_not_read_is_passed_over(scene: Scene) -> None:
    share, unread = scene.address(), connected()
    unread.unwritten = WRITE_HIGH + 1
    scene.ask(share, "first")
    scene.ask(share, "unread", unread)
    scene.ask(share, "last")
    _, last = scene.tasks
    await last
    assert scene.ran == ["first", "last"]
    unread.unwritten = 0
    await scene.done()
    assert scene.ran == ["first", "last", "unread"]


async def test_a_flood_of_costly_requests_holds_up_no_other_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[int] = []
    begun: list[Callable[[], None]] = []

    def handle(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        order.append(request.code)
        while begun:
            begun.pop()()
        return request.answer()

    def honest(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        order.append(request.code)
        return echo(connection, request)

    monkeypatch.setitem(HANDLERS, TOPICS, handle)
    monkeypatch.setitem(HANDLERS, ECHO, honest)
    async with serving() as loopback, loopback.raw() as (reader, flood), loopback.raw() as (_, one):
        begun.append(lambda: one.write(b"".join(encode_frame(RemotingCommand(ECHO)))))
        flood.write(b"".join(encode_frame(REQUEST)) * 300)
        answers: list[RemotingCommand] = []
        frames = FrameReader()
        while len(answers) < 300:
            answers += frames.feed(await reader.read(1 << 16))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert order.index(ECHO) < 100


async def test_costly_requests_that_wait_for_their_turn_do_not_count_as_running() -> None:
    ended = asyncio.Event()
    begun = 0

    async def work(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        nonlocal begun
        begun += 1
        await ended.wait()
        return request.answer()

    limits = ServerLimits(running={TOPICS: 2})
    quick: dict[int, Handler] = {TOPICS: lambda _, request: request.answer()}
    async with serving(limits, handlers=quick) as loopback:
        answers = await asyncio.gather(*(loopback.ask(TOPICS) for _ in range(5)))
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 5
    async with serving(limits, handlers={TOPICS: work}) as loopback:
        asked = [asyncio.ensure_future(loopback.ask(TOPICS)) for _ in range(5)]
        while sum(each.done() for each in asked) < 3:
            await asyncio.sleep(0.001)
        assert begun == 2
        ended.set()
        codes = Counter([(await each).code for each in asked])
    assert codes == {ResponseCode.SUCCESS: 2, ResponseCode.SYSTEM_BUSY: 3}
