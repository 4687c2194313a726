"""A slave follows its master: log and tables, through restarts, changes and promotions."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL, Talk, talking
from tests.client.clusters import read_all, until
from tests.helpers import crash_image
from tests.replication.logs import log_content

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.broker.replica.slave_synchronize import SlaveSynchronize
from firetrail.cli.main import main
from firetrail.client import PushConsumer
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.pace import periodic
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import ConsumeFromWhere, TopicConfigTable
from firetrail.remoting.wire.codes import RequestCode
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import MasterAddress
from firetrail.store.settings.store_config import BrokerRole
from firetrail.store.store import Store

QUICK: dict[str, Any] = {"ha_heartbeat_ms": 50, "sync_interval_ms": 20, "slave_read": True}
SLAVE = SMALL.replace(role=BrokerRole.SLAVE)


@asynccontextmanager
async def slave_in(folder: Path, **settings: Any) -> AsyncIterator[Broker]:
    """Run a slave with short intervals."""
    config = BrokerConfig(**{"broker_id": 1, **QUICK, **settings})
    async with Broker.running(folder, config, SLAVE) as broker:
        yield broker


def following(slave: Broker) -> ReplicaService:
    assert slave.replica is not None
    return slave.replica


async def caught_up(slave: Broker, master: Broker) -> None:
    """Wait until the slave has the log and the tables of its master."""

    def is_equal() -> bool:
        return (
            slave.store.log_range[1] == master.store.log_range[1]
            and slave.topics.content() == master.topics.content()
            and slave.groups.content() == master.groups.content()
            and slave.offsets.content() == master.offsets.content()
        )

    await until(is_equal)
    await asyncio.to_thread(slave.store.wait_dispatched)


async def test_a_slave_finds_and_follows_its_master(tmp_path: Path) -> None:
    async with talking(tmp_path / "m") as talk:
        await talk.send("T1", b"one")
        async with slave_in(tmp_path / "s", namesrv=talk.broker.namesrv) as slave:
            await talk.send("T1", b"two")
            await talk.beat("CG")
            await talk.commit(1)
            await caught_up(slave, talk.broker)
            await until(lambda: following(slave).is_caught_up)
            reader = Talk(slave, talk.client)
            assert [r.body for r in await reader.pull_until("T1", 2)] == [b"one", b"two"]
            assert await reader.committed() == 1
            assert following(slave).follower.status.state is FollowerState.FOLLOWING
            end = slave.store.log_range[1]
    assert log_content(tmp_path / "s")[:end] == log_content(tmp_path / "m")[:end]


async def test_a_slave_goes_on_after_an_unexpected_error(
    tmp_path: Path, talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(periodic, "AFTER_ERROR_S", 0.01)
    async with slave_in(tmp_path, master_address=talk.broker.address) as slave:
        registration = following(slave)._registration
        look = registration.look_for_master
        failures = [ValueError("a bug")]

        def failing(*, ask: bool) -> None:
            if failures:
                raise failures.pop()
            look(ask=ask)

        monkeypatch.setattr(registration, "look_for_master", failing)
        await until(lambda: not failures)
        await talk.send("T2", b"new")
        await caught_up(slave, talk.broker)
    assert "the tables of the master cannot be followed now; will retry: a bug" in caplog.text


async def test_a_slave_follows_a_configured_master_and_continues_after_a_restart(
    tmp_path: Path, talk: Talk
) -> None:
    for number in range(3):
        await talk.send("T1", b"%d" % number)
        async with slave_in(tmp_path, master_address=talk.broker.address) as slave:
            await caught_up(slave, talk.broker)
            bodies = [record.body for record in slave.store.read("T1")]
            assert bodies == [b"%d" % sent for sent in range(number + 1)]


async def test_a_group_goes_on_at_the_slave_when_the_master_is_down(tmp_path: Path) -> None:
    """The consumer that joins afterwards registers with the slave, and continues there."""
    name_server = NameServer(NameServerConfig(listen_port=0))
    namesrv = f"127.0.0.1:{await name_server.start()}"
    got: list[bytes] = []
    first = ConsumeFromWhere.FIRST_OFFSET
    try:
        async with slave_in(tmp_path, namesrv=namesrv) as slave:
            async with talking(config=BrokerConfig(namesrv=namesrv)) as talk:
                for body in (b"one", b"two", b"three"):
                    await talk.send("T1", body)
                await talk.beat("CG")
                await talk.commit(1)
                await caught_up(slave, talk.broker)
            async with PushConsumer(
                namesrv, "CG", lambda message: got.append(message.body), {"T1": "*"}, start=first
            ):
                await until(lambda: len(got) == 2)
    finally:
        await name_server.stop()
    assert got == [b"two", b"three"]


async def test_a_slave_waits_for_a_master_that_is_not_there_yet(tmp_path: Path) -> None:
    name_server = NameServer(NameServerConfig(listen_port=0))
    namesrv = f"127.0.0.1:{await name_server.start()}"
    try:
        async with slave_in(tmp_path, namesrv=namesrv) as slave:
            assert following(slave).follower.status.state is FollowerState.WAITING
            async with talking(config=BrokerConfig(namesrv=namesrv)) as talk:
                await talk.send("T1")
                await caught_up(slave, talk.broker)
    finally:
        await name_server.stop()


async def test_consumers_read_from_the_slave_when_the_master_is_gone(tmp_path: Path) -> None:
    name_server = NameServer(NameServerConfig(listen_port=0))
    namesrv = f"127.0.0.1:{await name_server.start()}"
    try:
        async with slave_in(tmp_path, namesrv=namesrv) as slave:
            async with talking(config=BrokerConfig(namesrv=namesrv)) as talk:
                await talk.send("T1", b"one")
                await talk.send("T1", b"two")
                await caught_up(slave, talk.broker)
            found = await read_all(namesrv, "T1", 2)
            assert [message.body for message in found] == [b"one", b"two"]
    finally:
        await name_server.stop()


async def test_another_master_is_followed_at_once(tmp_path: Path) -> None:
    """RocketMQ's slave goes on following the old master as long as that connection lives."""
    name_server = NameServer(NameServerConfig(listen_port=0))
    namesrv = f"127.0.0.1:{await name_server.start()}"

    def register(broker: Broker) -> None:
        name_server.register_local(
            cluster="DefaultCluster",
            name="broker-a",
            address=broker.address,
            topics=TopicConfigTable(),
        )

    try:
        async with talking(tmp_path / "old") as old:
            await old.send("T1", b"both")
            await asyncio.to_thread(old.broker.store.flush)
            crash_image(tmp_path / "old", tmp_path / "new")
            register(old.broker)
            async with (
                talking(tmp_path / "new") as new,
                slave_in(tmp_path / "s", namesrv=namesrv) as slave,
            ):
                await caught_up(slave, old.broker)
                name_server.unregister_local(name="broker-a", address=old.broker.address)
                register(new.broker)
                slave._parts.registration.look_for_master()
                await until(lambda: following(slave).master == MasterAddress(new.broker.address))
                await old.send("T1", b"only the old master")
                await new.send("T1", b"new")
                await caught_up(slave, new.broker)
                assert [r.body for r in slave.store.read("T1")] == [b"both", b"new"]
    finally:
        await name_server.stop()


