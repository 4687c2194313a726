"""Sends: stored messages, answers and refusals."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Fields, Talk, talking

from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.layout import TRANSACTION_MASK
from firetrail.format.properties import encode_properties
from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import FlushMode

V1 = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
}

ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}


async def test_sent_messages_are_stored(talk: Talk) -> None:
    answer = await talk.send("T1", b"body", e=2, h=7)
    assert answer.code == ResponseCode.SUCCESS
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("2", "0")
    place = decode_message_id(answer.fields["msgId"])
    assert str(place.host) == talk.broker.address
    record = talk.broker.store.at(place.physical_offset)
    assert record is not None
    assert (record.topic, record.queue_id, record.body) == ("T1", 2, b"body")
    assert (record.flag, record.born_time) == (7, 1_700_000_000_000)
    assert record.born_host.ip == "127.0.0.1"
    # The property WAIT is not stored; the properties of the broker are.
    assert record.properties == {"KEYS": "k1", "TAGS": "A", "UNIQ_KEY": "U1", **ADDED}


async def test_headers_of_the_first_version_are_accepted(talk: Talk) -> None:
    fields: Fields = {"a": "G", "b": "T1", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 5, "h": 0}
    named = {V1[name]: value for name, value in fields.items()}
    answer = await talk.ask(RequestCode.SEND_MESSAGE, named, body=b"x")
    assert (answer.code, answer.fields["queueId"]) == (0, "1")


@pytest.mark.parametrize("flush", FlushMode)
async def test_concurrent_sends_are_all_stored(flush: FlushMode) -> None:
    async with talking(store=SMALL.replace(flush=flush)) as talk:
        answers = await asyncio.gather(*(talk.send("T1", b"%d" % n) for n in range(100)))
        assert {answer.code for answer in answers} == {0}
        assert sorted(int(answer.fields["queueOffset"]) for answer in answers) == list(range(100))


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_batch_is_stored_as_single_messages(talk: Talk, code: int) -> None:
    items = [BatchItem(0, b"body %d" % n, b"TAGS\x01A\x02") for n in range(3)]
    answer = await talk.send("T1", encode_batch(items), code=code, m="1", i="")
    assert answer.code == 0
    ids = answer.fields["msgId"].split(",")
    found = [talk.broker.store.by_id(message_id) for message_id in ids]
    assert [record.body for record in found if record] == [b"body 0", b"body 1", b"body 2"]
    assert [record.queue_offset for record in found if record] == [0, 1, 2]


@pytest.mark.parametrize("flag", [4, 12, 4 | 0x100])
@pytest.mark.parametrize("retries", [0, 1])
async def test_the_flag_of_a_transaction_alone_hides_no_message(
    talk: Talk, flag: int, retries: int
) -> None:
    """RocketMQ acknowledges such a message, and never delivers it."""
    answer = await talk.send("T1", b"seen", f=flag, j=retries)
    assert (answer.code, answer.fields["queueOffset"]) == (0, "0")
    (record,) = await talk.pull_until("T1", 1)
    assert (record.body, record.sys_flag & TRANSACTION_MASK) == (b"seen", 0)
    assert (await talk.send("T1")).fields["queueOffset"] == "1"


class TestTopics:
    async def test_the_first_message_creates_its_topic(self, talk: Talk) -> None:
        await talk.send("T1", d=3)
        topic = talk.broker.topics.require("T1")
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 3, 6)
        route = await talk.client.request(
            talk.broker.namesrv,
            RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}),
        )
        assert route.code == 0
        assert talk.broker.address in route.content.decode()

    async def test_unknown_topics_are_refused_without_auto_creation(self) -> None:
        async with talking(config=BrokerConfig(auto_create_topics=False)) as talk:
            assert (await talk.send("T1")).code == ResponseCode.TOPIC_NOT_EXIST

    @pytest.mark.parametrize("name", ["", "../x", "a" * 128, "ümlaut"])
    async def test_invalid_topic_names_are_refused(self, talk: Talk, name: str) -> None:
        answer = await talk.send(name)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "topic" in (answer.remark or "")

    async def test_sends_to_internal_topics_are_refused(self, talk: Talk) -> None:
        for name in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
            assert (await talk.send(name)).code == ResponseCode.NO_PERMISSION

    async def test_topics_survive_a_restart(self, tmp_path: Path) -> None:
        async with talking(tmp_path) as talk:
            await talk.send("T1", d=2)
        async with talking(tmp_path) as talk:
            assert talk.broker.topics.require("T1").write_queue_nums == 2
            assert (await talk.send("T1")).fields["queueOffset"] == "1"
        assert '"topicName":"T1"' in (tmp_path / "config" / "topics.json").read_text()


class TestQueues:
    async def test_a_negative_queue_id_picks_any_queue(self, talk: Talk) -> None:
        answers = [await talk.send("T1", e=-1) for _ in range(40)]
        assert {answer.fields["queueId"] for answer in answers} == {"0", "1", "2", "3"}

    async def test_a_missing_queue_is_refused(self, talk: Talk) -> None:
        answer = await talk.send("T1", e=4)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "queueId[4]" in (answer.remark or "")


class TestRefusals:
    async def test_a_body_that_is_too_long_is_refused(self) -> None:
        async with talking(store=SMALL.replace(max_message_size=1000)) as talk:
            answer = await talk.send("T1", b"x" * 2000)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "2000 bytes" in (answer.remark or "")

    async def test_missing_and_invalid_fields_are_refused(self, talk: Talk) -> None:
        assert (await talk.send("T1", d="x")).code == ResponseCode.SYSTEM_ERROR
        assert (await talk.send("T1", g=None)).code == ResponseCode.SYSTEM_ERROR

    async def test_a_message_that_was_retried_too_often_becomes_a_dead_letter(
        self, talk: Talk
    ) -> None:
        await talk.beat("CG")
        again = await talk.send("%RETRY%CG", j=16)
        dead = await talk.send("%RETRY%CG", j=17)
        assert (again.code, dead.code) == (0, 0)
        place = decode_message_id(dead.fields["msgId"]).physical_offset
        record = talk.broker.store.at(place)
        assert record is not None and record.topic == "%DLQ%CG"


async def test_region_and_trace_are_those_of_the_broker() -> None:
    """A message that was stored before has them already, such as one that was sent back."""
    expected = {"MSG_REGION": "eu", "TRACE_ON": "false"}
    async with talking(config=BrokerConfig(region="eu", trace_on=False)) as talk:
        before = "MSG_REGION\x01Old\x02K\x01v\x02TRACE_ON\x01true\x02CLUSTER\x01Old\x02"
        answer = await talk.send("T1", i=before)
        assert {name: answer.fields[name] for name in ("MSG_REGION", "TRACE_ON")} == expected
        items = [BatchItem(0, b"0", b"K\x01v\x02"), BatchItem(0, b"1", b"")]
        await talk.send("T1", encode_batch(items), m=True, i=None)
        raw = [record.raw_properties.decode() for record in await talk.pull_until("T1", 3)]
        added = "MSG_REGION\x01eu\x02TRACE_ON\x01false\x02CLUSTER\x01DefaultCluster\x02"
        assert raw == [f"K\x01v\x02{added}", f"K\x01v\x02{added}", added]


@pytest.mark.parametrize("attribute", ["cleanup.policy=COMPACTION", "queue.type=BatchCQ"])
async def test_sends_to_topics_with_unsupported_attributes_are_refused(
    attribute: str, tmp_path: Path
) -> None:
    name, _, value = attribute.partition("=")
    topic = {"topicName": "C1", "attributes": {name: value}, "readQueueNums": 1, "perm": 6}
    (tmp_path / "config").mkdir()
    table = {"topicConfigTable": {"C1": topic | {"writeQueueNums": 1}}}
    (tmp_path / "config" / "topics.json").write_text(json.dumps(table))

    async with talking(tmp_path) as talk:
        answer = await talk.send("C1")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert f"it has {attribute}, which Firetrail does not support" in (answer.remark or "")
        assert (await talk.send("T1")).code == ResponseCode.SUCCESS


async def test_a_message_that_claims_to_be_several_is_refused(talk: Talk) -> None:
    """A Java broker that takes the folder over could not read on after such a record."""
    inner = encode_properties({"INNER_NUM": "x", "INNER_BASE": "y"})
    batch = encode_batch([BatchItem(0, b"x", inner)])
    shared = inner.decode()
    sends: list[tuple[bytes, Fields]] = [
        (b"x", {"i": shared}),
        (b"x", {"f": 0x80}),
        (batch, {"m": "true"}),
        (encode_batch([BatchItem(0, b"x", b"")]), {"m": "true", "i": shared}),
    ]
    for body, fields in sends:
        answer = await talk.send("T1", body, fields)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "queue.type=BatchCQ" in (answer.remark or "")
    assert (await talk.send("T1", i="MY_INNER_NUM\x01x\x02")).code == 0
    mentions = [BatchItem(0, inner, b""), BatchItem(0, b"x", b"MY_" + inner)]
    assert (await talk.send("T1", encode_batch(mentions), m="true")).code == 0
