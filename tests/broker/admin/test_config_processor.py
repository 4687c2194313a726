"""Changes of settings while the broker runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk, talking

from firetrail.broker.admin.config_processor import CHANGEABLE
from firetrail.broker.broker import Broker
from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.files.java_properties import parse_properties
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode, ResponseCode

EXPLOIT = "filterServerNums=1\nrocketmqHome=-c sh -c id"
"""The setting of CVE-2023-33246."""


async def change(talk: Talk, text: str) -> tuple[int, str]:
    answer = await talk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
    return answer.code, answer.remark or ""


async def shown(talk: Talk) -> dict[str, str]:
    answer = await talk.ask(RequestCode.GET_BROKER_CONFIG)
    return {key: entry.text for key, entry in parse_properties(answer.content.decode()).items()}


@asynccontextmanager
async def configured(folder: Path, conf: Path) -> AsyncIterator[Talk]:
    """Talk to a broker that was started with a file."""
    loaded = load_entries(parse_properties(conf.read_text()))
    store = SMALL.replace(store_host=SMALL.store_host._replace(port=0))
    broker = Broker(folder / "store", loaded.broker, store, conf=conf)
    client = RemotingClient()
    await broker.start()
    try:
        yield Talk(broker, client)
    finally:
        await client.close()
        await broker.stop()


class TestEffect:
    async def test_auto_creation_of_topics_can_be_switched_off(self, talk: Talk) -> None:
        assert (await talk.send("A")).code == 0
        assert await change(talk, "autoCreateTopicEnable=false\n") == (0, "")
        assert (await talk.send("B")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await talk.send("A")).code == 0
        await change(talk, "autoCreateTopicEnable=true\ndefaultTopicQueueNums=2")
        assert (await talk.send("B")).code == 0
        topic = talk.broker.topics.get("B")
        assert topic is not None and topic.write_queue_nums == 2

    async def test_auto_creation_of_topics_can_be_switched_on(self) -> None:
        async with talking(config=BrokerConfig(auto_create_topics=False)) as talk:
            assert (await talk.send("B")).code == ResponseCode.TOPIC_NOT_EXIST
            await change(talk, "autoCreateTopicEnable=true")
            assert (await talk.send("B")).code == 0

    async def test_auto_creation_of_groups_can_be_switched_off(self, talk: Talk) -> None:
        await talk.send("T1")
        await change(talk, "autoCreateSubscriptionGroup=false")
        assert (await talk.pull("T1")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    async def test_the_maximum_message_size_can_be_changed(self, talk: Talk) -> None:
        await change(talk, "maxMessageSize=1000")
        too_long = await talk.send("T1", bytes(1001))
        assert too_long.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await talk.send("T1", bytes(1000))).code == 0
        await change(talk, "maxMessageSize=2000")
        assert (await talk.send("T1", bytes(2000))).code == 0

    async def test_the_permission_of_the_broker_can_be_changed(self, talk: Talk) -> None:
        await talk.send("T1")
        await change(talk, "brokerPermission=2")
        assert (await talk.pull("T1")).code == ResponseCode.NO_PERMISSION
        offered = talk.broker.topics.offered().topic_config_table
        assert offered["T1"].perm == 2 and offered["TBW102"].perm == 2
        await change(talk, "brokerPermission=6")
        assert talk.broker.topics.offered() == talk.broker.topics.content()

    async def test_retention_can_be_changed(self, talk: Talk) -> None:
        assert await change(talk, "fileReservedTime=7\ndeleteWhen=04;16") == (0, "")
        config = talk.broker.store.config
        assert (config.file_reserved_hours, config.delete_when) == (7, (4, 16))
        assert SMALL.file_reserved_hours == 72
        now = await shown(talk)
        assert (now["fileReservedTime"], now["deleteWhen"]) == ("7", "04;16")
        answer = await talk.ask(RequestCode.GET_BROKER_CONFIG)
        assert '"counter":1' in answer.fields["version"]

    async def test_a_configuration_that_was_read_before_stays_as_it_was(self, talk: Talk) -> None:
        broker, store = talk.broker.config, talk.broker.store.config
        text = "defaultTopicQueueNums=2\nmaxMessageSize=1000\nflushIntervalCommitLog=7"
        assert await change(talk, text) == (0, "")
        assert broker.default_topic_queues != 2
        assert store.max_message_size != 1000 and store.flush_interval_ms != 7
        assert talk.broker.config == broker.replace(default_topic_queues=2)
        changes = {"max_message_size": 1000, "flush_interval_ms": 7}
        assert talk.broker.store.config == store.replace(**changes)


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "code", "said"),
        [
            ("brokerName=x", 16, "brokerName cannot be changed while the broker runs"),
            ("flushDiskType=SYNC_FLUSH", 16, f"changed without a restart: {CHANGEABLE[0]}"),
            ("haListenPort=1", 16, "haListenPort cannot be changed"),
            ("longPollingEnabled=true", 29, "did you mean longPollingEnable?"),
            ("longPollingEnable=perhaps", 29, "must be true or false"),
            ("maxMessageSize=9000000", 29, "max_message_size"),
            ("fileReservedTime=x", 29, "fileReservedTime"),
            (EXPLOIT, 16, "cannot be changed"),
        ],
    )
    async def test_refused_changes_name_the_reason_and_change_nothing(
        self, talk: Talk, text: str, code: int, said: str
    ) -> None:
        before = await shown(talk)
        found, remark = await change(talk, f"fileReservedTime=1\n{text}")
        assert found == code and said in remark, remark
        assert await shown(talk) == before

    def test_every_changeable_key_is_listed(self) -> None:
        assert {"maxMessageSize", "autoCreateTopicEnable", "transactionCheckMax"} <= set(CHANGEABLE)


class TestFile:
    TEXT = "# ours\nbrokerName = broker-x\nlong_polling=true\nlistenPort=0\n"

    async def test_a_change_keeps_the_other_lines_of_the_file(self, tmp_path: Path) -> None:
        conf = tmp_path / "broker.conf"
        conf.write_text(self.TEXT)

        async with configured(tmp_path, conf) as talk:
            assert (await change(talk, "longPollingEnable=false\nfileReservedTime=5"))[0] == 0
            await change(talk, "fileReservedTime=6")
        assert conf.read_text() == (
            "# ours\nbrokerName = broker-x\nlistenPort=0\n"
            "longPollingEnable=false\nfileReservedTime=6\n"
        )
        assert load_entries(parse_properties(conf.read_text())).broker.long_polling is False

    async def test_the_mark_of_an_editor_stays_in_the_file(self, tmp_path: Path) -> None:
        conf = tmp_path / "broker.conf"
        conf.write_text("fileReservedTime=5\nlistenPort=0\n", "utf-8-sig")
        async with configured(tmp_path, conf) as talk:
            assert (await change(talk, "fileReservedTime=6"))[0] == 0
        assert conf.read_bytes() == b"\xef\xbb\xbffileReservedTime=6\nlistenPort=0\n"

    async def test_a_file_that_cannot_be_written_prevents_the_change(self, tmp_path: Path) -> None:
        conf = tmp_path / "gone" / "broker.conf"
        conf.parent.mkdir()
        conf.write_text(self.TEXT)

        async with configured(tmp_path, conf) as talk:
            conf.unlink()
            code, remark = await change(talk, "longPollingEnable=false")
            assert code == ResponseCode.SYSTEM_ERROR and "no setting was changed" in remark
            assert talk.broker.config.long_polling