async def test_the_tables_of_a_master_with_another_history_are_not_copied(tmp_path: Path) -> None:
    async with talking() as first:
        await first.send("T1", b"first")
        async with slave_in(tmp_path, master_address=first.broker.address) as slave:
            await caught_up(slave, first.broker)
            topics = slave.topics.content()
    async with talking() as second:
        await second.send("T2", b"second master")
        async with slave_in(tmp_path, master_address=second.broker.address) as slave:
            status = following(slave).follower
            await until(lambda: status.status.state is FollowerState.DIVERGED)
            await asyncio.sleep(0.1)
            assert slave.topics.content() == topics
            assert [record.body for record in slave.store.read("T1")] == [b"first"]


@pytest.mark.parametrize(
    ("name", "cluster"),
    [("other", "DefaultCluster"), ("broker-a", "other"), ("other", "other")],
    ids=["name", "cluster", "both"],
)
async def test_a_master_of_another_name_or_cluster_is_refused(
    tmp_path: Path, name: str, cluster: str, talk: Talk
) -> None:
    await talk.send("T1")
    settings = {"master_address": talk.broker.address, "name": name, "cluster": cluster}
    async with slave_in(tmp_path, **settings) as slave:
        follower = following(slave).follower
        await until(lambda: follower.status.state is FollowerState.FAILED)
        assert follower.status.error == (
            "the master is broker 'broker-a' of cluster 'DefaultCluster', but this broker is "
            f"configured as a slave of {name!r} of cluster {cluster!r}; set brokerName and "
            "brokerClusterName to the master's, or correct the address of the master"
        )
        assert slave.store.log_range == (0, 0)
        assert slave.topics.get("T1") is None


