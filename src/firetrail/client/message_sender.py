"""The sender of a producer: it chooses queues, waits for masters, and retries."""

from __future__ import annotations

import asyncio
import random
from asyncio import sleep as pause
from itertools import count

from firetrail.client.known_routes import no_master
from firetrail.client.send import (
    DEFAULT_QUEUES,
    OutgoingMessage,
    SendResult,
    check_frame,
    may_retry,
    result_of,
)
from firetrail.client.session import ROLE_CODES, Session
from firetrail.client.sharing import Slots
from firetrail.client.topic_route import no_such_queue, queues_of
from firetrail.errors import NoMasterYetError, NoRouteYetError, NoSuchError, RequestError
from firetrail.format.javahash import java_hash
from firetrail.format.names import AUTO_CREATE_TOPIC
from firetrail.format.recall import decode_handle
from firetrail.remoting.bodies import MessageQueue
from firetrail.remoting.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.command import Payload
from firetrail.remoting.header import Header
from firetrail.remoting.headers import RecallHeader, RecallResponse

BUSY_S = 0.2
"""Backoff after a broker has refused the first attempt; it doubles with every further attempt."""
MASTER_POLL_S = 0.2
"""Pause before the route of a topic is requested again whose brokers have no master."""


class MessageSender:
    """Sends messages to the masters of a cluster.

    While the master of a broker is being replaced, none is registered at the name servers. Every
    attempt waits for one, for at most the time limit of an attempt.
    """

    def __init__(self, session: Session, group: str, retries: int, timeout_s: float) -> None:
        """Prepare to send.

        Args:
            session: The connections to the cluster.
            group: The name of the producer group.
            retries: How often a send is repeated.
            timeout_s: The time limit for one attempt.
        """
        self._session = session
        self._group = group
        self.retries = retries
        self._timeout_s = timeout_s
        self._slots = Slots()
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
            draft: What to send.
            queue: The queue to send to. Default: all queues of the topic in turn.
            order_key: Selects the queue. Default: all queues of the topic in turn.
            code: The request to send. Default: that of a single message.
        """
        avoided: str | None = None
        for attempt in range(self.retries + 1):
            queues: list[MessageQueue] = []
            try:
                queues = await self._queues_for(draft.topic, queue)
                target = queue or self._choose(queues, order_key, avoided)
                avoided = target.broker_name
                return await self._try(draft, target, code)
            except (OSError, RequestError) as error:
                answer = error.code if isinstance(error, RequestError) else None
                if queue and queue not in queues and answer == ResponseCode.SYSTEM_ERROR:
                    raise no_such_queue(queue, queues) from error
                refused = isinstance(error, RequestError) and not may_retry(error)
                if refused or attempt == self.retries:
                    raise
                self._session.forget_route(draft.topic)
                if answer in ROLE_CODES:
                    await pause(BUSY_S * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("the last attempt returns or raises")

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
        target = queue or self._turn(await self._queues_for(draft.topic, None), None)
        code, header = RequestCode.SEND_MESSAGE_V2, draft.header(self._group, target.queue_id)
        check_frame(code, header, draft.body)
        await self.tell_master(target, code, header, draft.body)

    async def tell_master(
        self, queue: MessageQueue, code: RequestCode, header: Header, body: Payload = b""
    ) -> None:
        """Send a one-way request to the master that has a queue."""
        await self._queues_for(queue.topic, queue)
        await self._session.tell(self._session.master_of(queue.broker_name), code, header, body)

    async def recall(self, text: str) -> str:
        """Recall the message of a handle; return its id.

        Raises:
            FormatError: The text is not a handle.
            RequestError: The broker refuses the recall.
        """
        handle = decode_handle(text)
        await self._queues_for(handle.topic, MessageQueue(handle.topic, handle.broker, 0))
        address = self._session.master_of(handle.broker)
        header = RecallHeader(handle.topic, text, self._group)
        code = RequestCode.RECALL_MESSAGE
        answer = await self._session.request(address, code, header, timeout_s=self._timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            remark = f"{handle.broker}: {answer.remark or 'no reason given'}"
            raise RequestError(answer.code, remark)
        return RecallResponse.decode(answer.fields).msg_id

    async def _queues_for(self, topic: str, queue: MessageQueue | None) -> list[MessageQueue]:
        """Return the writable queues of a topic; wait until the broker of ``queue`` has a master.

        Without ``queue``, any broker of the topic will do.

        Raises:
            NoMasterYetError: No master has registered within the time limit of an attempt.
            NoSuchError: No broker of the topic has the name of the queue's broker.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout_s
        while True:
            try:
                queues = await self.queues(topic)
                if queue is not None and queue not in queues:
                    self._check_broker(queue, queues)
                return queues
            except NoMasterYetError:
                if clock() + MASTER_POLL_S > deadline:
                    raise
                self._session.forget_route(topic)
            await pause(MASTER_POLL_S)

    def _check_broker(self, queue: MessageQueue, queues: list[MessageQueue]) -> None:
        """Raise an error unless the broker of a queue has a master."""
        try:
            self._session.master_of(queue.broker_name)
        except NoSuchError as error:
            raise no_such_queue(queue, queues) from error

    def _choose(
        self, queues: list[MessageQueue], order_key: str | None, avoided: str | None
    ) -> MessageQueue:
        if order_key is not None:
            return queues[abs(java_hash(order_key)) % len(queues)]
        return self._turn(queues, avoided)

    def _turn(self, queues: list[MessageQueue], avoided: str | None) -> MessageQueue:
        others = [queue for queue in queues if queue.broker_name != avoided] or queues
        return others[next(self._round_robin) % len(others)]
