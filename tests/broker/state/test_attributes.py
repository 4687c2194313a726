"""Attributes of topics."""

from pathlib import Path

import pytest
from tests.broker.admin.test_topic_group_processor import TOPIC
from tests.broker.brokers import Field, Talk, talking

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.state.attributes import altered, parse, priority_factor
from firetrail.errors import RequestError
from firetrail.remoting.messages.bodies import TopicConfig, TopicConfigList
from firetrail.remoting.wire.codes import RequestCode, ResponseCode


async def create(talk: Talk, attributes: str, **changes: Field) -> tuple[int, str]:
    fields = TOPIC | {"attributes": attributes} | changes
    answer = await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    return answer.code, answer.remark or ""


async def shown_attributes(talk: Talk) -> dict[str, str] | None:
    answer = await talk.ask(RequestCode.GET_TOPIC_CONFIG, topic="T1")
    return TopicConfig.decode(answer.content).attributes


async def test_attributes_are_saved_and_returned(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        assert await create(talk, "+message.type=FIFO,+reserve.time=3600") == (0, "")
        assert await shown_attributes(talk) == {"message.type": "FIFO", "reserve.time": "3600"}
    async with talking(tmp_path) as talk:
        assert await shown_attributes(talk) == {"message.type": "FIFO", "reserve.time": "3600"}
        assert await create(talk, "+message.type=DELAY,-reserve.time") == (0, "")
        assert await shown_attributes(talk) == {"message.type": "DELAY"}
        assert await create(talk, "") == (0, "")
        assert await shown_attributes(talk) == {"message.type": "DELAY"}
        await create(talk, "-message.type")
        assert await shown_attributes(talk) is None


async def test_attributes_of_several_topics_are_set_in_one_request(talk: Talk) -> None:
    body = TopicConfigList([TopicConfig("T1", attributes={"+message.type": "NORMAL"})])
    await talk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body.encode())
    assert await shown_attributes(talk) == {"message.type": "NORMAL"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("+colour=red", "unsupported key: colour; known keys are queue.type"),
        ("-message.type", "nonexistent key: message.type"),
        ("message.type=FIFO", "neither +name=value nor -name"),
        ("+message.type", "neither +name=value nor -name"),
        ("-message.type=FIFO", "neither +name=value nor -name"),
        ("+message.type=ODD", "must be one of DELAY, FIFO"),
        ("+message.type=FIFO,+message.type=DELAY", "given twice"),
        ("+queue.type=BatchCQ", "not supported by Firetrail"),
        ("+message.type=LITE", "not supported by Firetrail"),
        ("+queue.type=RocksDBCQ", "not supported by Firetrail"),
        ("+cleanup.policy=COMPACTION", "not supported by Firetrail"),
        ("+reserve.time=-2", "must be a number, at least -1"),
        ("+reserve.time=99999999999999999999", "must be a number, at least -1"),
    ],
)
async def test_invalid_attributes_are_refused(talk: Talk, text: str, said: str) -> None:
    code, remark = await create(talk, text)
    assert code == ResponseCode.SYSTEM_ERROR and said in remark
    assert talk.broker.topics.get("T1") is None


async def test_mixed_topics_can_be_forbidden() -> None:
    async with talking(config=BrokerConfig(mixed_topics=False)) as talk:
        code, remark = await create(talk, "+message.type=MIXED")
        assert code == ResponseCode.INVALID_PARAMETER
        assert "MIXED message type is not supported" in remark
        assert "enableMixedMessageType=false" in remark
        assert await create(talk, "+message.type=FIFO") == (0, "")


async def test_mixed_topics_are_allowed_by_default(talk: Talk) -> None:
    assert await create(talk, "+message.type=MIXED") == (0, "")


def test_the_priority_factor_is_100_percent_by_default() -> None:
    assert priority_factor(None) == priority_factor({"priority.factor": "x"}) == 100
    assert priority_factor({"priority.factor": "30"}) == 30


def test_some_attributes_cannot_be_changed() -> None:
    current = altered(None, parse("+queue.type=SimpleCQ"), is_new=True)
    assert altered(current, parse("+queue.type=SimpleCQ"), is_new=False) == current
    for change in ("-queue.type", "+cleanup.policy=DELETE"):
        with pytest.raises(RequestError, match="unchangeable attribute"):
            altered(current, parse(change), is_new=False)
    with pytest.raises(RequestError, match="wrong format key"):
        altered(current, {"message.type": "FIFO"}, is_new=False)
