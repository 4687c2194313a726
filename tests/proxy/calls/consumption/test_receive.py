"""ReceiveMessage: every rule with its code, and which messages are delivered."""

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest
from tests.client.clusters import until
from tests.helpers import PATIENCE_S
from tests.proxy.fakes import FakeCall
from tests.proxy.services import GROUP, Service, code, message, receive_request, serving

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.pop.pop_checkpoints import PopCheckpoint, PopCheckpoints
from firetrail.proxy.calls.consumption import receive
from firetrail.proxy.schema.messages import Duration, Message
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.remoting.messages.pop.receipts import ORDERED, Receipt
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand


def attempts(messages: list[Message]) -> list[tuple[bytes, int]]:
    return [(each.body, each.system_properties.delivery_attempt) for each in messages]


def handle_of(found: Message) -> str:
    return found.system_properties.receipt_handle


ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("3: an illegal topic", {"topic": "a.b"}, "ILLEGAL_TOPIC"),
    ("3: a topic of the system", {"topic": "TBW102"}, "ILLEGAL_TOPIC"),
    ("3: an illegal group", {"group": "a.b"}, "ILLEGAL_CONSUMER_GROUP"),
    ("3: a group of the system", {"group": "CID_RMQ_SYS_X"}, "ILLEGAL_CONSUMER_GROUP"),
    ("4: no invisible time", {"invisible_duration": None}, "ILLEGAL_INVISIBLE_TIME"),
    (
        "4: a short time",
        {"invisible_duration": Duration(seconds=9, nanos=999_000_000)},
        "ILLEGAL_INVISIBLE_TIME",
    ),
    (
        "4: a long time",
        {"invisible_duration": Duration(seconds=43_200, nanos=1_000_000)},
        "ILLEGAL_INVISIBLE_TIME",
    ),
    ("5: no tag", {"tags": "||"}, "ILLEGAL_FILTER_EXPRESSION"),
    ("5: blank tags", {"tags": " || "}, "ILLEGAL_FILTER_EXPRESSION"),
    ("5: an empty condition", {"sql": " "}, "ILLEGAL_FILTER_EXPRESSION"),
    ("5: a wrong condition", {"sql": "a >"}, "ILLEGAL_FILTER_EXPRESSION"),
    ("5: a long filter", {"tags": "x" * 20_000}, "ILLEGAL_FILTER_EXPRESSION"),
    ("6: an unknown topic", {"topic": "unknown"}, "TOPIC_NOT_FOUND"),
    ("6: a topic that is not readable", {"topic": "W"}, "FORBIDDEN"),
    ("6: no message", {"batch_size": 0}, "BAD_REQUEST"),
    ("6: fewer than no message", {"batch_size": -1}, "BAD_REQUEST"),
    ("topic before group", {"topic": "a.b", "group": "a.b"}, "ILLEGAL_TOPIC"),
    (
        "group before invisible time",
        {"group": "a.b", "invisible_duration": None},
        "ILLEGAL_CONSUMER_GROUP",
    ),
    (
        "invisible time before filter",
        {"invisible_duration": None, "tags": "||"},
        "ILLEGAL_INVISIBLE_TIME",
    ),
    ("filter before topic", {"tags": "||", "topic": "unknown"}, "ILLEGAL_FILTER_EXPRESSION"),
]


async def test_every_rule_has_its_code() -> None:
    async with serving(BrokerConfig(property_filter=True)) as service:
        await service.create_topic("T")
        await service.create_topic("W", perm=2)
        for waits in (False, True):
            service.brokers.waits = waits
            for name, changes, expected in ROWS:
                frames = await service.frames(**changes)
                assert code(frames) == expected, f"{name}: {frames[0].status.message}"
                assert [frame.WhichOneof("content") for frame in frames] == [
                    "status",
                    "delivery_timestamp",
                ]


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        (ResponseCode.POLLING_TIMEOUT, "MESSAGE_NOT_FOUND"),
        (ResponseCode.PULL_NOT_FOUND, "MESSAGE_NOT_FOUND"),
        (ResponseCode.POLLING_FULL, "TOO_MANY_REQUESTS"),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "CONSUMER_GROUP_NOT_FOUND"),
        (ResponseCode.SYSTEM_BUSY, "TOO_MANY_REQUESTS"),
        (ResponseCode.SYSTEM_ERROR, "INTERNAL_SERVER_ERROR"),
    ],
)
async def test_the_codes_of_brokers(service: Service, answered: int, expected: str) -> None:
    service.brokers.replaced[RequestCode.POP_MESSAGE] = RemotingCommand(answered)
    assert code(await service.frames()) == expected