async def test_a_promoted_slave_goes_on_where_its_master_was(tmp_path: Path, talk: Talk) -> None:
    await talk.send("T1", b"one")
    await talk.send("T1", b"two")
    await talk.beat("CG")
    await talk.commit(1)
    async with slave_in(tmp_path, master_address=talk.broker.address) as slave:
        await caught_up(slave, talk.broker)
        await slave.become(BrokerRole.ASYNC_MASTER, 0)
        assert slave.replica is None
        promoted = Talk(slave, talk.client)
        assert await promoted.committed() == 1
        assert (await promoted.send("T1", b"three")).fields["queueOffset"] == "2"
        await asyncio.to_thread(slave.store.wait_dispatched)
        assert [r.body for r in slave.store.read("T1")] == [b"one", b"two", b"three"]
        assert slave.groups.get("CG") is not None


async def test_a_held_pull_on_a_slave_is_answered_when_the_message_is_copied(
    tmp_path: Path, talk: Talk
) -> None:
    await talk.send("T1", b"one")
    async with slave_in(tmp_path, master_address=talk.broker.address) as slave:
        await caught_up(slave, talk.broker)
        waiting = asyncio.create_task(Talk(slave, RemotingClient()).pull_until("T1", 2))
        await until(lambda: slave._parts.state.long_polling._held)
        await talk.send("T1", b"two")
        assert [record.body for record in await waiting] == [b"one", b"two"]


async def test_the_ha_address_alone_is_not_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with slave_in(tmp_path, ha_master_address="127.0.0.1:1"):
        assert "haMasterAddress=127.0.0.1:1 is not enough to follow a master" in caplog.text


async def test_the_configured_ha_address_is_used(tmp_path: Path, talk: Talk) -> None:
    await talk.send("T1")
    wrong = {"namesrv": talk.broker.namesrv, "ha_master_address": "127.0.0.1:1"}
    async with slave_in(tmp_path, **wrong) as slave:
        follower = following(slave).follower
        await until(lambda: "127.0.0.1:1" in follower.status.error)


async def test_a_topic_that_the_master_has_created_again_begins_again(tmp_path: Path) -> None:
    """RocketMQ's slave skips the messages whose numbers its old queue has."""
    async with talking() as talk:
        for body in (b"old 0", b"old 1", b"old 2"):
            await talk.send("T1", body)
        async with slave_in(tmp_path, master_address=talk.broker.address) as slave:
            await caught_up(slave, talk.broker)
            reader = Talk(slave, talk.client)
            assert len(await reader.pull_until("T1", 3)) == 3
            await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T1")
            await talk.send("T1", b"new 0")
            await talk.send("T1", b"new 1")
            await caught_up(slave, talk.broker)
            assert [r.body for r in slave.store.read("T1")] == [b"new 0", b"new 1"]
            assert [r.body for r in await reader.pull_until("T1", 2)] == [b"new 0", b"new 1"]
            await asyncio.to_thread(slave.broker_store.removal.settle)
    with Store.open(tmp_path) as store:
        assert [r.body for r in store.read("T1")] == [b"new 0", b"new 1"]
    assert main(["fsck", str(tmp_path)]) == 0


async def test_tables_that_find_no_space_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The slave keeps following, and copies them as soon as there is space."""
    full = asyncio.Event()

    async def copy(*_: object) -> bool:
        full.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "config/topics.json")

    async with talking() as talk:
        await talk.send("T1", b"one")
        monkeypatch.setattr(SlaveSynchronize, "copy", copy)
        async with slave_in(tmp_path, master_address=talk.broker.address) as slave:
            for _ in range(3):
                full.clear()
                await full.wait()
            assert slave.store.log_range[1] == talk.broker.store.log_range[1]
            monkeypatch.undo()
            await caught_up(slave, talk.broker)
    reason = "cannot be saved: [Errno 28] No space left on device: 'config/topics.json'"
    said = f"the tables of master {talk.broker.address} {reason}"
    assert [record.getMessage() for record in caplog.records].count(said) == 1
