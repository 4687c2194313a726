"""The producer: sends messages, and knows what became of its transactions."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import uuid
from asyncio import sleep as pause
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import IntEnum
from itertools import count
from typing import NamedTuple

from firetrail.client.arguments import checked_group, checked_queue
from firetrail.client.cluster_client import ClusterClient, finished_by_close
from firetrail.client.compression import inflated
from firetrail.client.received import Received
from firetrail.client.send import (
    DEFAULT_QUEUES,
    OutgoingMessage,
    SendResult,
    batch_of,
    check_body,
    check_frame,
    check_queue,
    draft_of,
    encoded,
    result_of,
    unique_ids,
)
from firetrail.client.session import queues_of
from firetrail.client.turns import Turns
from firetrail.errors import ConfigError, NoRouteYetError, RequestError
from firetrail.format.arguments import MS, function, instance, number, seconds, text
from firetrail.format.ids import decode_message_id
from firetrail.format.javahash import java_hash
from firetrail.format.kernels.draft import Message
from firetrail.format.layout import (
    COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from firetrail.format.names import AUTO_CREATE_TOPIC, check_topic, reply_topic
from firetrail.format.properties import (
    CORRELATION_ID,
    MSG_TYPE,
    PGROUP,
    REPLY_TO_CLIENT,
    TRAN_MSG,
    TTL,
    decode_properties,
)
from firetrail.format.record import decode_received
from firetrail.remoting.bodies import HeartbeatData, MessageQueue, ProducerData
from firetrail.remoting.client import is_cancelled
from firetrail.remoting.codes import Language, Permission, RequestCode, ResponseCode
from firetrail.remoting.command import Command
from firetrail.remoting.connection import Connection
from firetrail.remoting.handlers import Handler
from firetrail.remoting.headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    PushReplyHeader,
)

OF_ONE_BROKER = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})
"""Refusals that another broker may not share."""
BUSY_S = 0.2
"""How long a cluster that is too busy is left alone at first; twice as long the next time."""


_log = logging.getLogger(__name__)


class Reply(NamedTuple):
    """What the consumer of a request has replied."""

    body: bytes
    properties: dict[str, str]


class Outcome(IntEnum):
    """What became of a transaction."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NONE
    """The broker asks again later."""


Decide = Callable[[Message], Outcome | Awaitable[Outcome]]
Check = Callable[[Received], Outcome | Awaitable[Outcome]]


async def _decided(who: str, outcome: Outcome | Awaitable[Outcome]) -> Outcome:
    """What a function of the user has decided about a transaction, or ConfigError."""
    decided = await outcome if inspect.isawaitable(outcome) else outcome
    if not isinstance(decided, Outcome):
        allowed = "expected Outcome.COMMIT, Outcome.ROLLBACK or Outcome.UNKNOWN"
        raise ConfigError(f"what {who} returned", decided, allowed)
    return decided


