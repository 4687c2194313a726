"""Requests that brokers send to a push consumer."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from tests.stores import GOLDEN

from firetrail.client.consumers.push.callbacks import CallbackHandlers
from firetrail.client.consumers.push.process_queue import ProcessQueue
from firetrail.client.consumers.subscription import by_tags
from firetrail.client.messages.received_message import Received
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import answer_to, outcome_of
from firetrail.remoting.messages.admin.admin_bodies import (
    ConsumerRunningInfo,
    ConsumerStatus,
    DirectlyConsumed,
    QueueOffset,
    ResetOffsetList,
    ResetOffsets,
)
from firetrail.remoting.messages.bodies import MessageQueue, SubscriptionData
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

QUEUE = MessageQueue("T", "a", 1)
NO_CONNECTION = cast(Connection, None)


class Consumer:
    """A consumer that records the calls of its handlers."""

    def __init__(self) -> None:
        self.group = "G"
        self.wanted: dict[str, SubscriptionData] = {"T": by_tags("T")}
        self.assigned: dict[MessageQueue, ProcessQueue] = {}
        self.in_order = False
        self.opened_ms = 1600
        self.calls: list[Any] = []
        self.fails = False

    def notice_change(self) -> None:
        self.calls.append("change")

    async def continue_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.calls.append(offsets)

    async def consume_now(self, message: Received) -> BaseException | None:
        self.calls.append(message.body)
        if self.fails:
            return ValueError()
        return None


async def ask(
    consumer: Consumer, code: int, body: bytes = b"", **fields: str
) -> RemotingCommand | None:
    consumer.assigned = {QUEUE: ProcessQueue(QUEUE, by_tags("T"), 7, 10)}
    request = RemotingCommand(code, fields, body)
    answer = answer_to(CallbackHandlers(consumer).handlers, NO_CONNECTION, request)
    if answer is None or isinstance(answer, RemotingCommand):
        return answer
    return await outcome_of(request, answer)


@pytest.mark.parametrize(("group", "calls"), [("G", ["change"]), ("other", [])])
async def test_a_change_of_members_is_passed_on_for_the_own_group_only(
    group: str, calls: list[str]
) -> None:
    consumer = Consumer()
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert await ask(consumer, code, consumerGroup=group) is None
    assert consumer.calls == calls


@pytest.mark.parametrize(
    "body",
    [ResetOffsets({QUEUE: 3}), ResetOffsetList([QueueOffset("T", "a", 1, 3)])],
    ids=["java", "others"],
)
async def test_offsets_are_reset(body: ResetOffsets | ResetOffsetList) -> None:
    consumer = Consumer()
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert await ask(consumer, code, body.encode(), topic="T", group="G") is None
    assert consumer.calls == [{QUEUE: 3}]


async def test_status_contains_the_offsets() -> None:
    answer = await ask(
        Consumer(), RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, topic="T", group="G"
    )
    assert answer is not None
    assert ConsumerStatus.decode(answer.content).message_queue_table == {QUEUE: 7}


async def test_running_info_contains_queues_and_subscriptions() -> None:
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    answer = await ask(Consumer(), code, consumerGroup="G", clientId="x")
    assert answer is not None
    info = ConsumerRunningInfo.decode(answer.content)
    assert info.mq_table[QUEUE]["commitOffset"] == 7
    assert info.properties["PROP_CONSUMER_START_TIMESTAMP"] == "1600"
    assert info.properties["PROP_CONSUME_ORDERLY"] == "false"
    assert [wanted.topic for wanted in info.subscription_set] == ["T"]


async def test_running_info_of_another_group_is_an_error() -> None:
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    answer = await ask(Consumer(), code, consumerGroup="other", clientId="x")
    assert answer is not None and answer.remark == "this client is a member of G, not of other"


def first_message() -> bytes:
    """Return a record that Java has stored."""
    raw = (GOLDEN / "v4-clean" / "commitlog" / ("0" * 20)).read_bytes()
    return raw[: int.from_bytes(raw[:4], "big")]


@pytest.mark.parametrize(("fails", "result"), [(False, "CR_SUCCESS"), (True, "CR_THROW_EXCEPTION")])
async def test_a_message_is_consumed_directly(fails: bool, result: str) -> None:
    consumer = Consumer()
    consumer.fails = fails
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    answer = await ask(consumer, code, first_message(), consumerGroup="G", brokerName="a")
    assert answer is not None
    done = DirectlyConsumed.decode(answer.content)
    assert (done.consume_result, done.remark) == (result, "ValueError()" if fails else None)
    assert [type(calls) for calls in consumer.calls] == [bytes]
