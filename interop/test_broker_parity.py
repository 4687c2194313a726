"""A store goes from a Java broker to Firetrail and back: the same requests have the same answers.

This is with ``enableLmq=true``. Java then keeps the offsets of all groups in
``lmqConsumerOffset.json``, and does not look at ``consumerOffset.json``, whatever is in there.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from interop.servers import BROKER_CONF, Servers, our_name_server
from interop.test_broker_features import LIMIT_S, bodies, new_topic, talking_to
from tests.broker.brokers import Talk, records

from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode

NAME = "broker-a"
LMQ = f"{BROKER_CONF}enableLmq=true\nenableMultiDispatch=true\n"
LIGHT = "INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
PLACES = (("Plain", "G"), ("%LMQ%a", "G"), ("%LMQ%a", "%LMQ%g"))
STALE = '{"offsetTable":{"Plain@G":{0:1}}}'


async def commit(talk: Talk, offset: int) -> None:
    for topic, group in PLACES:
        answer = await talk.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=group,
            topic=topic,
            queueId=0,
            commitOffset=offset,
        )
        assert answer.code == 0, (topic, group, answer.remark)


async def committed(talk: Talk) -> list[int]:
    found = []
    for topic, group in PLACES:
        code = RequestCode.QUERY_CONSUMER_OFFSET
        answer = await talk.ask(code, consumerGroup=group, topic=topic, queueId=0)
        assert answer.code == 0, (topic, group, answer.remark)
        found.append(int(answer.fields["offset"]))
    return found


async def searched(talk: Talk) -> list[int]:
    """Offsets by time: before, at, between and beyond messages, with every kind of boundary."""
    stored = [record.store_time for record in records((await talk.pull("Plain")).content)]
    times = [0, stored[0] - 1, *stored, *(time + 1 for time in stored), 2**62]
    found = []
    for topic, queue_id in (("Plain", 0), ("Plain", 9), ("unknown", 0)):
        for boundary in (None, "LOWER", "upper"):
            for time in times:
                answer = await talk.ask(
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    topic=topic,
                    queueId=queue_id,
                    timestamp=time,
                    boundaryType=boundary,
                )
                found.append(int(answer.fields["offset"]))
    return found


async def refused(talk: Talk) -> list[int]:
    """Return the codes of answers to requests about topics and groups that do not exist."""
    reset = {"topic": "Plain", "group": "G", "timestamp": 0, "isForce": True}
    asked: list[tuple[RequestCode, dict[str, Any]]] = [
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "unknown"}),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": " "}),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "unknown", "cleanOffset": True}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"topic": "unknown"}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"group": "unknown"}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"queueId": 0, "offset": 99}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "unknown"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "unknown", "topic": "unknown"}),
    ]
    return [(await talk.ask(code, **fields)).code for code, fields in asked]


class Steps:
    """The requests to each owner of the store, and the answers of Java."""

    async def left_by_java(self, talk: Talk) -> None:
        await new_topic(talk, "Plain")
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await talk.ask(code, body=SubscriptionGroupConfig("G").encode())).code == 0
        for number in range(5):
            assert (await talk.send("Plain", b"%d" % number, i=LIGHT)).code == 0
            await asyncio.sleep(0.01)
        await bodies(talk, "Plain", 5)
        await commit(talk, 3)
        self.searched = await searched(talk)
        self.refused = await refused(talk)

    async def in_between(self, talk: Talk) -> None:
        assert await committed(talk) == [3, 3, 3]
        assert await searched(talk) == self.searched
        assert await refused(talk) == self.refused
        await commit(talk, 4)

    async def back_in_java(self, talk: Talk) -> None:
        assert await committed(talk) == [4, 4, 4]
        assert await searched(talk) == self.searched


@pytest.mark.time_limit(LIMIT_S)
async def test_offsets_and_answers_are_the_same_after_each_takeover(tmp_path: Path) -> None:
    java, steps = Servers("v5", tmp_path, settings=LMQ), Steps()
    config = tmp_path / NAME / "config"
    config.mkdir(parents=True)
    (config / "consumerOffset.json").write_text(STALE)  # of the time before enableLmq
    with our_name_server() as namesrv:
        with java.broker(namesrv, NAME) as address:
            async with talking_to(address) as talk:
                await steps.left_by_java(talk)
        with java.our_broker(namesrv, NAME) as address:
            async with talking_to(address) as talk:
                await steps.in_between(talk)
        with java.broker(namesrv, NAME, signal.SIGKILL) as address:
            async with talking_to(address) as talk:
                await steps.back_in_java(talk)