class Producer(ClusterClient):
    """Sends messages to the brokers of a cluster::

        async with Producer("127.0.0.1:9876", "orders") as producer:
            await producer.send(Message("T", b"hello"))

    ``retries`` is how often a message is sent again, to another broker if there is one, when one
    did not take it or did not answer in ``timeout_s``; so a message may be stored twice. ``check``
    says what became of a transaction when a broker asks.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str = "FIRETRAIL_PRODUCER",
        *,
        retries: int = 2,
        timeout_s: float = 3.0,
        check: Check | None = None,
    ) -> None:
        handlers: dict[int, Handler] = {
            RequestCode.CHECK_TRANSACTION_STATE: self._checked,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._replied,
        }
        super().__init__(namesrv, handlers)
        self.group = checked_group(group)
        self._retries = number("retries", retries)
        self._timeout_s = seconds("timeout_s", timeout_s, MS)
        if check is not None:
            function("check", check, "def check(message)")
        self._check = check
        self._ids: Iterator[str]
        self._asked: dict[str, asyncio.Future[Reply]] = {}
        self._ordered = Turns()
        self._next = count(random.randrange(1 << 16))

    async def _join(self) -> None:
        ip = self._session.client_id.partition("@")[0]
        self._ids = unique_ids(ip, os.getpid(), random.getrandbits(32))
        me = HeartbeatData(self._session.client_id, [ProducerData(self.group)])
        self._session.beat(lambda: me)

    # -- sending ------------------------------------------------------------------------------

    @finished_by_close
    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> SendResult:
        """Send a message, and wait until it is stored.

        To a queue of the topic, or to the one that is always the same for ``order_key`` (as long as
        the topic has as many queues), or to each queue in turn. Messages of a topic with the same
        ``order_key`` are sent one after the other, in the order of the calls.

        RequestError if no broker takes it; OSError or TimeoutError if none answers. If this is
        cancelled, or ends with ClientClosedError because the producer was closed, the message may
        have been stored, or may still be.
        """
        self._session.check_open()
        if queue is not None and order_key is not None:
            raise ConfigError("order_key", order_key, "chooses a queue; leave queue out")
        if order_key is not None:
            instance("order_key", order_key, str)
        draft = draft_of(message, self._ids, queue)
        if order_key is None:
            return await self._send(draft, queue, None)
        async with self._ordered.turn((message.topic, order_key)):
            return await self._send(draft, None, order_key)

    @finished_by_close
    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic at once; they are stored one behind the other, or not."""
        self._session.check_open()
        draft = batch_of(messages, self._ids, queue)
        return await self._send(draft, queue, None, RequestCode.SEND_BATCH_MESSAGE)

    @finished_by_close
    async def send_encoded(
        self, topic: str, items: bytes, *, queue: MessageQueue, sys_flag: int = 0
    ) -> SendResult:
        """Send what :func:`firetrail.format.batch.encode_batch` makes, to a queue of the topic."""
        self._session.check_open()
        check_topic(text("topic", topic))
        check_queue(checked_queue(queue), topic)
        draft = encoded(topic, items, sys_flag)
        code = RequestCode.SEND_BATCH_MESSAGE if draft.batch else RequestCode.SEND_MESSAGE_V2
        return await self._send(draft, queue, None, code)

    @finished_by_close
    async def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message and hope for the best."""
        self._session.check_open()
        draft = draft_of(message, self._ids, queue)
        queues = await self.queues(draft.topic)
        target = queue or self._turn(queues, None)
        address = self._session.address_of(target.broker_name)
        code, header = RequestCode.SEND_MESSAGE_V2, draft.header(self.group, target.queue_id)
        check_frame(code, header, draft.body)
        await self._session.tell(address, code, header, draft.body)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that take messages; of one that is yet to be made, those to be."""
        try:
            route = await self._session.route(text("topic", topic))
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST or isinstance(error, NoRouteYetError):
                raise
            return await self._queues_to_be(topic, error)
        found = queues_of(topic, route, Permission.WRITE)
        if not found:
            self._session.forget_route(topic)
            what = f"topic {topic} has no queue that takes messages"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, what)
        return found

    async def _queues_to_be(self, topic: str, error: RequestError) -> list[MessageQueue]:
        try:
            route = await self._session.route(AUTO_CREATE_TOPIC)
        except RequestError:
            remedy = "create it, or let the brokers do so with autoCreateTopicEnable"
            raise RequestError(error.code, f"no broker has the topic {topic}: {remedy}") from None
        found = queues_of(topic, route, Permission.WRITE)
        return [queue for queue in found if queue.queue_id < DEFAULT_QUEUES]

    async def _send(
        self,
        draft: OutgoingMessage,
        queue: MessageQueue | None,
        order_key: str | None,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    ) -> SendResult:
        avoided: str | None = None
        for attempt in range(self._retries + 1):
            queues = await self.queues(draft.topic)
            target = queue or self._choose(queues, order_key, avoided)
            header = draft.header(self.group, target.queue_id)
            check_frame(code, header, draft.body)
            try:
                address = self._session.address_of(target.broker_name)
                response = await self._session.request(
                    address, code, header, draft.body, self._timeout_s
                )
                return result_of(draft, target, response)
            except (OSError, TimeoutError, RequestError) as error:
                refused = isinstance(error, RequestError) and not _is_retried(error)
                if refused or attempt == self._retries:
                    raise
                avoided = target.broker_name
                self._session.forget_route(draft.topic)
                if isinstance(error, RequestError) and error.code == ResponseCode.SYSTEM_BUSY:
                    await pause(BUSY_S * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("the last attempt returns or raises")

    def _choose(
        self, queues: list[MessageQueue], order_key: str | None, avoided: str | None
    ) -> MessageQueue:
        if order_key is not None:
            return queues[abs(java_hash(order_key)) % len(queues)]
        return self._turn(queues, avoided)

    def _turn(self, queues: list[MessageQueue], avoided: str | None) -> MessageQueue:
        others = [queue for queue in queues if queue.broker_name != avoided] or queues
        return others[next(self._next) % len(others)]

    # -- requests and replies -----------------------------------------------------------------

    @finished_by_close
    async def request(self, message: Message, timeout_s: float = 3.0) -> Reply:
        """Send a message, and wait for what its consumer replies. TimeoutError if it does not."""
        self._session.check_open()
        seconds("timeout_s", timeout_s, MS)
        instance("message", message, Message)
        correlation = str(uuid.uuid4())
        about = {
            CORRELATION_ID: correlation,
            REPLY_TO_CLIENT: self._session.client_id,
            TTL: str(int(timeout_s * 1000)),
        }
        replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked[correlation] = replied
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(draft_of(message, self._ids, more=about), None, None)
                return await replied
        except TimeoutError as error:
            what = str(error) or f"no reply to a message of {message.topic} within {timeout_s:g} s"
            raise TimeoutError(what) from None
        finally:
            del self._asked[correlation]

    @finished_by_close
    async def reply(self, request: Received, body: bytes) -> SendResult:
        """Reply to a request that was consumed; its producer gets it from the same broker."""
        self._session.check_open()
        instance("request", request, Received)
        check_body(body)
        properties, broker = request.properties, request.queue.broker_name
        about = {n: properties[n] for n in (CORRELATION_ID, REPLY_TO_CLIENT) if n in properties}
        if len(about) < 2:
            what = f"message {request.message_id} is no request: nobody waits for a reply"
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, what)
        route = await self._session.route(request.queue.topic)
        cluster = next(data.cluster for data in route.broker_datas if data.broker_name == broker)
        topic = reply_topic(cluster)
        queue = MessageQueue(topic, broker, 0)
        about[MSG_TYPE] = "reply"
        draft = draft_of(Message(topic, body), self._ids, queue, about)
        return await self._send(draft, queue, None, RequestCode.SEND_REPLY_MESSAGE_V2)

    def _replied(self, connection: Connection, request: Command) -> Command:
        """A broker brings a reply; one that comes too late is dropped."""
        header = PushReplyHeader.decode(request.fields)
        properties = decode_properties((header.properties or "").encode())
        waiting = self._asked.get(properties.get(CORRELATION_ID, ""))
        if waiting is not None and not waiting.done():
            body = request.content
            whole = inflated(body, header.sys_flag) if header.sys_flag & COMPRESSED else body
            waiting.set_result(Reply(whole, properties))
        return request.answer()

    # -- transactions -------------------------------------------------------------------------

    @finished_by_close
    async def send_in_transaction(self, message: Message, decide: Decide) -> SendResult:
        """Send a message that consumers see only if ``decide``, called in between, commits it.

        If ``decide`` raises, or this is cancelled before it has decided, or the process ends, the
        broker asks ``check`` later. What ``decide`` has decided is told to the broker even if this
        is cancelled then. If the producer is closed before ``decide`` has decided, ``decide`` is
        cancelled after the time that the close waits.
        """
        self._session.check_open()
        function("decide", decide, "lambda message: Outcome.COMMIT")
        if instance("message", message, Message).delay_level:
            what = "messages of transactions are not delayed; set delay_level to 0"
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, what)
        half = {TRAN_MSG: "true", PGROUP: self.group}
        draft = draft_of(message, self._ids, more=half, half=True)
        result = await self._send(draft, None, None)
        outcome = Outcome.UNKNOWN
        try:
            outcome = await _decided("decide", decide(message))
        finally:
            header = self._end(result, draft, outcome)
            address = self._session.address_of(result.queue.broker_name)
            telling = self._session.tell(address, RequestCode.END_TRANSACTION, header)
            await asyncio.shield(self._session.spawn(telling))
        return result

    def _end(
        self, result: SendResult, draft: OutgoingMessage, outcome: Outcome
    ) -> EndTransactionHeader:
        return EndTransactionHeader(
            self.group,
            result.queue_offset,
            decode_message_id(result.offset_message_id).physical_offset,
            int(outcome),
            False,
            draft.message_id,
            result.transaction_id,
            draft.topic,
        )

    async def _checked(self, connection: Connection, request: Command) -> None:
        """A broker asks what became of a transaction."""
        header = CheckTransactionHeader.decode(request.fields)
        record = decode_received(request.content)
        outcome = Outcome.UNKNOWN
        if self._check is not None:
            message = Received(MessageQueue(record.topic, "", record.queue_id), record)
            try:
                outcome = await _decided("check", self._check(message))
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                _log.warning("%s: check was cancelled; the broker asks again later", self.group)
        end = EndTransactionHeader(
            self.group,
            header.tran_state_table_offset,
            header.commit_log_offset,
            int(outcome),
            True,
            header.msg_id,
            header.transaction_id,
            record.topic,
        )
        connection.tell(
            Command(RequestCode.END_TRANSACTION, end.encode(), language=Language.PYTHON)
        )


def _is_retried(error: RequestError) -> bool:
    return error.retriable or error.code in OF_ONE_BROKER