@pytest.mark.parametrize(
    "limit", ["services.long_polling.HELD_BYTES", "pop.pop_checkpoints.OPEN_MAX"]
)
async def test_waiting_receives_and_messages_in_flight_are_limited(
    service: Service, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"firetrail.broker.{limit}", 0)
    assert code(await service.frames()) == "TOO_MANY_REQUESTS"


async def test_messages_are_delivered_in_frames(service: Service) -> None:
    await service.send(message(b"1"), message(b"2"))
    before = service.now_ms()
    frames = await service.frames()
    assert [frame.WhichOneof("content") for frame in frames] == [
        *("status", "message", "message"),
        "delivery_timestamp",
    ]
    assert code(frames) == "OK"
    assert frames[-1].delivery_timestamp.seconds * 1000 >= before - 1000
    found = [frame.message for frame in frames[1:-1]]
    assert sorted(attempts(found)) == [(b"1", 1), (b"2", 1)]
    receipt = Receipt.decode(handle_of(found[0]))
    assert len(handle_of(found[0]).split(" ")) == 9
    assert receipt.invisible_ms == 30_000
    assert receipt.log_offset is not None
    stored = service.broker.store.at(receipt.log_offset)
    assert stored is not None
    assert stored.body == found[0].body


async def test_the_batch_size_is_cut(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "BATCH_MAX", 3)
    await service.send(*[message()] * 5)
    assert len(await service.receive(batch_size=1000)) == 3
    assert len(await service.receive(batch_size=1)) == 1


async def test_an_unknown_broker_means_any(service: Service) -> None:
    await service.send(message(), message())
    assert len(await service.receive(broker="", batch_size=1)) == 1
    assert len(await service.receive(broker="unknown", batch_size=1)) == 1


async def test_tags_are_compared_exactly(service: Service) -> None:
    # These two tags have the same hash, which is all that brokers compare.
    await service.send(message(b"1", tag="Aa"), message(b"2", tag="BB"), message(b"3", tag="x"))
    found = await service.receive(tags="Aa || none")
    assert [each.body for each in found] == [b"1"]
    acks = [each for each in service.brokers.asked if each.code == RequestCode.BATCH_ACK_MESSAGE]
    assert len(acks) == 1
    assert len(list(service.broker._parts.checkpoints.pops())) == 1  # that of the first message


async def test_if_all_messages_are_filtered_away_there_is_none(service: Service) -> None:
    await service.send(message(tag="BB"))
    assert code(await service.frames(tags="Aa")) == "MESSAGE_NOT_FOUND"


async def test_a_condition_selects_messages() -> None:
    async with serving(BrokerConfig(property_filter=True)) as service:
        await service.create_topic("T")
        await service.send(
            message(b"1", properties={"price": "5"}), message(b"2", properties={"price": "50"})
        )
        assert [each.body for each in await service.receive(sql="price > 10")] == [b"2"]


async def test_a_property_of_a_producer_is_no_receipt(service: Service) -> None:
    sent = message()
    fields = {"a": "T", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    fields["i"] = "POP_CK\x01no receipt\x02UNIQ_KEY\x01u\x02"
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, sent.body)
    service.brokers.request(service.client, "broker-a", command)
    (found,) = await service.receive()
    assert code(await service.ack(handle_of(found))) == "OK"


# -- waiting -----------------------------------------------------------------------------------


async def test_a_receive_waits_for_a_message(service: Service) -> None:
    waiting = asyncio.create_task(service.receive())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await service.send(message())
    assert attempts(await asyncio.wait_for(waiting, PATIENCE_S)) == [(b"hello", 1)]


async def test_a_redelivered_message_wakes_a_receive(service: Service) -> None:
    await service.send(message())
    (found,) = await service.receive()
    waiting = asyncio.create_task(service.receive(long_polling_timeout=Duration(seconds=20)))
    await asyncio.sleep(0.05)
    await service.change(handle_of(found), 0)
    assert attempts(await asyncio.wait_for(waiting, PATIENCE_S)) == [(b"hello", 2)]


async def test_a_cancelled_receive_takes_no_message(service: Service) -> None:
    waiting = asyncio.create_task(service.receive())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await service.send(message())
    assert attempts(await service.receive()) == [(b"hello", 1)]


async def test_messages_of_another_process_that_arrive_late_are_returned(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "RETURNED_MS", 1)
    service.brokers.waits = True
    waiting = asyncio.create_task(service.receive())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert service.receiving._late
    await service.send(message())  # the broker answers the pop of the call that has ended
    assert attempts(await service.receive()) == [(b"hello", 2)]
    assert not service.receiving._late


