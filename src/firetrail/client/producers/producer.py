"""The producer: sends messages, and answers brokers that ask about its transactions."""

import asyncio
import logging
import os
import random
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from firetrail.client.cluster.client_arguments import checked_group, checked_queue
from firetrail.client.cluster.cluster_client import ClusterClient, finished_by_close
from firetrail.client.messages.received_message import Received
from firetrail.client.messages.send_requests import (
    SEND_S,
    SendResult,
    SendStatus,
    batch_of,
    check_body,
    check_queue,
    draft_of,
    encoded,
    unique_ids,
)
from firetrail.client.producers.delivery_time import delivery_properties
from firetrail.client.producers.keyed_lock import KeyedLock
from firetrail.client.producers.message_sender import MessageSender
from firetrail.client.producers.transaction_outcome import (
    Decide,
    Outcome,
    TransactionCheck,
    checked_header,
    decided,
    end_header,
)
from firetrail.errors import ConfigError, FormatError, NoAnswerError, RequestError
from firetrail.format.compression import inflated
from firetrail.format.kernels.draft import Message
from firetrail.format.layout import COMPRESSED
from firetrail.format.message_types import is_delayed
from firetrail.format.names import check_topic, reply_topic
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
from firetrail.format.values.arguments import MS, function, instance, number, seconds, text
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import is_cancelled
from firetrail.remoting.messages.bodies import HeartbeatData, MessageQueue, ProducerData
from firetrail.remoting.messages.headers import CheckTransactionHeader, PushReplyHeader
from firetrail.remoting.wire.codes import Language, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

_UNCHECKED = (
    "this producer has no check function that could tell the broker the outcome later; return "
    "COMMIT or ROLLBACK, or create the producer with check=. The message stays invisible until "
    "another producer of the group answers, or the broker gives up asking"
)

_log = logging.getLogger(__name__)


class Reply(NamedTuple):
    """The reply of a consumer to a request."""

    body: bytes
    """The body, decompressed."""
    properties: dict[str, str]
    """The properties of the reply message."""


