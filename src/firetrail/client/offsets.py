"""Offsets of queues and of consumer groups, asked of brokers."""

from __future__ import annotations

from firetrail.client.arguments import checked_queue
from firetrail.client.session import Session
from firetrail.errors import RequestError
from firetrail.format.arguments import number, text
from firetrail.remoting.bodies import MessageQueue
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.headers import (
    ConsumerOffsetHeader,
    OffsetResponse,
    QueueHeader,
    SearchOffsetHeader,
)


class Offsets:
    """Of the queues whose topics the session has routes of."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def lowest(self, queue: MessageQueue) -> int:
        """The offset of the first message that is there."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET)

    async def end(self, queue: MessageQueue) -> int:
        """The offset that the next message gets."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET)

    async def _offset(self, queue: MessageQueue, code: RequestCode) -> int:
        address = self._address(queue)
        header = QueueHeader(queue.topic, queue.queue_id)
        answer = await self._session.ask(address, code, header)
        return OffsetResponse.decode(answer.fields).offset

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message that was stored at that time or later.

        If there is none, this is the end of the queue. A broker of RocketMQ 4.9 answers with the
        message nearest to that time instead, which is the last one if all are earlier.
        """
        address = self._address(queue)
        at_ms = number("timestamp_ms", timestamp_ms)
        header = SearchOffsetHeader(queue.topic, queue.queue_id, at_ms, "LOWER")
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await self._session.ask(address, code, header)
        return OffsetResponse.decode(answer.fields).offset

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Up to where a group has consumed; None if the broker knows nothing about it."""
        address = self._address(queue)
        header = ConsumerOffsetHeader(
            text("group", group), queue.topic, queue.queue_id, set_zero_if_not_found=False
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        answer = await self._session.request(address, code, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(answer.code, answer.remark or "no reason given")
        return OffsetResponse.decode(answer.fields).offset

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """A group has consumed all before ``offset``."""
        address = self._address(queue)
        consumed = number("offset", offset)
        header = ConsumerOffsetHeader(text("group", group), queue.topic, queue.queue_id, consumed)
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        await self._session.ask(address, code, header)

    def _address(self, queue: MessageQueue) -> str:
        return self._session.address_of(checked_queue(queue).broker_name)
