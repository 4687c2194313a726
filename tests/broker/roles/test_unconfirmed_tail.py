"""Messages that replicas have not confirmed, when brokers restart, follow or are elected (R7)."""

import asyncio
from pathlib import Path
from typing import Any

from tests.broker.brokers import SMALL, SUBSCRIPTION, SUSPEND, Talk, records, talking
from tests.broker.groups import FIRST, broker_group
from tests.broker.halves import COMMIT, begin
from tests.broker.roles.test_sync_master import ALONE, CONFIG, MASTER, ended, replicated, visible
from tests.client.clusters import until
from tests.helpers import crash_image

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.names import CHECKPOINT, CONFIRMED, WATERMARK
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.store.settings.store_config import BrokerRole

SLAVE: dict[str, Any] = {"ha_heartbeat_ms": 50, "sync_interval_ms": 20, "slave_read": True}


async def test_a_master_that_restarts_shows_its_tail_when_a_replica_has_it(tmp_path: Path) -> None:
    async with talking(tmp_path / "m", config=CONFIG, store=MASTER) as talk:
        async with replicated(talk, tmp_path / "r"):
            assert (await talk.send("T1", b"one")).code == 0
            await talk.pull_until("T1", 1)
        assert (await talk.send("T1", b"two")).code == ALONE
    async with talking(tmp_path / "m", config=CONFIG, store=MASTER) as talk:
        assert await visible(talk) == [b"one"]
        end = await talk.ask(RequestCode.GET_MAX_OFFSET, topic="T1", queueId=0)
        assert end.fields["offset"] == "1"
        held = asyncio.ensure_future(talk.pull("T1", 1, sysFlag=SUSPEND | SUBSCRIPTION))
        async with replicated(talk, tmp_path / "r"):
            assert [record.body for record in records((await held).content)] == [b"two"]
            assert (await talk.send("T1", b"three")).fields["queueOffset"] == "2"


async def test_a_transaction_that_ended_in_the_tail_stays_ended(tmp_path: Path) -> None:
    """The broker reads its own queues to the end of the log when it starts."""
    async with talking(tmp_path / "m", config=CONFIG, store=MASTER) as talk:
        half = await begin(talk)
        assert await ended(talk, half, COMMIT) == ALONE
        other = await begin(talk)
        assert other.code == ALONE
    async with talking(tmp_path / "m", config=CONFIG, store=MASTER) as talk:
        (left,) = talk.broker._parts.transactions._halves()
        assert left.offset == int(other.fields["queueOffset"])
        assert await ended(talk, half, COMMIT) == ResponseCode.SUCCESS  # a second time: no effect
        assert await ended(talk, other, COMMIT) == ALONE
        async with replicated(talk, tmp_path / "r"):
            assert len(await talk.pull_until("T1", 2, queueId=2)) == 2
            await until(lambda: talk.broker.store.max_offset("T1", 2) == 2)


async def test_positions_stay_where_they_are_while_a_tail_is_hidden(tmp_path: Path) -> None:
    """After a power failure, messages that consumers have seen may have to be confirmed once
    more."""
    async with talking(tmp_path / "m", config=CONFIG, store=MASTER) as talk:
        marks = {name: (tmp_path / "m" / name).read_bytes() for name in (CHECKPOINT, WATERMARK)}
        await talk.beat("CG")
        async with replicated(talk, tmp_path / "r"):
            for body in (b"one", b"two"):
                await talk.send("T1", body)
            await talk.pull_until("T1", 2)
            await talk.commit(2)
            await talk.broker.offsets.saved()
        image = crash_image(tmp_path / "m", tmp_path / "image")
    for name, content in marks.items():  # the housekeeper has not run since the start
        (image / name).write_bytes(content)
    killed = crash_image(image, tmp_path / "killed")
    (image / CONFIRMED).unlink()
    async with talking(killed, config=CONFIG, store=MASTER) as talk:
        bodies = [record.body for record in await talk.pull_until("T1", 2)]
        assert bodies == [b"one", b"two"]  # a kill loses no confirmation
    async with talking(image, config=CONFIG, store=MASTER) as talk:
        assert await visible(talk) == []
        assert await talk.committed() == 2
        answer = await talk.pull("T1", 2)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "2")
        async with replicated(talk, tmp_path / "r"):
            assert [r.body for r in await talk.pull_until("T1", 2)] == [b"one", b"two"]
            await talk.send("T1", b"three")
            held = await talk.pull("T1", 2, sysFlag=SUSPEND | SUBSCRIPTION)
            assert [record.body for record in records(held.content)] == [b"three"]


