"""Messages that were not consumed are redelivered later, and end as dead letters."""

import asyncio

import pytest
from tests.broker.brokers import SMALL, Field, Fields, Talk, talking

from firetrail.broker.processors.send_back_processor import FIRST_RETRY_LEVEL
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.ids import decode_message_id
from firetrail.format.values.integers import INT32_MAX, INT32_MIN
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.wire.codes import RequestCode, ResponseCode

QUICK = SMALL.replace(delay_levels=DelayLevels.parse("1s 1s 0s 0s 0s"))


async def sent(talk: Talk, **fields: Field) -> int:
    """Send a message; return its position in the log."""
    answer = await talk.send("T1", b"body", fields, i="TAGS\x01A\x02UNIQ_KEY\x01U1\x02")
    await talk.beat("CG")
    return decode_message_id(answer.fields["msgId"]).physical_offset


async def back(talk: Talk, offset: int, delay_level: int = 0, **fields: Field) -> int:
    answer = await talk.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        fields,
        offset=offset,
        group="CG",
        delayLevel=delay_level,
    )
    return answer.code


async def test_a_message_sent_back_is_redelivered_to_its_group() -> None:
    async with talking(store=QUICK) as talk:
        offset = await sent(talk)
        assert await back(talk, offset) == 0
        (first,) = await talk.pull_until("%RETRY%CG", 1)
        assert (first.body, first.tags, first.reconsume_times) == (b"body", "A", 1)
        properties = first.properties
        assert properties["RETRY_TOPIC"] == "T1"
        assert properties["UNIQ_KEY"] == "U1"
        assert decode_message_id(properties["ORIGIN_MESSAGE_ID"]).physical_offset == offset
        assert await back(talk, first.physical_offset) == 0
        second = (await talk.pull_until("%RETRY%CG", 2))[1]
        assert second.reconsume_times == 2
        assert second.properties["RETRY_TOPIC"] == "T1"
        assert second.properties["ORIGIN_MESSAGE_ID"] == properties["ORIGIN_MESSAGE_ID"]


@pytest.mark.parametrize(("topic", "level"), [("%RETRY%CG", 0), ("%DLQ%CG", -1)])
async def test_a_message_is_not_stored_in_a_queue_that_its_topic_does_not_have(
    topic: str, level: int
) -> None:
    """Nobody would read it there. A send to this topic is refused, too."""
    async with talking(store=QUICK) as talk:
        offset = await sent(talk)
        talk.broker.topics.put([TopicConfig(topic, 0, 0)])
        assert await back(talk, offset, level) == ResponseCode.SYSTEM_ERROR
        assert (await talk.send(topic, e=0)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(("level", "fields"), [(-1, {}), (0, {"maxReconsumeTimes": 0})])
async def test_a_message_sent_back_too_often_becomes_a_dead_letter(
    level: int, fields: Fields
) -> None:
    async with talking(store=QUICK) as talk:
        offset = await sent(talk)
        assert await back(talk, offset, level, **fields) == 0
        (dead,) = await talk.pull_until("%DLQ%CG", 1)
        assert (dead.body, dead.reconsume_times) == (b"body", 1)
        assert dead.properties["DLQ_ORIGIN_TOPIC"] == "T1"
        assert "DELAY" not in dead.properties


@pytest.mark.parametrize("count", [-1, -50, INT32_MIN])
async def test_a_negative_count_of_a_producer_counts_as_none(count: int) -> None:
    async with talking(store=QUICK) as talk:
        offset = await sent(talk, j=count)
        assert await back(talk, offset, maxReconsumeTimes=1) == 0
        (first,) = await talk.pull_until("%RETRY%CG", 1)
        assert first.reconsume_times == 1
        (delayed,) = talk.broker.store.read(SCHEDULE_TOPIC, FIRST_RETRY_LEVEL - 1)
        assert delayed.body == b"body"
        assert await back(talk, first.physical_offset, maxReconsumeTimes=1) == 0
        assert len(await talk.pull_until("%DLQ%CG", 1)) == 1


async def test_the_highest_count_of_a_producer_is_kept() -> None:
    async with talking(store=QUICK) as talk:
        offset = await sent(talk, j=INT32_MAX)
        assert await back(talk, offset) == 0
        (dead,) = await talk.pull_until("%DLQ%CG", 1)
        assert dead.reconsume_times == INT32_MAX


async def test_unknown_messages_and_groups_cannot_be_sent_back(talk: Talk) -> None:
    offset = await sent(talk)
    assert await back(talk, offset + 1) == ResponseCode.SYSTEM_ERROR
    answer = await talk.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="nobody", delayLevel=0
    )
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_producer_does_not_choose_the_origin_of_a_retry(talk: Talk) -> None:
    """Consumers take a retried message for one of the topic that it names."""
    await talk.beat("CG")
    forged = "RETRY_TOPIC\x01T2\x02ORIGIN_MESSAGE_ID\x01other\x02"
    message_id = (await talk.send("T1", i=forged)).fields["msgId"]
    offset = decode_message_id(message_id).physical_offset
    assert [await back(talk, offset, level) for level in (0, -1)] == [0, 0]
    await asyncio.to_thread(talk.broker.store.wait_dispatched)
    (retried,) = talk.broker.store.read(SCHEDULE_TOPIC, FIRST_RETRY_LEVEL - 1)
    (dead,) = talk.broker.store.read("%DLQ%CG")
    for record in (retried, dead):
        assert record.properties["RETRY_TOPIC"] == "T1"
        assert record.properties["ORIGIN_MESSAGE_ID"] == message_id
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "T1"
