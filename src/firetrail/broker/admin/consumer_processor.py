"""Administration of consumers: offset resets, and requests that are forwarded to them."""

import asyncio
import logging

from firetrail.access.implied_permissions import SUB, no_record, require_record
from firetrail.broker.broker_state import BrokerState
from firetrail.broker.services.clients import Client, ConsumerGroup
from firetrail.errors import RequestError
from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.admin.admin_bodies import (
    ConsumerStatus,
    QueueOffset,
    ResetOffsetList,
    ResetOffsets,
)
from firetrail.remoting.messages.admin.admin_headers import (
    CloneOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    RunningInfoHeader,
)
from firetrail.remoting.messages.bodies import MessageModel, MessageQueue
from firetrail.remoting.messages.headers import ResetOffsetHeader
from firetrail.remoting.messages.pop.pop_headers import ANY_QUEUE
from firetrail.remoting.wire.codes import Language, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.reads.reader import Boundary

NOW = -1
"""The time of a reset to the end of the queue, after the newest message."""
CONSUMER_TIMEOUT_S = 10.0
"""The time that a consumer may take to answer a forwarded request."""

_log = logging.getLogger(__name__)


class ConsumerProcessor:
    """Handles offset resets, CLONE_GROUP_OFFSET, and requests that consumers answer."""

    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._clients = state.clients
        self._long_polling = state.long_polling
        self._live = state.live
        self.handlers: dict[int, Handler] = {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    # -- offsets ------------------------------------------------------------------------------

    async def _reset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Reset the offsets of a group. They are saved before the answer, so a crash keeps them."""
        if (rest := self._store.dispatch.catch_up()) is not None:
            await rest
        answer = self._reset_now(request)
        await self._offsets.saved()
        return answer

    def _reset_now(self, request: RemotingCommand) -> RemotingCommand:
        header = ResetOffsetHeader.decode(request.fields)
        topic = self._topics.require(header.topic)
        self._require_group(header.group)
        queues = [queue_id for queue_id in topic.queues if header.queue_id in (None, -1, queue_id)]
        if not queues:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {header.topic} has no queue {header.queue_id}, only "
                f"{len(topic.queues)} queues, numbered from 0",
            )
        broker = self._live.current.name
        table = {
            MessageQueue(header.topic, broker, queue_id): self._target(header, queue_id)
            for queue_id in queues
        }
        self._offsets.require_room(header.group, {header.topic: queues})  # all are reset, or none
        group = self._clients.consumers.get(header.group)
        if group is not None and not self._is_pushed(group):
            for queue, offset in table.items():
                self._offsets.reset(header.group, header.topic, queue.queue_id, offset)
                self._long_polling.wake((header.topic, queue.queue_id))
            self._long_polling.wake((header.topic, ANY_QUEUE))
            return request.answer(body=ResetOffsets(table).encode())
        for queue, offset in table.items():
            self._offsets.reset(header.group, header.topic, queue.queue_id, offset, announce=False)
        for client in group.clients.values() if group is not None else ():
            _push_reset(client, header, table)
        return request.answer(body=ResetOffsets(table).encode())

    def _require_group(self, name: str) -> None:
        """Raise RequestError for a group that does not exist and has no offsets: likely a typo."""
        if self._groups.get(name) is None and not self._offsets.of_group(name):
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {name:.255} does not exist"
            )

    def _is_pushed(self, group: ConsumerGroup) -> bool:
        """Whether a reset is pushed to the members. In a broadcast each keeps its own offsets."""
        broadcast = group.message_model is MessageModel.BROADCASTING
        return broadcast or not self._live.current.server_side_reset

    def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        """Return the offset to reset to; without force, never one that skips messages."""
        first = self._store.queues.min_offset(header.topic, queue_id)
        end = self._store.queues.max_offset(header.topic, queue_id)
        if header.offset is not None and header.offset >= 0:
            if not first <= header.offset <= end:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{first}-{end}]",
                )
            target = header.offset
        elif header.timestamp == NOW:
            target = end
        else:
            target = self._store.embedded.offset_at(
                header.topic, queue_id, header.timestamp, Boundary.LOWER
            )
        current = self._offsets.get(header.group, header.topic, queue_id)
        return target if header.is_force or current is None else min(target, current)

    def _clone(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = CloneOffsetHeader.decode(request.fields)
        self._require_group(header.dest_group)
        found = self._offsets.of_group(header.src_group)
        cloned = {t: queues for t, queues in found.items() if header.topic in (None, "", t)}
        self._offsets.require_room(header.dest_group, cloned)
        for topic, queues in cloned.items():
            for queue_id, offset in queues.items():
                self._offsets.commit(header.dest_group, topic, queue_id, offset)
        return request.answer()

    # -- requests that consumers answer -------------------------------------------------------

    async def _status(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = ConsumerStatusHeader.decode(request.fields)
        group = self._clients.consumers.get(header.group)
        if group is None:
            raise _not_online(header.group)
        clients = [
            client
            for client in group.clients.values()
            if header.client_addr in (None, "", client.client_id)
        ]
        code, fields = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header.encode()
        answers = await asyncio.gather(
            *(_answer_of(client, RemotingCommand(code, fields)) for client in clients)
        )
        for answer in answers:
            if answer.code != ResponseCode.SUCCESS:
                _log.warning("the status of group %s is incomplete: %s", group.name, answer.remark)
        table = {
            client.client_id: ConsumerStatus.decode(answer.content).message_queue_table or {}
            for client, answer in zip(clients, answers, strict=True)
            if answer.code == ResponseCode.SUCCESS
        }
        return request.answer(body=ConsumerStatus(consumer_table=table).encode())

    async def _running_info(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = RunningInfoHeader.decode(request.fields)
        client = self._client(header.consumer_group, header.client_id)
        forwarded = RemotingCommand(request.code, header.encode())
        return _passed_back(request, await _answer_of(client, forwarded))

    async def _consume_directly(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        header = ConsumeDirectlyHeader.decode(request.fields)
        client = self._client(header.consumer_group, header.client_id or "")
        offset = decode_message_id(header.msg_id or "").physical_offset
        record = self._store.reads.buffer_at(offset)
        if record is None:
            raise no_record(request.caller, f"this broker has no message {header.msg_id}", SUB)
        if request.caller is not None:
            require_record(request, self._store.embedded.at(offset), SUB)
        forwarded = RemotingCommand(request.code, header.encode(), bytes(record))
        return _passed_back(request, await _answer_of(client, forwarded))

    def _client(self, group_name: str, client_id: str) -> Client:
        group = self._clients.consumers.get(group_name)
        client = group.find(client_id) if group is not None else None
        if client is None:
            raise _not_online(f"{group_name} {client_id}")
        return client


def _not_online(name: str) -> RequestError:
    return RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer <{name:.255}> not online")


def _push_reset(client: Client, header: ResetOffsetHeader, table: dict[MessageQueue, int]) -> None:
    """Send RESET_CONSUMER_CLIENT_OFFSET. Only Java clients accept objects as keys of a table."""
    body: ResetOffsets | ResetOffsetList = ResetOffsets(table)
    if client.language != Language.JAVA:
        body = ResetOffsetList(
            [QueueOffset(q.topic, q.broker_name, q.queue_id, offset) for q, offset in table.items()]
        )
    client.connection.tell(
        RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header.encode(), body.encode())
    )


async def _answer_of(client: Client, forwarded: RemotingCommand) -> RemotingCommand:
    """Return the client's answer, or one that reports the timeout.

    ``forwarded`` has only the fields of the request's header: the signature that an administrator
    may have added to the request is not for consumers.
    """
    name = f"the consumer <{client.client_id:.255}>"
    try:
        return await client.connection.request(forwarded, CONSUMER_TIMEOUT_S)
    except TimeoutError:
        remark = f"{name} does not answer within {CONSUMER_TIMEOUT_S:g} s"
        return forwarded.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
    except ConnectionError:
        remark = f"{name} not online: it disconnected before it answered"
        return forwarded.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark)


def _passed_back(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
    return request.answer(answer.code, answer.remark, answer.fields, answer.content)
