"""A replica is promoted while the name server is Java's; the former master is fenced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from interop.servers import LINES, Servers

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Admin, Message, Producer
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import BrokerRole, StoreConfig

WAIT_S = 60
pytestmark = pytest.mark.time_limit(3 * WAIT_S)
STORE = StoreConfig(commit_log_file_size=1 << 20, max_message_size=200_000)
TOPIC = "orders"


async def started(folder: Path, namesrv: str, role: BrokerRole, **settings: Any) -> Broker:
    """Start a broker; a slave has id 1."""
    config = BrokerConfig(
        broker_id=int(role is BrokerRole.SLAVE), namesrv=namesrv, sync_interval_ms=50, **settings
    )
    host = STORE.store_host._replace(port=0)
    broker = Broker(folder, config, STORE.replace(role=role, store_host=host))
    await broker.start()
    return broker


async def promote(broker: Broker, **fields: str) -> None:
    client = RemotingClient()
    try:
        await client.ask(
            broker.address, RemotingCommand(RequestCode.PROMOTE_REPLICA, fields), WAIT_S
        )
        while broker._replicas.promotion.step:
            await asyncio.sleep(0.02)
        assert not broker._replicas.promotion.error
    finally:
        await client.close()


async def masters(namesrv: str) -> list[str]:
    async with Admin(namesrv) as admin:
        return list((await admin.masters()).values())


async def caught_up(slave: Broker, master: Broker) -> None:
    async with asyncio.timeout(WAIT_S):
        while slave.replica is None or not slave.replica.is_caught_up:
            await asyncio.sleep(0.02)
        while slave.store.log_range[1] < master.store.log_range[1]:
            await asyncio.sleep(0.02)


async def sent(namesrv: str, body: bytes) -> None:
    async with Producer(namesrv, "shop") as producer:
        await producer.send(Message(TOPIC, body))


@pytest.mark.parametrize("line", LINES)
async def test_the_former_master_is_fenced(line: str, tmp_path: Path) -> None:
    (tmp_path / "java").mkdir()
    with Servers(line, tmp_path / "java").name_server() as namesrv:
        old = await started(tmp_path / "old", namesrv, BrokerRole.ASYNC_MASTER)
        await sent(namesrv, b"1")
        new = await started(tmp_path / "new", namesrv, BrokerRole.SLAVE)
        await caught_up(new, old)
        await promote(new)  # planned
        assert await masters(namesrv) == [new.address]
        await sent(namesrv, b"2")
        await caught_up(old, new)
        await new.stop()
        await promote(old, force="true")  # in an emergency
        assert await masters(namesrv) == [old.address]
        await sent(namesrv, b"3")
        back = await started(tmp_path / "new", namesrv, BrokerRole.SLAVE)  # and still the master
        try:
            assert back.role is BrokerRole.ASYNC_MASTER
            assert "a master with epoch 3 has registered" in back.store.refusal
        finally:
            await back.stop()
            await old.stop()
