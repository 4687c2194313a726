"""A message is delivered as often, whichever way a consumer gets it, before it is a dead letter.

A consumer sends a message back to the broker, or, if that fails, itself to the retry topic. The
gRPC service moves a message that it would have to deliver too often.
"""

import asyncio
from pathlib import Path

from tests.rules.ways import Ways, all_ways

from firetrail.format.values.ids import decode_message_id
from firetrail.format.values.integers import INT32_MAX
from firetrail.proxy.calls.client_settings import backoff_of
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode, Version

LIMITS = (-1, 0, 1, 3, 16)
"""The most retries, in the settings of a group or in a request."""
COUNTS = (0, 1, 2, 3, 15, 16, 17, INT32_MAX - 1)
"""How often a message was retried before it is not consumed once more."""
OLD = Version.V3_4_9 - 1
"""A version whose consumers do not choose the limit."""


def is_dead(retries: int, limit: int) -> bool:
    return retries >= limit


async def newest(ways: Ways, message_id: str) -> str:
    """Return where the message after another one went: to be retried, or to the dead letters."""
    await ways.dispatched()
    broker, start = ways.talk.broker.store, decode_message_id(message_id).physical_offset
    record = broker.at(start)
    assert record is not None
    after = broker.at(record.physical_offset + record.size)
    assert after is not None
    return after.topic


async def sent_back(
    ways: Ways, retries: int, asked: int | None = None, version: int = Version.V4_9_8
) -> bool:
    message_id = (await ways.talk.send("T", j=retries)).fields["msgId"]
    answer = await ways.talk.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        version=version,
        offset=decode_message_id(message_id).physical_offset,
        group="CG",
        delayLevel=0,
        maxReconsumeTimes=asked,
    )
    assert answer.code == 0
    return await newest(ways, message_id) == "%DLQ%CG"


async def sent_by_consumer(
    ways: Ways, retries: int, asked: int | None = None, version: int = Version.V4_9_8
) -> bool:
    before = (await ways.talk.send("T")).fields["msgId"]
    answer = await ways.talk.send("%RETRY%CG", j=retries + 1, l=asked, version=version)
    assert answer.code == 0
    return await newest(ways, before) == "%DLQ%CG"


async def delivered(ways: Ways, retries: int) -> bool:
    """Return whether a gRPC client gets a message after a number of retries."""
    topic = f"G{retries}"
    ways.create(topic)
    await ways.talk.send(topic, j=retries)
    await ways.dispatched()
    return len(await ways.service.receive(topic=topic)) == 1


def limit(ways: Ways, most: int) -> None:
    ways.talk.broker.groups.put([SubscriptionGroupConfig("CG", retry_max_times=most)])


async def test_the_limit_of_a_group(tmp_path: Path) -> None:
    async with all_ways(tmp_path) as ways:
        for most in LIMITS:
            limit(ways, most)
            for retries in COUNTS:
                wanted = is_dead(retries, most)
                assert await sent_back(ways, retries) is wanted, (retries, most)
                assert await sent_by_consumer(ways, retries) is wanted, (retries, most)


async def test_the_limit_of_a_request(tmp_path: Path) -> None:
    async with all_ways(tmp_path) as ways:
        limit(ways, 3)
        for most in LIMITS:
            for retries in (0, 2, 3, 16):
                for version, wanted in ((Version.V4_9_8, most), (OLD, 3)):
                    expected = is_dead(retries, wanted)
                    for way in (sent_back, sent_by_consumer):
                        found = await way(ways, retries, most, version)
                        assert found is expected, (way, most, retries, version)


async def test_grpc_clients_get_as_many_deliveries(tmp_path: Path) -> None:
    """A message is delivered once, and after each of its retries; only then it is dead."""
    async with all_ways(tmp_path) as ways:
        limit(ways, 3)
        assert [await delivered(ways, retries) for retries in (0, 2, 3)] == [True] * 3
        assert not await delivered(ways, 4)
        await asyncio.to_thread(ways.talk.broker.store.wait_dispatched)
        assert ways.talk.broker.store.max_offset("%DLQ%CG", 0) == 1
        for most in LIMITS:
            group = SubscriptionGroupConfig("CG", retry_max_times=most)
            deliveries = sum(not is_dead(retries - 1, most) for retries in range(1, 50)) + 1
            assert backoff_of(group).max_attempts == group.max_attempts == max(deliveries, 1)
