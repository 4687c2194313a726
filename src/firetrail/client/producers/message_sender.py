"""The sender of a producer: it chooses queues, waits for masters, and retries."""

from __future__ import annotations

import random
from asyncio import sleep as pause
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import TypeVar

from firetrail.client.cluster.backoff import Backoff, pauses, was_not_sent
from firetrail.client.cluster.known_routes import no_master
from firetrail.client.cluster.session import Session
from firetrail.client.cluster.topic_route import no_such_queue, queues_of
from firetrail.client.messages.send_requests import (
    OutgoingMessage,
    SendResult,
    check_frame,
    may_retry,
    needs_pause,
    result_of,
)
from firetrail.client.producers.send_slots import SendSlots
from firetrail.errors import (
    NoMasterYetError,
    NoRouteYetError,
    NoSuchError,
    NotReachedError,
    RequestError,
)
from firetrail.format.names import AUTO_CREATE_TOPIC
from firetrail.format.recall_handle import decode_handle
from firetrail.format.values.javahash import java_hash
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.messages.headers import DEFAULT_QUEUES, RecallHeader, RecallResponse
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import Payload, RemotingCommand

BUSY_S = 0.2
"""The longest pause after the first failed attempt; it doubles with every further attempt."""

T = TypeVar("T")


class MessageSender:
    """Sends messages to the masters of a cluster.

    While the master of a broker is being replaced, none is registered at the name servers, and a
    broker that restarts cannot be reached. Every attempt waits for one, for at most the time limit
    of an attempt.
    """

    def __init__(self, session: Session, group: str, retries: int, timeout_s: float) -> None:
        """Prepare to send.

        Args:
            session: The connections to the cluster.
            group: The name of the producer group.
            retries: The number of times that a send is repeated.
            timeout_s: The time limit for one attempt.
        """
        self._session = session
        self._group = group
        self.retries = retries
        self._timeout_s = timeout_s
        self._backoff = Backoff("Producer")
        self._slots = SendSlots()
        self._round_robin = count(random.randrange(1 << 16))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic, or those that it will have once it is created.

        Raises:
            NoMasterYetError: No master of its brokers is registered at the moment.
            RequestError: The topic does not exist and cannot be created, or has no writable queue.
        """
        try:
            route = await self._session.route(topic)
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST or isinstance(error, NoRouteYetError):
                raise
            return await self._queues_after_creation(topic, error)
        found = queues_of(topic, route, Permission.WRITE)
        if not found:
            self._session.forget_route(topic)
            names = sorted(data.broker_name for data in route.broker_datas if data.master is None)
            if names:
                what = f"nothing can be sent to the topic {topic}: {no_master(names)}"
                raise NoMasterYetError(ResponseCode.TOPIC_NOT_EXIST, what)
            what = f"topic {topic} has no writable queue; check its permissions and its brokers"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, what)
        return found

    async def _queues_after_creation(self, topic: str, error: RequestError) -> list[MessageQueue]:
        try:
            route = await self._session.route(AUTO_CREATE_TOPIC)
        except RequestError as refused:
            remedy = "create it, or let the brokers do so with autoCreateTopicEnable"
            if refused.code == ResponseCode.NO_PERMISSION:
                remedy = f"create it, or allow the user Get on Topic:{AUTO_CREATE_TOPIC}"
            raise RequestError(error.code, f"no broker has the topic {topic}: {remedy}") from None
        found = queues_of(topic, route, Permission.WRITE)
        return [queue for queue in found if queue.queue_id < DEFAULT_QUEUES]

    async def send(
        self,
        draft: OutgoingMessage,
        queue: MessageQueue | None = None,
        *,
        order_key: str | None = None,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    ) -> SendResult:
        """Send a message or a batch, and wait until a broker has stored it.

        Args:
            draft: The message.
            queue: The queue to send to. Default: all queues of the topic in turn.
            order_key: Selects the queue. Default: all queues of the topic in turn.
            code: The request to send. Default: that of a single message.
        """
        avoided: set[str] = set()

        async def deliver() -> SendResult:
            queues = await self._queues_for(draft.topic, queue)
            if queue is not None:
                return await self._try_queue(draft, queue, code, queues)
            if order_key is not None:
                target = queues[abs(java_hash(order_key)) % len(queues)]
                return await self._try(draft, target, code)
            return await self._try_any(draft, code, queues, avoided)

        backoff = pauses(BUSY_S)
        for left in reversed(range(self.retries + 1)):
            try:
                return await self._reach(draft.topic, deliver)
            except (OSError, RequestError) as error:
                if not left or not may_retry(error):
                    raise
                self._session.forget_route(draft.topic)
                if needs_pause(error):
                    await pause(next(backoff))
        raise AssertionError("the last attempt returns or raises")

    async def _reach(self, topic: str, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call, which is repeated while no broker can be reached."""
        forget = partial(self._session.forget_route, topic)
        return await self._backoff.until_reached(call, self._timeout_s, forget)

    async def _try_any(
        self,
        draft: OutgoingMessage,
        code: RequestCode,
        queues: list[MessageQueue],
        avoided: set[str],
    ) -> SendResult:
        """Send to a queue; continue with the next broker if one cannot be reached.

        ``avoided`` has the brokers that were tried before, and gets those that are tried here.
        """
        names = {queue.broker_name for queue in queues}
        if names <= avoided:
            avoided.clear()
        while True:
            target = self._turn([queue for queue in queues if queue.broker_name not in avoided])
            avoided.add(target.broker_name)
            try:
                return await self._try(draft, target, code)
            except NotReachedError as error:
                if not was_not_sent(error) or names <= avoided:
                    raise

    async def _try_queue(
        self,
        draft: OutgoingMessage,
        queue: MessageQueue,
        code: RequestCode,
        queues: list[MessageQueue],
    ) -> SendResult:
        """Send to a queue that the program has chosen; ``queues`` are those of the topic."""
        try:
            return await self._try(draft, queue, code)
        except RequestError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and queue not in queues:
                raise no_such_queue(queue, queues) from error
            raise

    async def _try(
        self, draft: OutgoingMessage, target: MessageQueue, code: RequestCode
    ) -> SendResult:
        header = draft.header(self._group, target.queue_id)
        check_frame(code, header, draft.body)
        address = self._session.master_of(target.broker_name)
        async with self._slots.of(address):
            response = await self._session.request(
                address, code, header, draft.body, self._timeout_s
            )
        return result_of(draft, target, response)

    async def tell(self, draft: OutgoingMessage, queue: MessageQueue | None) -> None:
        """Send a message without waiting for an answer.

        Args:
            draft: The message.
            queue: The queue to send to, or None for all queues of the topic in turn.
        """

        async def tell() -> None:
            target = queue or self._turn(await self._queues_for(draft.topic, None))
            code, header = RequestCode.SEND_MESSAGE_V2, draft.header(self._group, target.queue_id)
            check_frame(code, header, draft.body)
            await self._tell(target, code, header, draft.body)

        await self._reach(draft.topic, tell)

    async def tell_master(
        self, queue: MessageQueue, code: RequestCode, header: Header, body: Payload = b""
    ) -> None:
        """Send a one-way request to the master that has a queue."""
        await self._reach(queue.topic, lambda: self._tell(queue, code, header, body))

    async def _tell(
        self, queue: MessageQueue, code: RequestCode, header: Header, body: Payload
    ) -> None:
        await self._queues_for(queue.topic, queue)
        await self._session.tell(self._session.master_of(queue.broker_name), code, header, body)

    async def recall(self, text: str) -> str:
        """Recall the message of a handle; return its id.

        Raises:
            FormatError: The text is not a handle.
            RequestError: The broker refuses the recall.
        """
        handle = decode_handle(text)
        header = RecallHeader(handle.topic, text, self._group)

        async def ask() -> RemotingCommand:
            await self._queues_for(handle.topic, MessageQueue(handle.topic, handle.broker, 0))
            address, code = self._session.master_of(handle.broker), RequestCode.RECALL_MESSAGE
            return await self._session.request(address, code, header, timeout_s=self._timeout_s)

        answer = await self._reach(handle.topic, ask)
        if answer.code != ResponseCode.SUCCESS:
            remark = f"{handle.broker}: {answer.remark or 'no reason given'}"
            raise RequestError(answer.code, remark)
        return RecallResponse.decode(answer.fields).msg_id

    async def _queues_for(self, topic: str, queue: MessageQueue | None) -> list[MessageQueue]:
        """Return the writable queues of a topic.

        Raises:
            NoMasterYetError: The broker of ``queue`` has no master; without ``queue``, no broker of
                the topic has one.
            NoSuchError: No broker of the topic has the name of the queue's broker.
        """
        queues = await self.queues(topic)
        if queue is not None and queue not in queues:
            self._check_broker(queue, queues)
        return queues

    def _check_broker(self, queue: MessageQueue, queues: list[MessageQueue]) -> None:
        """Raise an error unless the broker of a queue has a master."""
        try:
            self._session.master_of(queue.broker_name)
        except NoSuchError as error:
            raise no_such_queue(queue, queues) from error

    def _turn(self, queues: list[MessageQueue]) -> MessageQueue:
        return queues[next(self._round_robin) % len(queues)]
