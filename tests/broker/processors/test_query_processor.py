"""Queries by key, position and time, and for the ends of queues."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Field, Fields, Talk, records, talking
from tests.helpers import NEVER_MS, PATIENCE_S

from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.store.dispatch import catch_ups


async def three(talk: Talk) -> list[int]:
    """Send three messages; return their positions in the log."""
    places = []
    for n in range(3):
        answer = await talk.send("T1", b"%d" % n, i=f"KEYS\x01k{n % 2}\x02UNIQ_KEY\x01U{n}\x02")
        places.append(decode_message_id(answer.fields["msgId"]).physical_offset)
    await asyncio.to_thread(talk.broker.store.wait_dispatched)
    return places


async def by_key(talk: Talk, key: str, **changes: Field) -> tuple[int, list[bytes]]:
    fields: Fields = {"topic": "T1", "key": key, "maxNum": 32}
    fields |= {"beginTimestamp": 0, "endTimestamp": 2**62}
    answer = await talk.ask(RequestCode.QUERY_MESSAGE, fields | changes)
    return answer.code, [record.body for record in records(answer.content)]


async def test_messages_are_found_by_key(talk: Talk) -> None:
    await three(talk)
    assert await by_key(talk, "k0") == (0, [b"0", b"2"])
    assert await by_key(talk, "U1", _UNIQUE_KEY_QUERY="true") == (0, [b"1"])
    assert await by_key(talk, "k9") == (ResponseCode.QUERY_NOT_FOUND, [])
    assert await by_key(talk, "k0", endTimestamp=1) == (ResponseCode.QUERY_NOT_FOUND, [])
    assert await by_key(talk, "k0", topic="T9") == (ResponseCode.TOPIC_NOT_EXIST, [])


async def test_messages_are_found_by_position(talk: Talk) -> None:
    places = await three(talk)
    answer = await talk.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=places[1])
    assert [record.body for record in records(answer.content)] == [b"1"]
    for wrong in (places[1] + 1, 1 << 40, -1):
        answer = await talk.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=wrong)
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_ends_and_store_times_of_a_queue_are_returned(talk: Talk) -> None:
    await three(talk)

    async def ask(code: int, **fields: Field) -> dict[str, str]:
        where: Fields = {"topic": "T1", "queueId": 0}
        return dict((await talk.ask(code, where | fields)).fields)

    assert await ask(RequestCode.GET_MAX_OFFSET) == {"offset": "3"}
    assert await ask(RequestCode.GET_MIN_OFFSET) == {"offset": "0"}
    assert await ask(RequestCode.GET_MAX_OFFSET, queueId=1) == {"offset": "0"}
    first = talk.broker.broker_store.queues.store_time("T1", 0, 0)
    assert await ask(RequestCode.GET_EARLIEST_MSG_STORETIME) == {"timestamp": str(first)}
    nothing = await ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queueId=1)
    assert nothing == {"timestamp": "-1"}


@pytest.mark.parametrize("boundary", [None, "LOWER", "lower", "UPPER", "upper"])
async def test_offsets_are_found_by_time(talk: Talk, boundary: str | None) -> None:
    """A Java broker 5.3.3 answers so. Without a boundary, 4.9 takes the nearest message."""
    times = []
    for number in range(3):
        await talk.send("T1")
        await talk.pull_until("T1", number + 1)
        time = talk.broker.broker_store.queues.store_time("T1", 0, number)
        assert time is not None
        times.append(time)
        await asyncio.sleep(0.01)  # the next message is at least some ms later

    async def offset(time: int, **changes: Field) -> str:
        fields: Fields = {"topic": "T1", "queueId": 0, "timestamp": time, "boundaryType": boundary}
        answer = await talk.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields | changes)
        return answer.fields["offset"]

    lower = boundary is None or boundary.lower() == "lower"
    assert [await offset(time) for time in (0, times[0] - 1, *times)] == [*"00012"]
    between, beyond = times[0] + 1, times[2] + 1
    assert await offset(between) == ("1" if lower else "0")
    assert await offset(beyond) == ("3" if lower else "2")
    assert await offset(2**62) == ("3" if lower else "2")
    assert await offset(2**62, queueId=1) == "0"
    assert await offset(2**62, topic="T9") == "0"


END: Fields = {"topic": "T1", "queueId": 0}


@pytest.mark.parametrize("code", [RequestCode.GET_MAX_OFFSET, RequestCode.GET_TOPIC_STATS_INFO])
async def test_a_request_waits_for_messages_that_are_not_dispatched_yet(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    monkeypatch.setattr(catch_ups, "CATCH_UP_S", PATIENCE_S)
    with talk.broker.store._dispatcher.paused():
        assert (await talk.send("T1", b"acknowledged")).code == 0
        asked = asyncio.create_task(talk.ask(code, END))
        await asyncio.sleep(0)
        first = await talk.ask(RequestCode.GET_MIN_OFFSET, END)  # a later request is not held up
        assert first.fields["offset"] == "0" and not asked.done()
    answer = await asked
    assert answer.fields.get("offset") == "1" or b'"maxOffset":1' in answer.content


async def test_a_request_does_not_wait_for_ever_for_dispatch(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_ups, "CATCH_UP_S", 0.01)
    with talk.broker.store._dispatcher.paused():
        assert (await talk.send("T1", b"acknowledged")).code == 0
        assert (await talk.ask(RequestCode.GET_MAX_OFFSET, END)).fields["offset"] == "0"


async def test_the_end_of_a_queue_includes_messages_in_write_buffers(tmp_path: Path) -> None:
    never = SMALL.replace(
        write_buffer_pool=True, commit_interval_ms=NEVER_MS, flush_interval_ms=NEVER_MS
    )
    async with talking(tmp_path, store=never) as talk:
        assert (await talk.send("T1", b"acknowledged")).code == 0
        assert (await talk.ask(RequestCode.GET_MAX_OFFSET, END)).fields["offset"] == "1"