async def test_too_many_late_pops_are_not_awaited(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "LATE_MAX", 2)
    service.brokers.waits = True
    held = service.broker._parts.state.long_polling._by_connection
    for before in (0, 1, 2, 2):
        waiting = asyncio.create_task(service.receive())
        await until(lambda before=before: len(held) == before + 1)  # type: ignore[misc]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda before=before: len(held) == min(before + 1, 2))  # type: ignore[misc]
    assert len(service.receiving._late) == 2


@pytest.mark.parametrize("is_held", [True, False], ids=["after a wait", "at once"])
async def test_messages_of_a_call_that_ends_while_their_pop_is_synced_are_returned(
    service: Service, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    monkeypatch.setattr(receive, "RETURNED_MS", 1)
    add = PopCheckpoints.add
    taken, synced = asyncio.Event(), asyncio.Event()

    def add_and_wait(self: PopCheckpoints, point: PopCheckpoint) -> Awaitable[None]:
        add(self, point)
        taken.set()
        return cast(Awaitable[None], synced.wait())

    if not is_held:
        await service.send(message())
    monkeypatch.setattr(PopCheckpoints, "add", add_and_wait)
    waiting = asyncio.create_task(service.receive())
    if is_held:
        await until(lambda: service.broker._parts.state.long_polling._held)
        await service.send(message())
    await asyncio.wait_for(taken.wait(), PATIENCE_S)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    monkeypatch.setattr(PopCheckpoints, "add", add)
    synced.set()
    assert attempts(await service.receive()) == [(b"hello", 2)]
    assert not service.receiving._late


async def test_messages_that_arrive_with_the_end_of_a_call_are_returned(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.send(message())
    loop = asyncio.get_running_loop()
    popped = service.brokers.request
    future: asyncio.Future[RemotingCommand] = loop.create_future()
    monkeypatch.setattr(service.brokers, "request", lambda *args: future)
    waiting = asyncio.create_task(service.receive())
    await asyncio.sleep(0.05)
    monkeypatch.undo()
    header = [each for each in service.brokers.asked if each.code == RequestCode.POP_MESSAGE]
    assert not header
    request = receive_request()
    monkeypatch.setattr(receive, "RETURNED_MS", 1)
    command = RemotingCommand(RequestCode.POP_MESSAGE, pop_fields(request.batch_size))
    answer = popped(service.client, "broker-a", command)
    assert isinstance(answer, RemotingCommand)
    future.set_result(answer)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert attempts(await service.receive()) == [(b"hello", 2)]


def pop_fields(count: int) -> dict[str, str]:
    return {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": "-1",
        "maxMsgNums": str(count),
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "1",
    }


async def test_messages_of_a_lost_client_become_visible_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "RETURNED_MS", 1)
    await service.send(message())
    call = FakeCall()
    assert len(await service.receive(call, auto_renew=True)) == 1
    assert len(service.renewals) == 1
    call.end(False)
    assert attempts(await service.receive()) == [(b"hello", 2)]
    assert len(service.renewals) == 0


async def test_messages_of_a_call_that_fails_later_become_visible_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "RETURNED_MS", 1)
    await service.send(message(tag="Aa"), message(b"other", tag="BB"))
    call = FakeCall()
    blocked = asyncio.Event()

    async def never(*args: Any) -> RemotingCommand:
        blocked.set()
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr(service.requests, "ack", never)
    waiting = asyncio.create_task(service.receive(call, tags="Aa"))
    await asyncio.wait_for(blocked.wait(), PATIENCE_S)
    waiting.cancel()  # the deadline is over while the other message is acknowledged
    await asyncio.gather(waiting, return_exceptions=True)
    call.end(False)
    assert attempts(await service.receive(tags="Aa")) == [(b"hello", 2)]
    changes = [
        each
        for each in service.brokers.asked
        if each.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    ]
    assert len(changes) == 1  # it is returned once


async def test_messages_that_were_written_stay_invisible(service: Service) -> None:
    await service.send(message())
    call = FakeCall()
    assert len(await service.receive(call)) == 1
    call.end(True)
    assert not service.receiving._returning


# -- attempts ----------------------------------------------------------------------------------


async def test_a_message_that_was_delivered_too_often_becomes_a_dead_letter(
    service: Service,
) -> None:
    service.create_group(retry_max_times=1)
    await service.send(message(message_id="m1"))
    for attempt in (1, 2):
        (found,) = await service.receive()
        assert found.system_properties.delivery_attempt == attempt
        await service.change(handle_of(found), 0)
    await wait_for_redelivery(service)
    assert code(await service.frames()) == "MESSAGE_NOT_FOUND"
    assert [each.body for each in service.broker.store.read("%DLQ%CG", 0)] == [b"hello"]
    dead = await service.receive(topic="%DLQ%CG", group="other")
    assert [each.system_properties.message_id for each in dead] == ["m1"]


