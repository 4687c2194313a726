"""Requests for the offsets of queues and consumer groups."""

from firetrail.client.cluster.client_arguments import checked_queue
from firetrail.client.cluster.session import Session
from firetrail.errors import RequestError
from firetrail.format.values.arguments import number, text
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.messages.headers import (
    ConsumerOffsetHeader,
    OffsetResponse,
    QueueHeader,
    SearchOffsetHeader,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode


class Offsets:
    """Offsets of queues and groups, as the brokers know them.

    The client must know the route of a queue's topic: call its ``queues(topic)`` first. All methods
    raise RequestError if a broker answers with an error, and OSError if it cannot be reached or
    does not answer in time (TimeoutError).
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def lowest(self, queue: MessageQueue) -> int:
        """Return the offset of the first message of a queue.

        Args:
            queue: The queue.
        """
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET)

    async def end(self, queue: MessageQueue) -> int:
        """Return the end of a queue: the offset that its next message will get.

        Args:
            queue: The queue.
        """
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET)

    async def _offset(self, queue: MessageQueue, code: RequestCode) -> int:
        address = self.address(queue)
        header = QueueHeader(queue.topic, queue.queue_id)
        answer = await self._session.ask(address, code, header)
        return OffsetResponse.decode(answer.fields).offset

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at a time or later.

        Without such a message, this is the end of the queue. RocketMQ 4.9 brokers instead return
        the message nearest to that time, which is the last one if all are earlier.

        Args:
            queue: The queue.
            timestamp_ms: The store time, in ms since 1970.
        """
        address = self.address(queue)
        at_ms = number("timestamp_ms", timestamp_ms)
        header = SearchOffsetHeader(queue.topic, queue.queue_id, at_ms, "LOWER")
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await self._session.ask(address, code, header)
        return OffsetResponse.decode(answer.fields).offset

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a group in a queue; None if it has none.

        Args:
            group: The name of the consumer group.
            queue: The queue.
        """
        address = self.address(queue)
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

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> str:
        """Commit an offset: the group has consumed all messages of the queue before it.

        Returns the address of the broker that has it.

        Args:
            group: The name of the consumer group.
            queue: The queue.
            offset: The queue offset at which the group continues.
        """
        address = self.address(queue)
        consumed = number("offset", offset)
        header = ConsumerOffsetHeader(text("group", group), queue.topic, queue.queue_id, consumed)
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        await self._session.ask(address, code, header)
        return address

    def address(self, queue: MessageQueue) -> str:
        """Return the address of the broker that is asked about a queue.

        It is the master, or a replica while the master is down.

        Args:
            queue: The queue.
        """
        return self._session.address_of(checked_queue(queue).broker_name)