class Producer(ClusterClient):
    """Sends messages to the brokers of a cluster::

        async with Producer("127.0.0.1:9876", "orders") as producer:
            await producer.send(Message("T", b"hello"))

    Args:
        namesrv: The address ``host:port`` of a name server, or several: a sequence, or a string
            that separates them by ``;``.
        group: The name of the producer group. Brokers ask any member of the group about the
            outcome of its transactions. Default: ``FIRETRAIL_PRODUCER``.
        retries: Maximum repetitions of a send, on another broker if there is one, after a broker
            rejected it with a retriable error, lost the connection or did not answer within
            ``timeout_s``. The message is stored twice if the first broker had stored it.
            Default: 2.
        timeout_s: The time limit for the answer to one attempt, in seconds. It should be longer
            than brokers wait for their disks and replicas (``syncFlushTimeout`` +
            ``slaveTimeout``): an attempt that ends earlier is repeated, although the message is
            stored. While no broker can be reached, for example because the only one restarts, an
            attempt waits for one, for at most the same time. Default: 10, because the defaults of
            these settings are 5 s and 3 s.
        check: The function, plain or async, that returns the outcome of a transaction when a
            broker asks for it. Without it (the default) no transaction can be left unknown, and
            the outcome of one whose process ended stays unknown until the broker gives up asking.
        access: Credentials and TLS. Default: those in the environment
            (:mod:`firetrail.remoting.connections.access`).

    Raises:
        ConfigError: An argument is out of range; WrongTypeError if it has the wrong type.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str = "FIRETRAIL_PRODUCER",
        *,
        retries: int = 2,
        timeout_s: float = SEND_S,
        check: TransactionCheck | None = None,
        access: Access | None = None,
    ) -> None:
        handlers: dict[int, Handler] = {
            RequestCode.CHECK_TRANSACTION_STATE: self._answer_check,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._accept_reply,
        }
        super().__init__(namesrv, handlers, access)
        self.group = checked_group(group)
        self._sender = MessageSender(
            self._session, group, number("retries", retries), seconds("timeout_s", timeout_s, MS)
        )
        if check is not None:
            function("check", check, "def check(message)")
        self._check = check
        self._ids: Iterator[str]
        self._requests: dict[str, asyncio.Future[Reply | FormatError]] = {}  # by correlation id
        self._ordered = KeyedLock()

    async def _join(self) -> None:
        ip = self._session.client_id.partition("@")[0]
        self._ids = unique_ids(ip, os.getpid(), random.getrandbits(32))
        me = HeartbeatData(self._session.client_id, [ProducerData(self.group)])
        # A broker asks about transactions only producers that it knows, also idle ones.
        self._session.beat(lambda: me, everywhere=self._check is not None)

    # -- sending ------------------------------------------------------------------------------

    @finished_by_close
    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        deliver_at: datetime | timedelta | int | None = None,
    ) -> SendResult:
        """Send a message, and wait until a broker has stored it.

        If this call is cancelled, or raises ClientClosedError because the producer was closed, the
        message may already be stored, or may still be stored later.

        Args:
            message: The message to send.
            queue: The queue to send to. Default: all queues of the topic in turn.
            order_key: Messages of a topic with equal keys go to the same queue (as long as the
                number of queues stays the same), in the order of the calls. Excludes ``queue``.
            deliver_at: When consumers receive the message: a datetime (local time if it has no
                time zone), a timedelta from now, or a number of ms since 1970. A time in the past
                means now. Brokers before 5.0 ignore it. Default: now, or as the ``delay_level`` of
                the message says.

        Returns:
            Where the message is stored, and how safely. A message that waits for its delivery time
            has a ``recall_handle``.

        Raises:
            IllegalMessageError: The message cannot be sent; the error names the field.
            RequestError: No broker accepted the message.
            OSError: No broker could be reached, or none answered in time (TimeoutError).
            ClientClosedError: The producer is not open, or was closed during the call.
        """
        self._session.check_open()
        if queue is not None and order_key is not None:
            raise ConfigError("order_key", order_key, "chooses a queue; leave queue out")
        if order_key is not None:
            instance("order_key", order_key, str)
        instance("message", message, Message)
        about = None if deliver_at is None else delivery_properties(message, deliver_at)
        draft = draft_of(message, self._ids, queue, about)
        if order_key is None:
            return await self._sender.send(draft, queue)
        async with self._ordered.turn((message.topic, order_key)):
            return await self._sender.send(draft, order_key=order_key)

    @finished_by_close
    async def recall(self, sent: SendResult | str) -> str:
        """Recall a message that waits for its delivery time, so that no consumer receives it.

        The broker stores the recall, and answers in the same way if the message was recalled
        before. It cannot be recalled in the last second, or once it is due.

        Args:
            sent: The result of the send, or its ``recall_handle``. Another producer may recall a
                message, too.

        Returns:
            The id of the message.

        Raises:
            ConfigError: The message has no handle, because it did not wait.
            FormatError: The text is not a handle.
            RequestError: The broker refuses the recall: the message is due, or the broker does not
                allow recalls (``recallMessageEnable``; Java brokers do not by default).
            OSError, ClientClosedError: As in :meth:`send`.
        """
        self._session.check_open()
        handle = sent.recall_handle if isinstance(sent, SendResult) else text("sent", sent)
        if handle is None:
            what = "has no recall handle: it was sent without a delivery time, or was due"
            raise ConfigError("sent", sent, what)
        return await self._sender.recall(handle)

    @finished_by_close
    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic in one request; they are stored contiguously, or not at all.

        Args:
            messages: Messages of the same topic and ``born_time``, none of them delayed.
            queue: The queue to send to. Default: all queues of the topic in turn.

        Returns:
            Where the first of the messages is stored, and the ids of all of them.

        Raises:
            The same errors as :meth:`send`.
        """
        self._session.check_open()
        draft = batch_of(messages, self._ids, queue)
        return await self._sender.send(draft, queue, code=RequestCode.SEND_BATCH_MESSAGE)

    @finished_by_close
    async def send_encoded(
        self, topic: str, items: bytes, *, queue: MessageQueue, sys_flag: int = 0
    ) -> SendResult:
        """Send messages that :func:`firetrail.format.batch.encode_batch` has encoded.

        Args:
            topic: The topic of all the messages.
            items: The encoded messages. They get no ids from this client.
            queue: The queue to send to.
            sys_flag: RocketMQ's flags, for example for a compressed body; only a single message
                can be compressed. Default: 0.

        Raises:
            The same errors as :meth:`send`.
        """
        self._session.check_open()
        check_topic(text("topic", topic))
        check_queue(checked_queue(queue), topic)
        draft = encoded(topic, items, sys_flag)
        code = RequestCode.SEND_BATCH_MESSAGE if draft.batch else RequestCode.SEND_MESSAGE_V2
        return await self._sender.send(draft, queue, code=code)

    @finished_by_close
    async def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without waiting for an answer, so a lost message goes unnoticed.

        Args:
            message: The message to send.
            queue: The queue to send to. Default: all queues of the topic in turn.

        Raises:
            IllegalMessageError: The message cannot be sent; the error names the field.
            NoSuchError: The broker of ``queue`` is unknown.
            RequestError: The topic does not exist and cannot be created, or has no writable queue.
            OSError: The name server or the broker could not be reached.
            ClientClosedError: The producer is not open, or was closed during the call.
        """
        self._session.check_open()
        draft = draft_of(message, self._ids, queue)
        await self._sender.tell(draft, queue)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic.

        If the topic does not exist but brokers create topics on demand, the result is the queues
        that it will have.

        Args:
            topic: The name of the topic.

        Raises:
            NotRegisteredError: No master of the topic's brokers is registered at the moment.
            RequestError: The topic does not exist and cannot be created, or has no writable queue.
        """
        return await self._sender.queues(text("topic", topic))

    # -- requests and replies -----------------------------------------------------------------

    @finished_by_close
    async def request(self, message: Message, timeout_s: float = 3.0) -> Reply:
        """Send a message, and wait for the reply of its consumer (:meth:`reply`).

        Args:
            message: The message to send.
            timeout_s: The time limit for the send and the reply together, in seconds. Default: 3.

        Returns:
            The body and the properties of the reply.

        Raises:
            TimeoutError: There was no reply within ``timeout_s``.
            FormatError: The body of the reply cannot be decompressed.
            RequestError, OSError, ClientClosedError: As in :meth:`send`.
        """
        self._session.check_open()
        seconds("timeout_s", timeout_s, MS)
        instance("message", message, Message)
        correlation = str(uuid.uuid4())
        about = {
            CORRELATION_ID: correlation,
            REPLY_TO_CLIENT: self._session.client_id,
            TTL: str(int(timeout_s * 1000)),
        }
        replied: asyncio.Future[Reply | FormatError] = asyncio.get_running_loop().create_future()
        self._requests[correlation] = replied
        try:
            async with asyncio.timeout(timeout_s):
                await self._sender.send(draft_of(message, self._ids, more=about))
                reply = await replied
        except TimeoutError as error:
            what = str(error) or f"no reply to a message of {message.topic} within {timeout_s:g} s"
            raise NoAnswerError(what) from None
        finally:
            del self._requests[correlation]
        if isinstance(reply, FormatError):
            what = f"the compressed body of the reply to a message of {message.topic}"
            raise FormatError(what, reply.offset, reply.detail)
        return reply

    @finished_by_close
    async def reply(self, request: Received, body: bytes) -> SendResult:
        """Reply to a request that was consumed; the same broker passes the reply to its producer.

        Args:
            request: The message that a consumer got and that :meth:`request` sent.
            body: The body of the reply.

        Raises:
            RequestError: ``request`` was not sent by :meth:`request`, so no producer is waiting.
            OSError, ClientClosedError: As in :meth:`send`.
        """
        self._session.check_open()
        instance("request", request, Received)
        check_body(body)
        properties, broker = request.properties, request.queue.broker_name
        about = {n: properties[n] for n in (CORRELATION_ID, REPLY_TO_CLIENT) if n in properties}
        if len(about) < 2:
            what = (
                f"message {request.message_id} is not a request: no producer is waiting for a "
                "reply; send it with request()"
            )
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, what)
        route = await self._session.route(request.queue.topic)
        cluster = next(data.cluster for data in route.broker_datas if data.broker_name == broker)
        topic = reply_topic(cluster)
        queue = MessageQueue(topic, broker, 0)
        about[MSG_TYPE] = "reply"
        draft = draft_of(Message(topic, body), self._ids, queue, about)
        return await self._sender.send(draft, queue, code=RequestCode.SEND_REPLY_MESSAGE_V2)

    def _accept_reply(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Accept a reply that a broker pushes; drop it if the request has timed out.

        One that cannot be decompressed is accepted, too: sending it again would not help.
        """
        header = PushReplyHeader.decode(request.fields)
        properties = decode_properties((header.properties or "").encode())
        waiting = self._requests.get(properties.get(CORRELATION_ID, ""))
        if waiting is not None and not waiting.done():
            body = request.content
            try:
                whole = inflated(body, header.sys_flag) if header.sys_flag & COMPRESSED else body
                waiting.set_result(Reply(whole, properties))
            except FormatError as error:
                waiting.set_result(error)
        return request.answer()

    # -- transactions -------------------------------------------------------------------------

    @finished_by_close
    async def send_in_transaction(self, message: Message, decide: Decide) -> SendResult:
        """Send a message that consumers see only if ``decide`` commits it.

        The broker stores the message as a half message, then ``decide`` is called. If the message
        is not stored safely (its status is not OK), the transaction is rolled back instead, as the
        Java client does, because a failover of the broker could lose it. If ``decide``
        raises, the call is cancelled before it returns, or the process ends, the broker asks
        ``check`` later. Once ``decide`` has returned, the outcome is sent to the broker even if
        the call is cancelled. If the producer is closed before ``decide`` returns, ``decide`` is
        cancelled after the grace period of the close.

        Args:
            message: The message to send; it must not be delayed.
            decide: The function, plain or async, that gets the message and returns its Outcome.
                It may return ``Outcome.UNKNOWN`` only if the producer has a ``check`` function.

        Raises:
            ConfigError: ``decide`` returned something else than an Outcome, or UNKNOWN although
                this producer has no ``check``. The half message is stored.
            RequestError: No broker accepted the message, or it is delayed.
            OSError, ClientClosedError: As in :meth:`send`.
        """
        self._session.check_open()
        function("decide", decide, "lambda message: Outcome.COMMIT")
        if is_delayed(decode_properties(instance("message", message, Message).encode_properties())):
            what = "messages of a transaction cannot be delayed; remove delay_level and TIMER_*"
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, what)
        half = {TRAN_MSG: "true", PGROUP: self.group}
        draft = draft_of(message, self._ids, more=half, half=True)
        result = await self._sender.send(draft)
        stored_safely = result.status is SendStatus.OK
        outcome = Outcome.UNKNOWN if stored_safely else Outcome.ROLLBACK
        try:
            if stored_safely:
                outcome = await decided("decide", decide(message))
            if outcome is Outcome.UNKNOWN and self._check is None:
                raise ConfigError("the return value of decide", outcome, _UNCHECKED)
        finally:
            header = end_header(self.group, draft, result, outcome)
            ending = self._sender.tell_master(result.queue, RequestCode.END_TRANSACTION, header)
            await asyncio.shield(self._session.spawn(ending))
        return result

    async def _answer_check(self, connection: Connection, request: RemotingCommand) -> None:
        """Answer a broker that asks for the outcome of a transaction."""
        header = CheckTransactionHeader.decode(request.fields)
        record = decode_received(request.content)
        outcome = Outcome.UNKNOWN
        if self._check is not None:
            message = Received(MessageQueue(record.topic, "", record.queue_id), record)
            try:
                outcome = await decided("check", self._check(message))
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                _log.warning("%s: check was cancelled; the broker asks again later", self.group)
        end = checked_header(self.group, header, record.topic, outcome)
        connection.tell(
            RemotingCommand(RequestCode.END_TRANSACTION, end.encode(), language=Language.PYTHON)
        )
