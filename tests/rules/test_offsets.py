"""The first, next and by-time offsets of a queue are the same, whichever way they are asked for."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.pops import StoppedClock
from tests.proxy.services import at
from tests.rules.ways import Ways, all_ways, spark

from firetrail import Message
from firetrail.client import Admin, MessageQueue
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import QueryOffsetPolicy, QueryOffsetRequest
from firetrail.remoting.messages.admin.admin_bodies import TopicStats
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode
from firetrail.store.reads.reader import Boundary
from firetrail.system import SYSTEM, System

QUEUE = MessageQueue("T", "broker-a", 0)
STORED = [0, 10, 10, 20, 40]
"""The times at which the messages were stored, in ms after the first."""
END = len(STORED)
FIRST_SINCE = {-86_400_000: 0, -1: 0, 0: 0, 1: 1, 10: 1, 11: 3, 20: 3, 40: 4}
"""The offset of the first message that was stored at a time or later."""
AFTER_ALL = (41, 86_400_000)
"""Times after the last message: the offset is the end of the queue."""
LAST_UNTIL = {0: 0, 5: 0, 10: 2, 15: 2, 40: 4, 86_400_000: 4}
"""The offset of the last message that was stored at a time or earlier."""


class Queue:
    """A queue and the time of its first message."""

    def __init__(self, ways: Ways, began_ms: int) -> None:
        self.ways = ways
        self.began_ms = began_ms

    async def remoting(self, code: RequestCode, **fields: Any) -> int:
        answer = await self.ways.talk.ask(code, topic="T", queueId=0, **fields)
        return int(answer.fields["offset"])

    async def grpc(self, policy: QueryOffsetPolicy, after_ms: int = 0) -> int:
        queue = messages.MessageQueue(
            topic=messages.Resource(name="T"), id=0, broker=messages.Broker(name="broker-a")
        )
        time = at(self.began_ms + after_ms)
        request = QueryOffsetRequest(
            message_queue=queue, query_offset_policy=policy, timestamp=time
        )
        service = self.ways.service
        answer = await service.answer(
            lambda call, client, asked: service.offsets.query(call, client, asked),
            messages.QueryOffsetResponse,
            request,
        )
        return int(answer.offset)

    async def rows(self, place: dict[str, str], **given: str) -> list[int]:
        found = await asyncio.to_thread(spark, "queue_offset", subscribe="T", **place, **given)
        return sorted(found)

    async def first_since(self, after_ms: int) -> dict[str, int]:
        """Return the offset at a time in each way."""
        ways, time_ms = self.ways, self.began_ms + after_ms
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        async with Admin(ways.namesrv) as admin:
            reset = await admin.reset_offsets("CG", "T", time_ms)
        return {
            "remoting": await self.remoting(code, timestamp=time_ms),
            "remoting, lower": await self.remoting(code, timestamp=time_ms, boundaryType="LOWER"),
            "gRPC": await self.grpc(QueryOffsetPolicy.TIMESTAMP, after_ms),
            "client": await ways.consumer.offsets.at_time(QUEUE, time_ms),
            "store": ways.talk.broker.store.offset_at("T", 0, time_ms),
            "reset": reset[QUEUE],
        }


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Queue]:
    clock = StoppedClock()
    system = System(SYSTEM.files, clock)
    async with all_ways(tmp_path / "store", system=system) as ways:
        ways.create("T")
        ways.talk.broker.groups.put([SubscriptionGroupConfig("CG")])
        began_ms = clock.now_ms()
        for after_ms in STORED:
            clock.advance(began_ms + after_ms - clock.now_ms())
            await ways.producer.send(Message("T", b"x"))
        await ways.dispatched()
        await ways.consumer.queues("T")
        yield Queue(ways, began_ms)


async def test_the_ends_of_a_queue(queue: Queue) -> None:
    ways, store = queue.ways, queue.ways.talk.broker.store
    stats = await ways.talk.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
    found = {
        "remoting": [
            await queue.remoting(RequestCode.GET_MIN_OFFSET),
            await queue.remoting(RequestCode.GET_MAX_OFFSET),
        ],
        "gRPC": [
            await queue.grpc(QueryOffsetPolicy.BEGINNING),
            await queue.grpc(QueryOffsetPolicy.END),
        ],
        "client": [
            await ways.consumer.offsets.lowest(QUEUE),
            await ways.consumer.offsets.end(QUEUE),
        ],
        "store": [store.min_offset("T", 0), store.max_offset("T", 0)],
    }
    pulled = (await ways.talk.pull("T")).fields
    found["pull"] = [int(pulled["minOffset"]), int(pulled["maxOffset"])]
    (offsets,) = TopicStats.decode(stats.content).offset_table.values()
    found["statistics"] = [offsets.min_offset, offsets.max_offset]
    assert found == {way: [0, END] for way in found}
    for place in ways.places:
        assert await queue.rows(place) == [*range(END)]


async def test_the_first_message_since_a_time(queue: Queue) -> None:
    for after_ms, offset in (FIRST_SINCE | dict.fromkeys(AFTER_ALL, END)).items():
        found = await queue.first_since(after_ms)
        assert found == dict.fromkeys(found, offset), after_ms
        since = str(queue.began_ms + after_ms)
        for place in queue.ways.places:
            rows = await queue.rows(place, startingTimestamp=since)
            assert rows == [*range(offset, END)], (after_ms, place)
            before = await queue.rows(place, endingTimestamp=since)
            assert before == [*range(offset)], (after_ms, place)


async def test_the_last_message_until_a_time(queue: Queue) -> None:
    code, store = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue.ways.talk.broker.store
    for after_ms, offset in LAST_UNTIL.items():
        time_ms = queue.began_ms + after_ms
        asked = await queue.remoting(code, timestamp=time_ms, boundaryType="UPPER")
        assert asked == store.offset_at("T", 0, time_ms, Boundary.UPPER) == offset, after_ms
