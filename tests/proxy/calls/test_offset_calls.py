"""PullMessage, UpdateOffset, GetOffset and QueryOffset."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.helpers import PATIENCE_S
from tests.proxy.fakes import FakeCall
from tests.proxy.services import Service, at, call_of, code, message

from firetrail.proxy.calls import offset_calls
from firetrail.proxy.calls.status_codes import status_of
from firetrail.proxy.schema.messages import Broker as BrokerResource
from firetrail.proxy.schema.messages import (
    Duration,
    FilterExpression,
    FilterType,
    GetOffsetRequest,
    GetOffsetResponse,
    MessageQueue,
    PullMessageRequest,
    PullMessageResponse,
    QueryOffsetPolicy,
    QueryOffsetRequest,
    QueryOffsetResponse,
    Resource,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)


def queue(topic: str = "Q", queue_id: int = 0, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=Resource(name=topic), id=queue_id, broker=BrokerResource(name=broker))


@pytest.fixture
async def pulling(service: Service) -> Service:
    """A service with the topic Q, whose only queue has three messages."""
    await service.create_topic("Q", queues=1)
    for body, tag in ((b"1", "Aa"), (b"2", "BB"), (b"3", "Aa")):
        await service.send(message(body, "Q", tag=tag))
    return service


async def pull(service: Service, call: FakeCall | None = None, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "group": Resource(name="CG"),
        "message_queue": queue(),
        "batch_size": 32,
    }
    request = PullMessageRequest(**(fields | changes))
    try:
        return await service.offsets.pull(call or FakeCall(), service.client, request)
    except Exception as error:
        return [PullMessageResponse(status=status_of(error))]


def bodies(frames: Any) -> list[bytes]:
    return [each.message.body for each in frames if each.WhichOneof("content") == "message"]


async def test_messages_are_pulled(pulling: Service) -> None:
    frames = await pull(pulling)
    assert [frame.WhichOneof("content") for frame in frames] == [
        *("status", "message", "message", "message"),
        "next_offset",
    ]
    assert code(frames) == "OK"
    assert bodies(frames) == [b"1", b"2", b"3"]
    assert frames[-1].next_offset == 3
    assert not frames[1].message.system_properties.HasField("receipt_handle")
    assert bodies(await pull(pulling, offset=1, batch_size=1)) == [b"2"]
    tags = FilterExpression(type=FilterType.TAG, expression="Aa")  # BB has the same hash
    assert bodies(await pull(pulling, filter_expression=tags)) == [b"1", b"3"]
    frames = await pull(pulling, filter_expression=tags, offset=1, batch_size=1)
    assert (code(frames), bodies(frames), frames[-1].next_offset) == ("MESSAGE_NOT_FOUND", [], 2)


async def test_the_number_of_pulled_messages_is_limited(
    pulling: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_calls, "PULL_MAX", 2)
    assert len(bodies(await pull(pulling, batch_size=1000))) == 2


@pytest.mark.parametrize("batch_size", [0, -1])
async def test_a_pull_of_no_message_is_refused(pulling: Service, batch_size: int) -> None:
    """As a receive is."""
    assert code(await pull(pulling, batch_size=batch_size)) == "BAD_REQUEST"


async def test_the_codes_of_a_pull(pulling: Service) -> None:
    wrong = FilterExpression(type=FilterType.TAG, expression="||")
    rows: list[tuple[dict[str, Any], str]] = [
        ({"offset": 3}, "MESSAGE_NOT_FOUND"),
        ({"offset": 9}, "ILLEGAL_OFFSET"),
        ({"group": Resource(name="a.b")}, "ILLEGAL_CONSUMER_GROUP"),
        ({"message_queue": queue("a.b")}, "ILLEGAL_TOPIC"),
        ({"message_queue": queue("unknown")}, "TOPIC_NOT_FOUND"),
        ({"message_queue": queue(queue_id=-1)}, "BAD_REQUEST"),
        ({"filter_expression": wrong}, "ILLEGAL_FILTER_EXPRESSION"),
    ]
    for changes, expected in rows:
        frames = await pull(pulling, **changes)
        assert code(frames) == expected, changes
    assert (await pull(pulling, offset=9))[-1].next_offset == 3


async def test_a_pull_waits_for_a_message(pulling: Service) -> None:
    wait = Duration(seconds=20)
    waiting = asyncio.create_task(pull(pulling, offset=3, long_polling_timeout=wait))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await pulling.send(message(b"4", "Q"))
    assert bodies(await asyncio.wait_for(waiting, PATIENCE_S)) == [b"4"]
    frames = await pull(pulling, call_of(0.1), offset=4, long_polling_timeout=wait)
    assert code(frames) == "MESSAGE_NOT_FOUND"  # at once: the deadline is too near


async def test_offsets_of_groups(pulling: Service) -> None:
    async def get(**changes: Any) -> GetOffsetResponse:
        fields: dict[str, Any] = {"group": Resource(name="CG"), "message_queue": queue()}
        request = GetOffsetRequest(**(fields | changes))
        found = await pulling.answer(pulling.offsets.get, GetOffsetResponse, request)
        assert isinstance(found, GetOffsetResponse)
        return found

    async def update(offset: int, **changes: Any) -> str:
        fields: dict[str, Any] = {"group": Resource(name="CG"), "message_queue": queue()}
        request = UpdateOffsetRequest(**(fields | changes), offset=offset)
        return code(await pulling.answer(pulling.offsets.update, UpdateOffsetResponse, request))

    assert await update(2) == "OK"
    assert (await get()).offset == 2
    assert await update(-1) == "ILLEGAL_OFFSET"
    assert await update(1, message_queue=queue("unknown")) == "TOPIC_NOT_FOUND"
    assert await update(1, group=Resource(name="")) == "ILLEGAL_CONSUMER_GROUP"
    assert code(await get(message_queue=queue("unknown"))) == "TOPIC_NOT_FOUND"
    # A group without an offset would begin at the first message of this young topic.
    assert (await get(group=Resource(name="new"))).offset == 0


async def test_offsets_of_queues(pulling: Service) -> None:
    handle: Callable[..., Any] = pulling.offsets.query

    async def query(policy: int, **changes: Any) -> QueryOffsetResponse:
        fields: dict[str, Any] = {"message_queue": queue(), "query_offset_policy": policy}
        request = QueryOffsetRequest(**(fields | changes))
        found = await pulling.answer(handle, QueryOffsetResponse, request)
        assert isinstance(found, QueryOffsetResponse)
        return found

    assert (await query(QueryOffsetPolicy.BEGINNING)).offset == 0
    assert (await query(QueryOffsetPolicy.END)).offset == 3
    assert (await query(QueryOffsetPolicy.TIMESTAMP, timestamp=at(0))).offset == 0
    later = at(pulling.now_ms() + 60_000)
    assert (await query(QueryOffsetPolicy.TIMESTAMP, timestamp=later)).offset == 3
    assert code(await query(QueryOffsetPolicy.TIMESTAMP)) == "BAD_REQUEST"
    wrong = await query(QueryOffsetPolicy.END, message_queue=queue("unknown"))
    assert code(wrong) == "TOPIC_NOT_FOUND"
