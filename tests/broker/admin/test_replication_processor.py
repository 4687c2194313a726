"""Replication as administrators and Java slaves see it."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from unittest.mock import MagicMock

from tests.broker.brokers import SMALL, Talk, talking
from tests.client.clusters import until
from tests.replication.followers import following

from firetrail.broker.admin.replication_processor import ReplicationProcessor
from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.files.timer import decode_check
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.messages.admin.admin_bodies import HARuntimeInfo
from firetrail.remoting.messages.bodies import ConsumerOffsets, DelayOffsets
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.ha.ha_frames import encode_introduction, encode_report, identity_number
from firetrail.store.settings.store_config import BrokerRole

STATUS = RequestCode.GET_BROKER_HA_STATUS
REPLICA = SMALL.replace(role=BrokerRole.SLAVE)
CONFIG = BrokerConfig(ha_heartbeat_ms=50)


async def status(talk: Talk) -> HARuntimeInfo:
    return HARuntimeInfo.decode((await talk.ask(STATUS)).content)


async def test_a_master_without_replicas(talk: Talk) -> None:
    await talk.send("T1")
    answer = await talk.ask(STATUS)
    assert HARuntimeInfo.decode(answer.content) == HARuntimeInfo(talk.broker.store.log_range[1])
    assert b'"master":true' in answer.content
    assert b'"haConnectionInfo":[]' in answer.content


async def test_a_master_with_a_replica(tmp_path: Path) -> None:
    async with talking(config=CONFIG) as talk:
        await talk.send("T1")
        end = talk.broker.store.log_range[1]
        with following(tmp_path, talk.broker.config.ha_address, REPLICA) as replica:
            await until(lambda: talk.broker.broker_store.replica_acks.retained_from() == end)
            assert replica.log.max_offset == end
            found = await status(talk)
            (connection,) = json.loads((await talk.ask(STATUS)).content)["haConnectionInfo"]
        assert found.in_sync_slave_nums == 1
        assert connection.keys() == {
            *("addr", "slaveAckOffset", "diff", "inSync"),
            *("transferredByteInSecond", "transferFromWhere"),
        }
        (info,) = found.ha_connection_info
        assert info.addr.startswith("127.0.0.1:")
        assert (info.slave_ack_offset, info.diff, info.in_sync) == (end, 0, True)
        assert info.transfer_from_where == end
        await until(lambda: not talk.broker._term.ha.connections)  # type: ignore[union-attr]
        assert (await status(talk)).in_sync_slave_nums == 0


async def test_a_replica_of_an_empty_master_is_not_ahead_of_it(tmp_path: Path) -> None:
    async with talking(config=CONFIG) as talk:
        with following(tmp_path, talk.broker.config.ha_address, REPLICA):
            await until(lambda: talk.broker.broker_store.replica_acks.in_sync(0) == 1)
            (info,) = (await status(talk)).ha_connection_info
        assert (info.slave_ack_offset, info.diff, info.in_sync) == (0, 0, True)


async def test_a_replica_that_has_connected_again_is_listed_once() -> None:
    async with talking(config=CONFIG) as talk:
        acks, ha = talk.broker.broker_store.replica_acks, talk.broker._term.ha
        assert ha is not None
        with ExitStack() as connections:
            for number in (1, 2):
                address = split_address(talk.broker.config.ha_address)
                peer = connections.enter_context(socket.create_connection(address))
                peer.sendall(encode_introduction(0, identity_number("a store")) + encode_report(0))
                await until(lambda: len(ha.connections) == number)  # noqa: B023
                await until(lambda: acks.in_sync(0) == 1)
                last = peer.getsockname()
            await until(lambda: not acks.counts(ha.connections[0]))
            found = await status(talk)
        assert [info.addr for info in found.ha_connection_info] == [f"{last[0]}:{last[1]}"]
        assert found.in_sync_slave_nums == 1


def test_no_replica_is_ahead_of_a_master_that_stores_messages_meanwhile() -> None:
    """The log of this master grows, and is confirmed, whenever anything looks at it."""
    ends = count(1000, 1000)

    class Growing:
        address, sent_per_second = "127.0.0.1:1", 0
        position = 0

        @property
        def acked(self) -> int:
            return next(ends)

        @property
        def max_offset(self) -> int:
            return next(ends)

        @property
        def session(self) -> Growing:
            return self

    growing = Growing()
    state, ha = MagicMock(), MagicMock(connections=(growing,))
    state.store.replica_acks.in_sync.return_value = 1
    state.store.replica_acks.is_in_sync.return_value = True
    state.store.log = growing
    handle = ReplicationProcessor(state, MagicMock(), ha, None).handlers[STATUS]
    answer = handle(MagicMock(), RemotingCommand(STATUS))
    assert isinstance(answer, RemotingCommand)
    (info,) = HARuntimeInfo.decode(answer.content).ha_connection_info
    assert info.diff == 1000


async def test_a_peer_that_has_reported_nothing_is_not_in_sync(talk: Talk) -> None:
    host, port = talk.broker.config.ha_host, talk.broker.config.ha_listen_port
    with socket.create_connection((host, port)):
        await until(lambda: talk.broker._term.ha.connections)  # type: ignore[union-attr]
        found = await status(talk)
        assert found.in_sync_slave_nums == 0
        assert [info.in_sync for info in found.ha_connection_info] == [False]


async def test_a_slave_tells_about_its_master(talk: Talk) -> None:
    await talk.broker.become(BrokerRole.SLAVE, 1)
    answer = json.loads((await talk.ask(STATUS)).content)
    assert answer["master"] is False
    assert answer["haClientRuntimeInfo"].keys() == {
        *("masterAddr", "transferredByteInSecond", "maxOffset", "lastReadTimestamp"),
        *("lastWriteTimestamp", "masterFlushOffset", "activated"),
    }


async def test_a_master_tells_brokers_where_its_ha_port_is(tmp_path: Path) -> None:
    exchange = RequestCode.EXCHANGE_BROKER_HA_INFO
    async with talking(tmp_path) as talk:
        await talk.send("T1")
        end = talk.broker.store.log_range[1]
        answer = await talk.ask(exchange)
        assert answer.fields["masterHaAddress"] == talk.broker.config.ha_address
        assert answer.fields["masterAddress"] == talk.broker.address
        assert answer.fields["masterFlushOffset"] == "0"
    async with talking(tmp_path) as talk:
        await talk.send("T1")
        assert (await talk.ask(exchange)).fields["masterFlushOffset"] == str(end)
        await talk.broker.become(BrokerRole.SLAVE, 1)
        answer = await talk.ask(exchange)
        assert answer.code == ResponseCode.SUCCESS
        assert "masterHaAddress" not in answer.fields
        named = await talk.ask(exchange, masterHaAddress="10.0.0.1:10912", masterFlushOffset=0)
        assert named.code == ResponseCode.NO_PERMISSION
        assert "enableSlaveActingMaster" in (named.remark or "")


async def test_java_slaves_get_the_state_of_an_empty_timer(talk: Talk) -> None:
    checkpoint = await talk.ask(RequestCode.GET_TIMER_CHECK_POINT)
    check = decode_check(checkpoint.content)
    assert check.read_ms > 1_700_000_000_000
    assert check[1:5] == (0, 0, 0, 0)
    metrics = await talk.ask(RequestCode.GET_TIMER_METRICS)
    assert json.loads(metrics.content) == {
        "timingCount": {},
        "dataVersion": {"counter": 0, "timestamp": 0},
    }


async def test_offsets_have_a_version_that_changes_with_them(talk: Talk) -> None:
    """RocketMQ 5 slaves cannot save offsets without a version."""
    versions = []
    await talk.send("T1")
    for offset in (1, 1, 2):
        await talk.commit(offset)
        answer = await talk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        versions.append(ConsumerOffsets.decode(answer.content).data_version)
    assert versions[0] == versions[1] != versions[2]
    assert versions[0] is not None
    assert versions[0].timestamp > 1_700_000_000_000
    talk.broker.offsets.saver.save_changes()
    answer = await talk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert ConsumerOffsets.decode(answer.content).data_version == versions[2]


async def test_delays_have_a_version(talk: Talk) -> None:
    answer = await talk.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    version = DelayOffsets.decode(answer.content).data_version
    assert version is not None
    assert version.counter > 0
