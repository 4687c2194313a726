"""Requests that brokers send to a push consumer, mostly on behalf of an administrator."""

from collections.abc import Mapping
from typing import Protocol

from firetrail.client.consumers.push.process_queue import ProcessQueue
from firetrail.client.messages.received_message import Received
from firetrail.errors import ProtocolError, RequestError
from firetrail.format.record import decode_received
from firetrail.format.values.truths import truth_text
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.admin.admin_bodies import (
    ConsumerRunningInfo,
    ConsumerStatus,
    DirectlyConsumed,
    ResetOffsetList,
    ResetOffsets,
)
from firetrail.remoting.messages.admin.admin_headers import ConsumeDirectlyHeader, RunningInfoHeader
from firetrail.remoting.messages.bodies import ConsumeType, MessageQueue, SubscriptionData
from firetrail.remoting.messages.headers import GroupHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM


class CallbackTarget(Protocol):
    """The consumer that the requests concern."""

    group: str
    assigned: dict[MessageQueue, ProcessQueue]

    wanted: dict[str, SubscriptionData]
    in_order: bool
    opened_ms: int

    def notice_change(self) -> None:
        """Rebalance soon, because the members of the group have changed."""

    async def continue_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at other offsets."""

    async def consume_now(self, message: Received) -> BaseException | None:
        """Call the listener with a message; return None, or the error that it raised."""


class CallbackHandlers:
    """Handles the requests of brokers for a consumer."""

    def __init__(self, consumer: CallbackTarget) -> None:
        self._consumer = consumer
        self.handlers: Mapping[int, Handler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
        }

    def changed(self, connection: Connection, request: RemotingCommand) -> None:
        """Notify the consumer that members have joined or left."""
        if GroupHeader.decode(request.fields).consumer_group == self._consumer.group:
            self._consumer.notice_change()

    async def reset(self, connection: Connection, request: RemotingCommand) -> None:
        """Continue at the offsets in the request."""
        await self._consumer.continue_at(_offsets(request.content))

    def status(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the offset of each assigned queue."""
        table = {queue: taken.offset for queue, taken in self._consumer.assigned.items()}
        return request.answer(body=ConsumerStatus(message_queue_table=table).encode())

    def running_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the state of the consumer and its queues."""
        self._check_group(RunningInfoHeader.decode(request.fields).consumer_group)
        queues = {
            queue: {"cachedMsgCount": taken.waiting, "commitOffset": taken.offset, "droped": False}
            for queue, taken in self._consumer.assigned.items()
        }
        info = ConsumerRunningInfo(
            {
                "PROP_CLIENT_VERSION": "Firetrail",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._consumer.opened_ms),
                "PROP_CONSUME_ORDERLY": truth_text(self._consumer.in_order),
                "PROP_CONSUME_TYPE": ConsumeType.PASSIVELY,
            },
            list(self._consumer.wanted.values()),
            queues,
        )
        return request.answer(body=info.encode())

    async def consume(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Consume the message in the request at once, and return the outcome."""
        header = ConsumeDirectlyHeader.decode(request.fields)
        self._check_group(header.consumer_group)
        record = decode_received(request.content)
        queue = MessageQueue(record.topic, header.broker_name or "", record.queue_id)
        began = SYSTEM.clock.monotonic()
        error = await self._consumer.consume_now(Received(queue, record))
        result = "CR_SUCCESS" if error is None else "CR_THROW_EXCEPTION"
        remark = None if error is None else repr(error)
        spent = int((SYSTEM.clock.monotonic() - began) * 1000)
        done = DirectlyConsumed(result, remark=remark, spent_time_mills=spent)
        return request.answer(body=done.encode())

    def _check_group(self, group: str) -> None:
        if group != self._consumer.group:
            what = f"this client is a member of {self._consumer.group}, not of {group}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, what)


def _offsets(raw: bytes) -> Mapping[MessageQueue, int]:
    """Decode the form for Java clients, or the form for clients in other languages."""
    try:
        return ResetOffsets.decode(raw).offset_table
    except ProtocolError:
        listed = ResetOffsetList.decode(raw).offset_table
        return {MessageQueue(o.topic, o.broker_name, o.queue_id): o.offset for o in listed}
