"""A disk that fills up between two checks of it: clients get the code of a full disk, 14."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.broker.brokers import SMALL, Talk
from tests.helpers import FaultyFiles

from firetrail.broker.broker import Broker
from firetrail.format.values.hosts import Host
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.system import System


@asynccontextmanager
async def filling(folder: Path, files: FaultyFiles) -> AsyncIterator[Talk]:
    """A broker whose files are on a disk that the test fills."""
    store = SMALL.replace(store_host=Host("127.0.0.1", 0))
    broker = Broker(folder, None, store, system=System(files))
    await broker.start()
    client = RemotingClient()
    try:
        yield Talk(broker, client)
    finally:
        await client.close()
        await broker.stop()


async def test_a_send_is_answered_with_14_and_later_ones_succeed(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with filling(tmp_path, files) as talk:
        files.fill_disk("commitlog")
        refused = await talk.send("T1", bytes(4 << 20))
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no space for" in (refused.remark or "")
        files.heal()
        assert (await talk.send("T1")).code == 0
