"""A slave that serves consumers answers them as its master does."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.broker.brokers import SMALL, Talk
from tests.rules.ways import all_ways

from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.messages.bodies import BY_SQL, TopicConfig
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import BrokerRole

COUNT = 5
QUEUE = {"topic": "T", "queueId": 0}
READS: list[tuple[RequestCode, Mapping[str, Any]]] = [
    (RequestCode.GET_MIN_OFFSET, QUEUE),
    (RequestCode.GET_MAX_OFFSET, QUEUE),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE),
    *((RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": t}) for t in (0, 1 << 60)),
    (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "CG", **QUEUE}),
    (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "G2", **QUEUE}),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "NONE"}),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 1}),
    *(
        (
            RequestCode.QUERY_MESSAGE,
            {"topic": "T", "key": key, "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60},
        )
        for key in ("k1", "k9")
    ),
    *(
        (RequestCode.PEEK_MESSAGE, {"consumerGroup": "CG", **QUEUE, "maxMsgNums": count})
        for count in (1, 32)
    ),
]
PULLS: list[tuple[int, Mapping[str, Any]]] = [
    *((offset, {}) for offset in (0, 2, COUNT - 1, COUNT, COUNT + 4, -1)),
    *((0, {"subscription": text}) for text in ("A", "B", "A || B", "||")),
    *((0, {"subscription": text, "expressionType": BY_SQL}) for text in ("n > 2", "n >")),
    *((0, {"queueId": queue_id}) for queue_id in (1, 4, -1)),
    (0, {"consumerGroup": "a b"}),
    (0, {"maxMsgNums": 2}),
]


CORRECTING = SMALL.replace(offset_check_in_slave=True)
"""Otherwise only masters correct offsets: a slave may not have the messages yet."""


def outcome(answer: RemotingCommand) -> tuple[object, ...]:
    """Return an answer without the master that it recommends, and times of the answer."""
    fields = {name: answer.fields[name] for name in answer.fields if "suggest" not in name}
    return answer.code, answer.remark, fields, bytes(answer.content)


async def answers(talk: Talk) -> list[tuple[object, ...]]:
    found = [outcome(await talk.ask(code, fields)) for code, fields in READS]
    for offset, changes in PULLS:
        found.append(outcome(await talk.pull("T", offset, **changes)))
    return found


async def test_master_and_slave_answer_alike(tmp_path: Path) -> None:
    config = BrokerConfig(slave_read=True, property_filter=True)
    async with all_ways(tmp_path, config, CORRECTING) as ways:
        talk = ways.talk
        talk.broker.topics.put([TopicConfig("T", 2, 2)])
        for number in range(COUNT):
            properties = f"KEYS\x01k{number}\x02TAGS\x01{'AB'[number % 2]}\x02n\x01{number}\x02"
            await talk.send("T", b"%d" % number, i=properties)
        await talk.beat("CG", subscriptions={"T": "*"})
        await talk.commit(2, topic="T")
        await ways.dispatched()
        by_master = await answers(talk)
        await talk.broker.become(BrokerRole.SLAVE, 1)
        await asyncio.to_thread(talk.broker.store.wait_dispatched)
        by_slave = await answers(talk)
        asked = [*READS, *PULLS]
        for request, master, slave in zip(asked, by_master, by_slave, strict=True):
            assert slave == master, request
