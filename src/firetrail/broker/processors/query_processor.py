"""Queries for messages and queue offsets: by key, by position, by time."""

from firetrail.access.implied_permissions import GET, SUB, no_record, require_record
from firetrail.auth.signature import UNIQUE_KEY_QUERY
from firetrail.broker.broker_state import BrokerState
from firetrail.errors import RequestError
from firetrail.format.values.truths import is_true
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler, WaitingHandler
from firetrail.remoting.messages.headers import (
    OffsetResponse,
    QueryMessageHeader,
    QueryMessageResponse,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResponse,
    ViewMessageHeader,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.log.log_records import record_offset
from firetrail.store.reads.reader import Boundary


class QueryProcessor:
    """Handles QUERY_MESSAGE, VIEW_MESSAGE_BY_ID and the requests for offsets and store times."""

    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._topics = state.topics
        dispatched = state.store.dispatch.catch_up
        self.handlers: dict[int, Handler] = {
            RequestCode.QUERY_MESSAGE: WaitingHandler(dispatched, self._by_key),
            RequestCode.VIEW_MESSAGE_BY_ID: self._by_position,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: WaitingHandler(dispatched, self._by_time),
            RequestCode.GET_MAX_OFFSET: WaitingHandler(dispatched, self._max_offset),
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest_time,
        }

    def _by_key(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = QueryMessageHeader.decode(request.fields)
        self._topics.require(header.topic)
        unique = is_true(request.fields.get(UNIQUE_KEY_QUERY))
        count = None if unique else max(header.max_num, 1)
        found = self._store.reads.query_buffers(
            header.topic, header.key, header.begin_timestamp, header.end_timestamp, count
        )
        if not found.buffers:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
        fields = QueryMessageResponse(found.index_time, found.index_offset).encode()
        records = sorted(found.buffers, key=record_offset)
        return request.answer(fields=fields, body=records)

    def _by_position(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        offset = ViewMessageHeader.decode(request.fields).offset
        record = self._store.reads.buffer_at(offset)
        if record is None:
            detail = f"can not find message by the offset, {offset}"
            raise no_record(request.caller, detail, SUB, GET)
        if request.caller is not None:
            require_record(request, self._store.embedded.at(offset), SUB, GET)
        return request.answer(body=record)

    def _by_time(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = SearchOffsetHeader.decode(request.fields)
        upper = (header.boundary_type or "").lower() == Boundary.UPPER.value
        boundary = Boundary.UPPER if upper else Boundary.LOWER  # the default, as in RocketMQ 5.x
        offset = self._store.embedded.offset_at(
            header.topic, header.queue_id, header.timestamp, boundary
        )
        return request.answer(fields=OffsetResponse(offset).encode())

    def _max_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = QueueHeader.decode(request.fields)
        offset = self._store.queues.max_offset(header.topic, header.queue_id)
        return request.answer(fields=OffsetResponse(offset).encode())

    def _min_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = QueueHeader.decode(request.fields)
        offset = self._store.queues.min_offset(header.topic, header.queue_id)
        return request.answer(fields=OffsetResponse(offset).encode())

    def _earliest_time(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = QueueHeader.decode(request.fields)
        first = self._store.queues.min_offset(header.topic, header.queue_id)
        time = self._store.queues.store_time(header.topic, header.queue_id, first)
        return request.answer(fields=TimestampResponse(-1 if time is None else time).encode())