async def test_a_topic_with_unconfirmed_messages_is_deleted_when_they_are_confirmed(
    tmp_path: Path,
) -> None:
    delete = RequestCode.DELETE_TOPIC_IN_BROKER
    async with talking(config=CONFIG, store=MASTER) as talk:
        async with replicated(talk, tmp_path):
            await talk.send("T1", b"confirmed")
            await talk.send("T2", b"confirmed")
            await talk.pull_until("T1", 1)
            await talk.pull_until("T2", 1)
        await talk.send("T2", b"not confirmed")
        assert (await talk.ask(delete, topic="T1")).code == ResponseCode.SUCCESS
        assert talk.broker.store.topics() == ["T2"]
        answer = await talk.ask(delete, topic="T2")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == (
            "topic T2 is deleted, but not its queues, because 1 of its messages wait for the "
            "confirmation of replicas; delete it again when enough replicas are connected"
        )
        async with replicated(talk, tmp_path):
            assert (await talk.ask(delete, topic="T2")).code == ResponseCode.SUCCESS
            assert (await talk.send("T2", b"new")).fields["queueOffset"] == "0"
            assert [record.body for record in await talk.pull_until("T2", 1)] == [b"new"]


# -- slaves -----------------------------------------------------------------------------------


async def test_a_slave_shows_what_consumers_of_its_master_see(tmp_path: Path) -> None:
    """It has the first message of an empty master, which waits for a second slave."""
    store = MASTER.replace(in_sync_replicas=3)
    config = BrokerConfig(broker_id=1, **SLAVE)
    async with talking(config=CONFIG, store=store) as talk:
        master = talk.broker.store
        config = config.replace(master_address=talk.broker.address)
        replica = SMALL.replace(role=BrokerRole.SLAVE)
        async with Broker.running(tmp_path, config, replica) as slave:
            await until(lambda: talk.broker.broker_store.replica_acks.in_sync(0) == 1)
            assert (await talk.send("T1", b"one")).code == ALONE
            await until(lambda: slave.store.log_range == master.log_range)
            reader = Talk(slave, talk.client)
            await until(lambda: slave.topics.get("T1") is not None)
            assert await visible(reader) == []
        async with Broker.running(tmp_path, config, replica) as slave:
            reader = Talk(slave, talk.client)
            assert await visible(reader) == []
            await talk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"inSyncReplicas=2")
            assert [record.body for record in await reader.pull_until("T1", 1)] == [b"one"]
            assert (await talk.send("T1", b"two")).code == ResponseCode.SUCCESS


# -- elected masters --------------------------------------------------------------------------


async def test_an_elected_master_shows_what_the_in_sync_set_has(tmp_path: Path) -> None:
    async with broker_group(tmp_path, members=2) as group:
        await group.stop(2)
        assert (await group.send(1, b"one")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        await group.stop(1)
        await group.start(1)
        assert await group.master() == 1
        (queue,) = group.members[1].store.queues("T1")

        def shown() -> list[bytes]:
            return [record.body for record in group.members[1].store.read("T1", queue)]

        assert shown() == [FIRST]
        await group.start(2)
        await group.has(1, b"one")
        await group.has(2, b"one")
