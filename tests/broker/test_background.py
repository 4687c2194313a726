"""A broker in a thread, and the fixture for pytest."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.helpers import PATIENCE_S

from firetrail.broker.background import BackgroundBroker
from firetrail.client import Admin
from firetrail.errors import StoreLockedError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.store import Store
from firetrail.testing import RocketMQ, rocketmq

__all__ = ["rocketmq"]
SEND = {"a": "G", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}


async def send(address: str) -> int:
    client = RemotingClient()
    try:
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, b"hello")
        return (await client.ask(address, command, PATIENCE_S)).code
    finally:
        await client.close()


async def test_the_fixture_runs_a_broker(rocketmq: BackgroundBroker) -> None:
    assert await send(rocketmq.address) == 0
    assert rocketmq.namesrv != rocketmq.address


async def test_the_fixture_creates_groups(rocketmq: RocketMQ) -> None:
    await asyncio.to_thread(rocketmq.create_group, "plain")
    await asyncio.to_thread(rocketmq.create_group, "kitchen", orderly=True)
    async with Admin(rocketmq.namesrv) as admin:
        groups = await admin.groups()
        assert not groups["plain"].consume_message_orderly
        assert groups["kitchen"].consume_message_orderly
        await admin.create_group(SubscriptionGroupConfig("bar", retry_max_times=2), orderly=True)
        bar = (await admin.groups())["bar"]
        assert (bar.consume_message_orderly, bar.retry_max_times) == (True, 2)


async def test_messages_stay_in_the_given_folder(tmp_path: Path) -> None:
    with BackgroundBroker(tmp_path, store=SMALL) as broker:
        assert await send(broker.address) == 0
    with Store.open(tmp_path, SMALL) as store:
        assert store.recovery.clean
        assert [record.body for record in store.read("T1")] == [b"hello"]


def test_a_failed_start_raises_its_error(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path, SMALL),
        pytest.raises(StoreLockedError),
        BackgroundBroker(tmp_path, store=SMALL),
    ):
        pytest.fail("it has started")
