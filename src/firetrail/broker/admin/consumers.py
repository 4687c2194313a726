"""Consumers as administrators handle them: offsets set anew, questions passed on."""

from __future__ import annotations

import asyncio
import logging

from firetrail.broker.broker_state import BrokerState
from firetrail.broker.services.clients import Client, ConsumerGroup
from firetrail.errors import RequestError
from firetrail.format.ids import decode_message_id
from firetrail.remoting.admin_bodies import (
    ConsumerStatus,
    QueueOffset,
    ResetOffsetList,
    ResetOffsets,
)
from firetrail.remoting.admin_headers import (
    CloneOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    RunningInfoHeader,
)
from firetrail.remoting.bodies import MessageModel, MessageQueue
from firetrail.remoting.codes import Language, RequestCode, ResponseCode
from firetrail.remoting.command import Command
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler
from firetrail.remoting.headers import ResetOffsetHeader
from firetrail.store.reader import Boundary

NOW = -1
"""As a time to reset to: behind the newest message."""
CLIENT_S = 10.0

_log = logging.getLogger(__name__)


class ConsumerProcessor:
    """Handles INVOKE_BROKER_TO_RESET_OFFSET, CLONE_GROUP_OFFSET and what consumers are asked."""

    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._clients = state.clients
        self._long_polling = state.long_polling
        self._config = state.config
        self.handlers: dict[int, Handler] = {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    # -- offsets ------------------------------------------------------------------------------

    async def _reset(self, connection: Connection, request: Command) -> Command:
        """Set a group elsewhere; on disk before the answer, or a crash would undo it."""
        answer = self._reset_now(request)
        await self._offsets.saved()
        return answer

    def _reset_now(self, request: Command) -> Command:
        header = ResetOffsetHeader.decode(request.fields)
        topic = self._topics.require(header.topic)
        self._require_group(header.group)
        queues = [
            queue_id
            for queue_id in range(topic.write_queue_nums)
            if header.queue_id in (None, -1, queue_id)
        ]
        if not queues:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {header.topic} has no queue {header.queue_id}, only "
                f"{topic.write_queue_nums} queues from 0 on",
            )
        table = {
            MessageQueue(header.topic, self._config.name, queue_id): self._wanted(header, queue_id)
            for queue_id in queues
        }
        group = self._clients.consumers.get(header.group)
        if group is not None and not self._is_pushed(group):
            for queue, offset in table.items():
                self._offsets.reset(header.group, header.topic, queue.queue_id, offset)
                self._long_polling.wake((header.topic, queue.queue_id))
            return request.answer(body=ResetOffsets(table).encode())
        for queue, offset in table.items():
            self._offsets.commit(header.group, header.topic, queue.queue_id, offset)
        for client in group.clients.values() if group is not None else ():
            _tell(client, header, table)
        return request.answer(body=ResetOffsets(table).encode())

    def _require_group(self, name: str) -> None:
        """RequestError for a name that is likely a wrong one: no such group, no offsets of it."""
        if self._groups.get(name) is None and not self._offsets.of_group(name):
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {name:.255} does not exist"
            )

    def _is_pushed(self, group: ConsumerGroup) -> bool:
        """Whether the members are told of a reset: each keeps its own offsets in a broadcast."""
        broadcast = group.message_model is MessageModel.BROADCASTING
        return broadcast or not self._config.server_side_reset

    def _wanted(self, header: ResetOffsetHeader, queue_id: int) -> int:
        """The offset that a time stands for; without force, never one that skips messages."""
        first = self._store.min_offset(header.topic, queue_id)
        end = self._store.max_offset(header.topic, queue_id)
        if header.offset is not None and header.offset >= 0:
            if not first <= header.offset <= end:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{first}-{end}]",
                )
            wanted = header.offset
        elif header.timestamp == NOW:
            wanted = end
        else:
            wanted = self._store.offset_at(header.topic, queue_id, header.timestamp, Boundary.LOWER)
        now = self._offsets.get(header.group, header.topic, queue_id)
        return wanted if header.is_force or now is None else min(wanted, now)

    def _clone(self, connection: Connection, request: Command) -> Command:
        header = CloneOffsetHeader.decode(request.fields)
        for topic, queues in self._offsets.of_group(header.src_group).items():
            if header.topic in (None, "", topic):
                for queue_id, offset in queues.items():
                    self._offsets.commit(header.dest_group, topic, queue_id, offset)
        return request.answer()

    # -- questions that consumers answer ------------------------------------------------------

    async def _status(self, connection: Connection, request: Command) -> Command:
        header = ConsumerStatusHeader.decode(request.fields)
        group = self._clients.consumers.get(header.group)
        if group is None:
            raise _not_online(header.group)
        wanted = [
            client
            for client in group.clients.values()
            if header.client_addr in (None, "", client.client_id)
        ]
        asked = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header.encode())
        answers = await asyncio.gather(
            *(_answer_of(client, Command(asked.code, asked.fields)) for client in wanted)
        )
        for answer in answers:
            if answer.code != ResponseCode.SUCCESS:
                _log.warning("%s: left out of the status of group %s", answer.remark, group.name)
        table = {
            client.client_id: ConsumerStatus.decode(answer.content).message_queue_table or {}
            for client, answer in zip(wanted, answers, strict=True)
            if answer.code == ResponseCode.SUCCESS
        }
        return request.answer(body=ConsumerStatus(consumer_table=table).encode())

    async def _running_info(self, connection: Connection, request: Command) -> Command:
        header = RunningInfoHeader.decode(request.fields)
        client = self._client(header.consumer_group, header.client_id)
        asked = Command(request.code, header.encode())
        return _passed_back(request, await _answer_of(client, asked))

    async def _consume_directly(self, connection: Connection, request: Command) -> Command:
        header = ConsumeDirectlyHeader.decode(request.fields)
        client = self._client(header.consumer_group, header.client_id or "")
        place = decode_message_id(header.msg_id or "").physical_offset
        record = self._store.buffer_at(place)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no message {header.msg_id} here")
        asked = Command(request.code, header.encode(), bytes(record))
        return _passed_back(request, await _answer_of(client, asked))

    def _client(self, group_name: str, client_id: str) -> Client:
        group = self._clients.consumers.get(group_name)
        client = group.find(client_id) if group is not None else None
        if client is None:
            raise _not_online(f"{group_name} {client_id}")
        return client