async def wait_for_redelivery(service: Service) -> None:
    """Wait until no message is invisible, so that the next pop finds all of them."""
    async with asyncio.timeout(PATIENCE_S):
        while any(True for _ in service.broker._parts.checkpoints.pops()):
            await asyncio.sleep(0.01)
    await asyncio.to_thread(service.broker.store.wait_dispatched)


# -- order -------------------------------------------------------------------------------------


async def test_messages_of_a_group_are_received_in_order(service: Service) -> None:
    await service.create_topic("F", "FIFO", queues=1)
    service.create_group(consume_message_orderly=True)
    for body in (b"1", b"2", b"3"):
        await service.send(message(body, "F", message_group="g"))
    found: list[Message] = []

    async def receive(attempt: str) -> list[tuple[bytes, int]]:
        nonlocal found
        found = await service.receive(topic="F", batch_size=2, attempt_id=attempt)
        return attempts(found)

    assert await receive("a") == [(b"1", 1), (b"2", 1)]
    assert {Receipt.decode(handle_of(each)).revive_queue for each in found} == {ORDERED}
    # The answer got lost: the same attempt gets the same messages, and no attempt is counted.
    assert await receive("a") == [(b"1", 1), (b"2", 1)]
    # The queue is closed for others until all messages are acknowledged or visible again.
    pending = asyncio.create_task(receive("b"))
    await asyncio.sleep(0.1)
    assert not pending.done()
    second = await service.change(handle_of(found[1]), 0, topic="F")
    assert not pending.done()
    assert second
    await service.change(handle_of(found[0]), 0, topic="F")
    assert await asyncio.wait_for(pending, PATIENCE_S) == [(b"1", 2), (b"2", 2)]
    assert code(await service.ack(*map(handle_of, found), topic="F")) == "OK"
    assert await receive("c") == [(b"3", 1)]


async def test_a_group_without_order_is_reported_once_per_fifo_topic(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    for topic, kind in (("F", "FIFO"), ("N", "NORMAL")):
        await service.create_topic(topic, kind, queues=1)
        for body in (b"1", b"2"):
            group = {"message_group": "g"} if kind == "FIFO" else {}
            await service.send(message(body, topic, **group))
        for _ in range(2):
            assert len(await service.receive(topic=topic, batch_size=1)) == 1
    lines = [each.getMessage() for each in caplog.records]
    (line,) = [each for each in lines if "not in order" in each]
    assert line == (
        f"group {GROUP} receives messages of the FIFO topic F, but not in order; to get them in "
        f"order: firetrail group create {GROUP} --orderly"
    )


async def test_dead_letters_of_messages_in_order(service: Service) -> None:
    await service.create_topic("F", "FIFO", queues=1)
    service.create_group(consume_message_orderly=True, retry_max_times=0)
    await service.send(message(b"1", "F", message_group="g"))
    await service.send(message(b"2", "F", message_group="g"))
    (first,) = await service.receive(topic="F", batch_size=1, attempt_id="a")
    await service.change(handle_of(first), 0, topic="F")
    assert attempts(await service.receive(topic="F", batch_size=2, attempt_id="b")) == [(b"2", 1)]
    assert [each.body for each in service.broker.store.read("%DLQ%CG", 0)] == [b"1"]


async def test_a_client_that_leaves_during_a_receive_gets_no_messages(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would end their renewal."""
    monkeypatch.setattr(receive, "RETURNED_MS", 1)
    waiting = asyncio.ensure_future(service.frames(auto_renew=True))
    await asyncio.sleep(0)
    service.client.is_closed = True
    await service.send(message())
    assert code(await waiting) == "MESSAGE_NOT_FOUND"
    assert len(service.renewals) == 0
    service.client = ProxyClient("c2")
    assert len(await service.receive()) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (9, "the invisibleTime is too small. min is 10000 ms, and the request has 9000 ms"),
        (43_201, "the invisibleTime is too large. max is 43200000 ms, and the request has "),
    ],
)
async def test_a_wrong_invisible_time_has_the_text_that_clients_look_for(
    seconds: int, text: str
) -> None:
    async with serving() as service:
        await service.create_topic("T")
        frames = await service.frames(invisible_duration=Duration(seconds=seconds))
        assert frames[0].status.message.startswith(text)
