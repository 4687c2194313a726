"""The queues of deleted topics are removed and never come back."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk, talking
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
