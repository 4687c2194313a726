"""The bytes that clients without credentials can make a broker keep: limited to a stated number."""

import asyncio
from contextlib import AsyncExitStack

from tests.access.actors import SECURE
from tests.broker.brokers import talking
from tests.broker.secured import SEND, Secured
from tests.connections import connected
from tests.remoting.servers.test_server_limits import frame_of

from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

STRANGERS = 1 << 20
"""The bytes that all unauthenticated connections together may keep. The default is 64 MiB."""
READ_MAX = 256 << 10
"""What one read of a socket may add before the limit is enforced."""
UNSIGNED = frame_of(RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, b"x" * 500_000))


async def test_unfinished_requests_of_all_strangers_have_one_limit() -> None:
    """A refused request does not make a client known, so it has the limit of strangers."""
    config = SECURE.replace(stranger_bytes=STRANGERS, buffered_bytes=64 << 20)
    async with talking(None, config) as talk, AsyncExitStack() as stack:
        budget = talk.broker._server._budget
        refused = frame_of(RemotingCommand(RequestCode.GET_BROKER_CONFIG))
        readers = []
        most = 0
        for _ in range(8):
            opening = connected(talk.broker.address)
            reader, writer = await stack.enter_async_context(opening)
            writer.write(refused)
            assert await reader.read(4), "the refusal"
            writer.write(UNSIGNED[:400_000])
            await writer.drain()
            readers.append(reader)
            for _ in range(20):
                await asyncio.sleep(0)
                most = max(most, budget.strangers)
        while len(talk.broker._server.connections) == len(readers):
            most = max(most, budget.strangers)
            await asyncio.sleep(0.001)
        assert budget.strangers <= STRANGERS
        assert most <= STRANGERS + READ_MAX
        assert (await Secured(talk).send("T1")).code == 0, "others are served"


async def test_unread_refusals_have_the_same_limit() -> None:
    config = SECURE.replace(stranger_bytes=STRANGERS, buffered_bytes=64 << 20)
    async with (
        talking(None, config) as talk,
        connected(talk.broker.address, limit=1 << 10) as (_, writer),
    ):
        flood = frame_of(RemotingCommand(4711, {"AccessKey": "x" * 1000})) * 200
        budget = talk.broker._server._budget
        for _ in range(50):
            writer.write(flood)
            await asyncio.sleep(0)
            assert budget.strangers <= STRANGERS + READ_MAX
        assert (await Secured(talk).send("T1")).code == 0