def _not_online(who: str) -> RequestError:
    return RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer <{who:.255}> not online")


def _tell(client: Client, header: ResetOffsetHeader, table: dict[MessageQueue, int]) -> None:
    """RESET_CONSUMER_CLIENT_OFFSET; only Java knows objects as keys."""
    body: ResetOffsets | ResetOffsetList = ResetOffsets(table)
    if client.language != Language.JAVA:
        body = ResetOffsetList(
            [QueueOffset(q.topic, q.broker_name, q.queue_id, offset) for q, offset in table.items()]
        )
    client.connection.tell(
        Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header.encode(), body.encode())
    )


async def _answer_of(client: Client, asked: Command) -> Command:
    """What the client answers, or in its place that it does not.

    It is asked with the fields of the request's header only: those of an administrator who signs
    his requests are not for consumers.
    """
    who = f"the consumer <{client.client_id:.255}>"
    try:
        return await client.connection.request(asked, CLIENT_S)
    except TimeoutError:
        remark = f"{who} does not answer within {CLIENT_S:g} s"
        return asked.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
    except ConnectionError:
        remark = f"{who} not online: it disconnected before it answered"
        return asked.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark)


def _passed_back(request: Command, answer: Command) -> Command:
    return request.answer(answer.code, answer.remark, answer.fields, answer.content)
