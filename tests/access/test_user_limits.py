"""The limits of each user: connections, and rates of requests and bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.access.actors import Users, credentials, signed
from tests.remoting.clocks import Clock
from tests.remoting.loopbacks import Loopback

from firetrail.access.guard import AccessPolicy, Guard
from firetrail.access.user_limits import TOO_FAST, UserLimits, user_limits
from firetrail.auth.policies import User, UserType
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameReader, encode_frame
from firetrail.settings.server_limits import ServerLimitSettings
from firetrail.system import SYSTEM

ALICE = User("alice", credentials("alice").secret_key)
ADMIN = User("root", credentials("root").secret_key, type=UserType.SUPER)
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def answered(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer()


@asynccontextmanager
async def limited(clock: Clock, settings: ServerLimitSettings) -> AsyncIterator[Loopback]:
    """A server that only knows alice and an administrator."""
    users = Users(ALICE, ADMIN)
    policy = AccessPolicy(authorization=False)
    guard = Guard(users, policy, SYSTEM.clock, limits=UserLimits(settings, clock))
    server = RemotingServer({ROUTE: answered}, SYSTEM, guard=guard)
    client = RemotingClient()
    port = await server.start("127.0.0.1", 0)
    try:
        yield Loopback(server, port, client)
    finally:
        await client.close()
        await server.stop()


async def answer_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, by: str = "alice"
) -> RemotingCommand:
    writer.write(b"".join(encode_frame(signed(ROUTE, {"topic": "T1"}, by=by))))
    frames = FrameReader()
    while True:
        for answer in frames.feed(await reader.read(65536)):
            return answer


def test_without_a_setting_there_is_nothing_to_do() -> None:
    assert user_limits(ServerLimitSettings(), Clock()) is None
    for settings in (
        ServerLimitSettings(connections_per_user=1),
        ServerLimitSettings(request_rate_per_user=1),
        ServerLimitSettings(byte_rate_per_user=1),
    ):
        assert user_limits(settings, Clock()) is not None


async def test_a_user_has_a_limited_number_of_connections() -> None:
    async with limited(Clock(), ServerLimitSettings(connections_per_user=1)) as server:
        async with server.raw() as first, server.raw() as second:
            assert (await answer_on(*first)).code == 0
            for _ in range(2):
                refusal = await answer_on(*second)
                assert (refusal.code, refusal.remark) == (
                    ResponseCode.SYSTEM_BUSY,
                    "user alice has 1 connections, the limit for a user; close some, or raise "
                    "connections_per_user",
                )
            assert (await answer_on(*first)).code == 0
            assert (await answer_on(*second, by="root")).code == 0
        while server.server.connections:
            await asyncio.sleep(0.001)
        async with server.raw() as third:
            assert (await answer_on(*third)).code == 0


async def test_a_user_that_sends_too_fast_is_not_read_from_for_a_while() -> None:
    clock = Clock()
    settings = ServerLimitSettings(request_rate_per_user=1000)
    async with limited(clock, settings) as server, server.raw() as first, server.raw() as second:
        frame = b"".join(encode_frame(signed(ROUTE, {"topic": "T1"}, by="alice")))
        first[1].write(frame * 2010)  # a burst of two seconds, and 10 ms of debt
        while not any(TOO_FAST in each._holds for each in server.server.connections):
            await asyncio.sleep(0.001)
        assert (await answer_on(*second)).code == 0  # what is read already is answered
        await asyncio.sleep(0.03)
        held = [TOO_FAST in each._holds for each in server.server.connections]
        assert held == [True, True]  # by the server's clock, no time has passed
        clock.now += 1
        while any(each.is_held for each in server.server.connections):
            await asyncio.sleep(0.001)
        assert (await answer_on(*second)).code == 0


async def test_bytes_count_and_super_users_have_no_limit() -> None:
    limits = UserLimits(ServerLimitSettings(byte_rate_per_user=1000), Clock())
    assert limits.has_byte_rate
    assert limits.charge_call(ALICE, 2001) is None
    excess = limits.charge_call(ALICE, 1)
    assert excess == (
        "user alice sends more than request_rate_per_user or byte_rate_per_user allows; send less, "
        "or raise the limit"
    )
    for _ in range(2):
        assert limits.charge_call(ADMIN, 1 << 30) is None


async def test_requests_with_a_forged_signature_are_not_those_of_the_user() -> None:
    limits = ServerLimitSettings(request_rate_per_user=1)
    async with limited(Clock(), limits) as server, server.raw() as stranger, server.raw() as honest:
        forged = signed(ROUTE, {"topic": "T1"}, by="alice")
        forged.body = b"x"
        stranger[1].write(b"".join(encode_frame(forged)) * 10)
        await stranger[0].read(1)
        assert (await answer_on(*honest)).code == 0
        assert not any(each.is_held for each in server.server.connections)
