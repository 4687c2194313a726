"""The queues of deleted topics are removed and never come back."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk, talking
from tests.broker.pops import MINUTE_MS, StoppedClock, ack, ask_pop, fill, pop
from tests.client.clusters import until
from tests.helpers import crash_image
from tests.stores import overwrite

from firetrail import Message, Store
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.state.topic_table import TopicTable
from firetrail.format.layout import UNIT
from firetrail.format.names import queue_folder
from firetrail.remoting.messages.bodies import DataVersion, TopicConfig, TopicConfigTable
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.settings.config_file import ConfigFile
from firetrail.settings.settings_table import Live
from firetrail.system import System


async def delete(talk: Talk, topic: str) -> None:
    assert (await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)).code == 0


async def delete_group(talk: Talk, group: str, *, clean_offset: bool = True) -> None:
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    answer = await talk.ask(code, groupName=group, cleanOffset=clean_offset)
    assert answer.code == 0


@pytest.mark.parametrize(
    ("topic", "code", "remark"),
    [
        ("T9", ResponseCode.SUCCESS, None),
        ("", ResponseCode.INVALID_PARAMETER, "The specified topic is blank."),
        (
            "TBW102",
            ResponseCode.INVALID_PARAMETER,
            "The topic[TBW102] is conflict with system topic.",
        ),
    ],
)
async def test_invalid_deletions_are_refused(
    talk: Talk, topic: str, code: int, remark: str | None
) -> None:
    answer = await talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    assert (answer.code, answer.remark) == (code, remark)


async def test_a_recreated_topic_starts_at_offset_0(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        for n in range(3):
            await talk.send("T1", b"old %d" % n)
        await talk.pull_until("T1", 3)
        await delete(talk, "T1")
        assert not (tmp_path / "consumequeue" / "T1").exists()
        assert talk.broker.store.topics() == []
        answer = await talk.send("T1", b"new")
        assert answer.fields["queueOffset"] == "0"
        assert [record.body for record in await talk.pull_until("T1", 1)] == [b"new"]
        await talk.send("T2", b"another")
    async with talking(tmp_path) as talk:
        assert [record.body for record in await talk.pull_until("T1", 1)] == [b"new"]
        await until(lambda: talk.broker.store.max_offset("T1", 0) == 1)


async def test_topic_names_are_not_paths(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()

    async with talking(tmp_path / "store") as talk:
        for name in ("../../mine", "9" * 3000):
            await delete(talk, name)
        assert (tmp_path / "mine").is_dir()


async def test_a_crash_brings_nothing_back(tmp_path: Path) -> None:
    async with talking(tmp_path / "a") as talk:
        await talk.send("T2", b"other")
        await talk.send("T1", b"old")
        await delete(talk, "T1")
        crash_image(tmp_path / "a", tmp_path / "b")
        await talk.send("T1", b"new")
        await talk.pull_until("T1", 1)
        talk.broker.store.flush()
        crash_image(tmp_path / "a", tmp_path / "c")
    async with talking(tmp_path / "b") as talk:
        assert not talk.broker.store.recovery.clean
        assert talk.broker.topics.get("T1") is None
        assert talk.broker.store.topics() == ["T2"]
    async with talking(tmp_path / "c") as talk:
        assert not talk.broker.store.recovery.clean
        assert [record.body for record in await talk.pull_until("T1", 1)] == [b"new"]


async def test_queues_of_deleted_topics_are_removed_on_request(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        for topic in ("Left", "rmq_sys_wheel_timer", "RMQ_SYS_X", "SCHEDULE_TOPIC_XXXX"):
            store.put(Message(topic, b"body"))

    async with talking(tmp_path) as talk:
        await talk.send("T1", b"body")
        await talk.pull_until("T1", 1)
        assert (await talk.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
        assert talk.broker.store.topics() == [
            "RMQ_SYS_X",
            "SCHEDULE_TOPIC_XXXX",
            "T1",
            "rmq_sys_wheel_timer",
        ]


async def test_queues_are_kept_while_messages_arrive(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        store = talk.broker.store
        removal = talk.broker.broker_store.removal
        settled = removal.settle()
        await talk.send("T1", b"body")
        await talk.pull_until("T1", 1)
        assert not removal.remove("T1", settled)
        assert store.topics() == ["T1"]
        while not removal.remove("T1", removal.settle()):  # queues are being synced
            await asyncio.sleep(0.01)
        assert store.topics() == []


async def test_queues_without_a_topic_are_those_of_a_deleted_one_unless_they_are_newer(
    tmp_path: Path,
) -> None:
    """The file of topics is saved concurrently with the first send to a topic, not before it."""
    file = ConfigFile(System(), tmp_path, "topics.json")
    file.save(TopicConfigTable({}, DataVersion(3, 1000)).to_json())

    table = TopicTable(file, Live(BrokerConfig()), 18, lambda: 2000)
    newest = {"Deleted": 999, "Made": 1000, "Empty": None}
    table.recover([("Deleted", 0), ("Made", 0), ("Made", 1), ("Empty", 0)], newest.get)
    assert table.get("Deleted") is None
    assert table.get("Empty") is None
    assert table.require("Made").read_queue_nums == 2
    await table.stop()


async def test_expired_queues_of_deleted_topics_are_removed(tmp_path: Path) -> None:
    store = SMALL.replace(commit_log_file_size=1 << 20, max_message_size=1 << 19)
    with Store.open(tmp_path, store) as before:
        for topic in ("GONE", "KEPT"):
            before.put(Message(topic, b"body"))
        for _ in range(5):
            before.put(Message("KEPT", bytes(1 << 19)))
        for _ in range(2):
            before.put(Message("RECENT", b"body"))

    async with talking(tmp_path, store=store) as talk:
        ours = talk.broker.store
        clean = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
        assert (await talk.ask(clean)).code == 0
        assert ours.topics() == ["GONE", "KEPT", "RECENT"]
        assert ours.delete_expired(forced=True) > 0
        # The last unit of a topic that has messages is damaged: it points to a deleted one.
        overwrite(tmp_path / queue_folder("RECENT", 0) / f"{0:020}", UNIT.size, bytes(8))
        talk.broker.topics.put([TopicConfig("KEPT")])
        assert (await talk.ask(clean)).code == 0
        assert ours.topics() == ["KEPT", "RECENT"]
        assert ours.max_offset("KEPT", 0) == 6


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_a_deleted_name_does_not_keep_a_queue_closed(what: str) -> None:
    """A pop in order closes the queue only for the group and the topic that it was made for."""
    async with talking() as talk:
        await fill(talk, "T1", b"old")
        assert len(await pop(talk, order=True, queueId=0)) == 1
        if what == "topic":
            await delete(talk, "T1")
            await fill(talk, "T1", b"new")
        else:
            await delete_group(talk, "CG")
        assert [each.body for each in await pop(talk, order=True, queueId=0)] == [
            b"new" if what == "topic" else b"old"
        ]


async def test_a_group_that_keeps_its_offsets_keeps_its_pops() -> None:
    async with talking() as talk:
        await fill(talk, "T1", b"1")
        assert len(await pop(talk, order=True, queueId=0)) == 1
        await delete_group(talk, "CG", clean_offset=False)
        assert await pop(talk, order=True, queueId=0) == []


@pytest.mark.parametrize("restart", [False, True])
async def test_pops_of_a_deleted_topic_redeliver_nothing_of_the_next_one(
    tmp_path: Path, restart: bool
) -> None:
    clock = StoppedClock()
    system = System(clock=clock)
    async with talking(tmp_path / "a", system=system) as talk:
        await fill(talk, "T1", b"old", b"old")
        assert len(await pop(talk, invisibleTime=MINUTE_MS)) == 2
        await delete(talk, "T1")
        await fill(talk, "T1", b"new")
        (new,) = await pop(talk, invisibleTime=MINUTE_MS)
        assert (await ack(talk, new)).code == 0
        talk.broker.store.flush()
        crash_image(tmp_path / "a", tmp_path / "b")
        parts = talk.broker._parts
        clock.advance(2 * MINUTE_MS)
        parts.revive.revive()
        assert await pop(talk) == []
    if restart:
        async with talking(tmp_path / "b", system=system) as talk:
            assert list(talk.broker._parts.checkpoints.pops()) == []


async def test_messages_that_a_deleted_topic_redelivers_are_deleted_as_well() -> None:
    clock = StoppedClock()
    async with talking(system=System(clock=clock)) as talk:
        await fill(talk, "T1", b"old")
        assert len(await pop(talk, invisibleTime=MINUTE_MS)) == 1
        clock.advance(MINUTE_MS)
        talk.broker._parts.revive.revive()
        assert talk.broker.topics.get("%RETRY%CG_T1") is not None
        await delete(talk, "T1")
        assert talk.broker.topics.get("%RETRY%CG_T1") is None
        await fill(talk, "T1", b"new")
        assert [each.body for each in await pop(talk)] == [b"new"]


async def test_a_topic_may_be_read_again_that_was_deleted_while_it_was_forbidden(
    talk: Talk,
) -> None:
    """Nobody could allow it while it did not exist."""
    await fill(talk, "T1", b"old")
    forbid = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    assert (await talk.ask(forbid, group="CG", topic="T1", readable=False)).code == 0
    await delete(talk, "T1")
    await fill(talk, "T1", b"new")
    assert (await ask_pop(talk)).code == 0


async def test_pops_in_order_of_deleted_topics_are_not_kept(talk: Talk) -> None:
    for number in range(3):
        await fill(talk, f"D{number}", b"1")
        assert len(await pop(talk, topic=f"D{number}", order=True)) == 1
        await delete(talk, f"D{number}")
    assert talk.broker._parts.orders.content().table == {}
