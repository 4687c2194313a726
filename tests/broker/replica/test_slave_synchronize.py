"""The tables of a master on its slave: complete, current, and on disk."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.broker.brokers import SMALL, Talk, talking

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.pop.ordered_pops import OrderedPop
from firetrail.broker.replica.slave_synchronize import SlaveSynchronize, possible
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import RequestMode, SubscriptionGroupConfig, TopicConfig
from firetrail.remoting.messages.pop.pop_bodies import RequestModeBody, RequestModes
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

MODES = RequestModes({"T1": {"CG": RequestModeBody("T1", "CG", RequestMode.POP, 2)}})


class Pair(NamedTuple):
    """A master with a client, and a slave that copies its tables when it is told to."""

    master: Talk
    slave: Broker
    copying: SlaveSynchronize

    async def copy(self) -> bool:
        return await self.copying.copy(self.master.broker.address)


@asynccontextmanager
async def pair(folder: Path | None = None) -> AsyncIterator[Pair]:
    config, store = BrokerConfig(broker_id=1), SMALL.replace(role=BrokerRole.SLAVE)
    async with talking() as master, Broker.running(folder, config, store) as slave:
        client = RemotingClient()
        try:
            yield Pair(
                master, slave, SlaveSynchronize(client, slave._parts, SYSTEM.clock, slave.epochs)
            )
        finally:
            await client.close()


async def fill(master: Talk) -> None:
    """Topics, groups, offsets, delays and modes on a master."""
    await master.send("T1")
    master.broker.topics.put([TopicConfig("T2", 3, 2, 6, attributes={"+message.type": "FIFO"})])
    master.broker.groups.put([SubscriptionGroupConfig("CG", retry_max_times=3)])
    master.broker.groups.forbid("CG", "T2", True)
    await master.commit(1)
    master.broker._parts.schedule._next[3] = 7
    mode = MODES.message_request_mode_map["T1"]["CG"].encode()
    await master.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode)


async def test_a_slave_has_the_tables_of_its_master() -> None:
    async with pair() as (master, slave, copying):
        await fill(master)
        assert await copying.copy(master.broker.address)
        assert slave.topics.content() == master.broker.topics.content()
        assert slave.groups.content() == master.broker.groups.content()
        assert slave.offsets.content() == master.broker.offsets.content()
        assert slave._parts.schedule.content() == master.broker._parts.schedule.content()
        assert slave._parts.assignment._modes == MODES.message_request_mode_map
        assert copying.status.copied_at_ms > 0
        assert not copying.status.failures


async def test_the_copies_are_in_the_files_that_a_promotion_reads(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave, copying):
        await fill(master)
        await copying.copy(master.broker.address)
        await slave.become(BrokerRole.ASYNC_MASTER, 0)
        assert slave.topics.get("T2") == master.broker.topics.get("T2")
        assert slave.groups.get("CG") == master.broker.groups.get("CG")
        assert slave.groups.is_forbidden("CG", "T2")
    files = {path.name: path.read_text() for path in (tmp_path / "config").glob("*.json")}
    assert {"topics.json", "subscriptionGroup.json", "messageRequestMode.json"} <= set(files)
    modes = json.loads(files["messageRequestMode.json"])["messageRequestModeMap"]
    assert modes["T1"]["CG"]["mode"] == "POP"


async def test_offsets_beyond_the_copied_log_are_kept_until_a_promotion_cuts_them() -> None:
    async with pair() as (master, slave, copying):
        await fill(master)
        await copying.copy(master.broker.address)
        assert slave.offsets.get("CG", "T1", 0) == 1
        await slave.become(BrokerRole.ASYNC_MASTER, 0)
        assert slave.offsets.get("CG", "T1", 0) == 0  # nothing of the log has arrived


async def test_deletions_are_copied() -> None:
    async with pair() as (master, slave, copying):
        await fill(master)
        await copying.copy(master.broker.address)
        await master.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T1")
        master.broker.groups.remove("CG")
        await copying.copy(master.broker.address)
        assert slave.topics.get("T1") is None
        assert slave.groups.get("CG") is None
        assert slave.offsets.get("CG", "T1", 0) is None


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_pops_in_order_of_a_former_master_are_forgotten_with_their_names(what: str) -> None:
    """They are not copied, and would close queues if the slave became the master again."""
    async with pair() as (master, slave, copying):
        await fill(master)
        await copying.copy(master.broker.address)
        orders = slave._parts.orders
        orders.add("CG", ("T1", 0), OrderedPop(SYSTEM.clock.now_ms(), 60_000, [1]))
        orders.add("CG", ("T2", 0), OrderedPop(SYSTEM.clock.now_ms(), 60_000, [1]))
        if what == "topic":
            await master.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T1")
        else:
            master.broker.groups.remove("CG")
        await copying.copy(master.broker.address)
        assert list(orders.content().table) == (["T2@CG"] if what == "topic" else [])


async def test_an_offset_that_only_the_slave_has_stays() -> None:
    """Consumers commit to a slave while there is no master."""
    async with pair() as (master, slave, copying):
        await fill(master)
        slave.offsets.commit("CG", "T1", 5, 9)
        slave.offsets.commit("other", "T1", 0, 4)
        slave.offsets.commit("CG", "T1", 0, 8)
        for _ in range(2):
            await copying.copy(master.broker.address)
            assert slave.offsets.of_topic("T1") == {"CG": {0: 1, 5: 9}, "other": {0: 4}}


async def test_a_failing_table_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ResponseCode.NO_PERMISSION, "not for you")

    async with pair() as (master, slave, copying):
        await fill(master)
        good = master.broker._handlers[RequestCode.GET_ALL_TOPIC_CONFIG]
        master.broker._handlers[RequestCode.GET_ALL_TOPIC_CONFIG] = refuse
        for _ in range(2):
            assert not await copying.copy(master.broker.address)
        assert slave.topics.get("T2") is None
        assert slave.offsets.get("CG", "T1", 0) == 1
        assert slave.groups.get("CG") is not None
        said = copying.status.failures["topics"]
        assert "not for you; let the replica sign as a super user of the master: set inner" in said
        warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert len([r for r in warnings if "topics of the master" in r.getMessage()]) == 1
        master.broker._handlers[RequestCode.GET_ALL_TOPIC_CONFIG] = good
        assert await copying.copy(master.broker.address)
        assert slave.topics.get("T2") is not None
        assert not copying.status.failures


async def test_a_master_before_5_0_has_no_request_modes() -> None:
    def unknown(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    async with pair() as (master, _, copying):
        master.broker._handlers[RequestCode.GET_ALL_MESSAGE_REQUEST_MODE] = unknown
        assert await copying.copy(master.broker.address)


async def test_an_unreachable_master_is_reported() -> None:
    async with pair() as (_, slave, copying):
        before = slave.topics.content()
        assert not await copying.copy("127.0.0.1:1")
        assert set(copying.status.failures) >= {"topics", "offsets", "groups", "delays"}
        assert slave.topics.content() == before


async def test_a_table_that_cannot_be_decoded_is_not_adopted() -> None:
    def garbage(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=b'{"offsetTable":{"a@b":7}}')

    async with pair() as (master, slave, copying):
        await fill(master)
        await copying.copy(master.broker.address)
        master.broker._handlers[RequestCode.GET_ALL_CONSUMER_OFFSET] = garbage
        assert not await copying.copy(master.broker.address)
        assert slave.offsets.get("CG", "T1", 0) == 1


async def test_what_cannot_be_served_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as (master, _, copying):
        table = master.broker.topics._topics
        table["compacted"] = TopicConfig("compacted", attributes={"cleanup.policy": "COMPACTION"})
        master.broker.offsets.commit("%LMQ%g", "%LMQ%a", 0, 3)
        for _ in range(2):
            await copying.copy(master.broker.address)
            table["T9"] = TopicConfig("T9")
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "cleanup.policy=COMPACTION (compacted)" in line]) == 1
    assert len([line for line in said if "set enableLmq=true" in line]) == 1


def test_impossible_offsets_are_dropped() -> None:
    assert possible({"T@G": {0: 5, 1: -1, -1: 3, 10_000: 3}}) == {"T@G": {0: 5}}
