"""A filter selects the same messages, whichever way a consumer asks for them.

Requests for tags compare hashes, as in RocketMQ, and clients compare the tags themselves. SQL92
filters are evaluated by brokers alone.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import records
from tests.broker.pops import ask_pop
from tests.proxy.services import code
from tests.rules.ways import REFUSED, Ways, all_ways, pulled, rows, spark

from firetrail import Message
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import MessageQueue, RequestError, by_sql, by_tags
from firetrail.errors import ConfigError
from firetrail.format.values.javahash import java_hash
from firetrail.proxy.schema.messages import FilterExpression, FilterType
from firetrail.remoting.messages.bodies import BY_SQL, BY_TAG
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

WIDE = "\u3000A"
"""A tag that begins with a blank of Unicode, which Java's ``trim`` keeps."""
TAGS = ["A", "B", "Aa", "BB", None, WIDE, "A | B"]
"""The tags of the messages. Two have the same hash."""
ALL = [*range(len(TAGS))]
BY_TAGS = rows(
    (ALL, "*", "", " ", "\t", "A || *", "*||A"),
    ([0], "A", " A ", "A||", "|| A", "A || A", "\tA\n"),
    ([0, 1], "A || B", "A||B", "B||A||C", " A || || B "),
    ([6], "A | B"),
    ([2], "Aa"),
    ([3], "BB"),
    ([5], WIDE),
    ([0, 5], f"A || {WIDE} "),
    ([], "a", "C", "A,B"),
    (REFUSED, "||", " || || "),
)
BY_CONDITION = rows(
    ([3, 4, 5, 6], "n > 2"),
    ([0], "TAGS = 'A'", "TAGS IN ('A', 'B') AND n < 1"),
    ([4], "TAGS IS NULL"),
    ([1, 2, 3], "n BETWEEN 1 AND 2 OR TAGS = 'BB'"),
    (ALL, "TRUE"),
    ([], "1", "FALSE", "x = 1"),
    (REFUSED, "", " ", "n >", "n = 'x", "n > 2 AND"),
)
Select = Callable[[Ways, str, str], Awaitable[object]]


def numbers(content: bytes) -> list[int]:
    return sorted(int(record.body) for record in records(content))


def of_answer(answer: RemotingCommand) -> object:
    if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
        return REFUSED
    return numbers(answer.content) if answer.code == 0 else []


async def pull(ways: Ways, text: str, kind: str) -> object:
    return of_answer(await ways.talk.pull("T", subscription=text, expressionType=kind))


async def pop(ways: Ways, text: str, kind: str) -> object:
    group = f"G{abs(hash((text, kind)))}"
    return of_answer(
        await ask_pop(ways.talk, consumerGroup=group, topic="T", initMode=0, exp=text, expType=kind)
    )


async def grpc_pull(ways: Ways, text: str, kind: str) -> object:
    sort = FilterType.SQL if kind == BY_SQL else FilterType.TAG
    frames = await pulled(ways.service, "T", FilterExpression(type=sort, expression=text))
    if code(frames) == "ILLEGAL_FILTER_EXPRESSION":
        return REFUSED
    return [int(each.message.body) for each in frames if each.WhichOneof("content") == "message"]


async def client(ways: Ways, text: str, kind: str) -> object:
    try:
        wanted = (by_sql if kind == BY_SQL else by_tags)("T", text)
        queue = MessageQueue("T", "broker-a", 0)
        return [int(m.body) async for m in ways.consumer.read(queue, subscription=wanted)]
    except (ConfigError, RequestError):
        return REFUSED


async def embedded(ways: Ways, text: str, kind: str) -> object:
    store: Any = ways.talk.broker.store
    try:
        return [int(record.body) for record in store.read("T", tags=text)]
    except ConfigError:
        return REFUSED


async def files(ways: Ways, text: str, kind: str) -> object:
    return await spark_numbers(text, path=str(ways.folder))


async def wire(ways: Ways, text: str, kind: str) -> object:
    return await spark_numbers(text, namesrv=ways.namesrv)


async def spark_numbers(tags: str, **place: str) -> object:
    try:
        bodies = await asyncio.to_thread(spark, "body", subscribe="T", tags=tags, **place)
    except ConfigError:
        return REFUSED
    return sorted(map(int, bodies))


def with_equal_hashes(wanted: object) -> object:
    """Return the messages that requests for tags return: those with the same hashes."""
    if not isinstance(wanted, list):
        return wanted
    hashes = {java_hash(TAGS[number] or "") for number in wanted}
    return [number for number in ALL if java_hash(TAGS[number] or "") in hashes]


@pytest.fixture
async def ways(tmp_path: Path) -> AsyncIterator[Ways]:
    async with all_ways(tmp_path / "store", BrokerConfig(property_filter=True)) as ways:
        ways.create("T")
        for number, tag in enumerate(TAGS):
            await ways.producer.send(
                Message("T", b"%d" % number, tags=tag, properties={"n": str(number)})
            )
        await ways.dispatched()
        yield ways


async def test_tags(ways: Ways) -> None:
    hashed = {text: with_equal_hashes(wanted) for text, wanted in BY_TAGS.items()}
    by_hash: list[Select] = [pull, pop]
    exact: list[Select] = [grpc_pull, client, embedded, files, wire]
    for select in by_hash + exact:
        wanted = hashed if select in by_hash else BY_TAGS
        assert {text: await select(ways, text, BY_TAG) for text in BY_TAGS} == wanted, select


async def test_conditions(ways: Ways) -> None:
    for select in (pull, pop, grpc_pull, client):
        found = {text: await select(ways, text, BY_SQL) for text in BY_CONDITION}
        assert found == BY_CONDITION, select
