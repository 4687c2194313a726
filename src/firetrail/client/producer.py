"""The producer: sends messages, and knows what became of its transactions."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from itertools import count
from typing import Self

from firetrail.client.received import Received
from firetrail.client.sending import (
    AUTO_CREATE_TOPIC,
    DEFAULT_QUEUES,
    Draft,
    SendResult,
    batch_of,
    draft_of,
    result_of,
    unique_ids,
)
from firetrail.client.session import Session, queues_of
from firetrail.errors import RequestError
from firetrail.format.ids import decode_message_id
from firetrail.format.javahash import java_hash
from firetrail.format.kernels.draft import Message
from firetrail.format.layout import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from firetrail.format.record import decode_message
from firetrail.remoting.answering import Handler
from firetrail.remoting.bodies import HeartbeatData, MessageQueue, ProducerData
from firetrail.remoting.codes import Language, Permission, RequestCode, ResponseCode
from firetrail.remoting.command import Command
from firetrail.remoting.connection import Connection
from firetrail.remoting.headers import CheckTransactionHeader, EndTransactionHeader

RETRIED = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)
"""What another broker may do better."""


class Outcome(IntEnum):
    """What became of a transaction."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NONE
    """The broker asks again later."""


Decide = Callable[[Message], Outcome | Awaitable[Outcome]]
Check = Callable[[Received], Outcome | Awaitable[Outcome]]


class Producer:
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
        self.group = group
        self._retries = retries
        self._timeout_s = timeout_s
        self._check = check
        handlers: dict[int, Handler] = {RequestCode.CHECK_TRANSACTION_STATE: self._checked}
        self._session = Session(namesrv, handlers)
        self._turns = count(random.randrange(1 << 16))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Find the cluster."""
        await self._session.open()
        ip = self._session.client_id.partition("@")[0]
        self._ids = unique_ids(ip, os.getpid(), random.getrandbits(32))
        me = HeartbeatData(self._session.client_id, [ProducerData(self.group)])
        self._session.beat(lambda: me)

    async def close(self) -> None:
        """Leave."""
        await self._session.close()

    # -- sending ------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, order_key: str | None = None
    ) -> SendResult:
        """Send a message, and wait until it is stored.

        To a queue of the topic, or to the one that is always the same for ``order_key`` (as long as
        the topic has as many queues), or to each queue in turn. RequestError if no broker takes it;
        OSError or TimeoutError if none answers.
        """
        return await self._send(draft_of(message, self._ids), queue, order_key)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic at once; they are stored one behind the other, or not."""
        return await self._send(batch_of(messages, self._ids), queue, None)

    async def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message and hope for the best."""
        draft = draft_of(message, self._ids)
        queues = await self.queues(draft.topic)
        target = queue or self._turn(queues, None)
        address = self._session.address_of(target.broker_name)
        header = draft.header(self.group, target.queue_id)
        await self._session.tell(address, RequestCode.SEND_MESSAGE_V2, header, draft.body)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that take messages; of one that is yet to be made, those to be."""
        try:
            route = await self._session.route(topic)
        except RequestError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
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
        self, draft: Draft, queue: MessageQueue | None, order_key: str | None
    ) -> SendResult:
        code = RequestCode.SEND_BATCH_MESSAGE if draft.batch else RequestCode.SEND_MESSAGE_V2
        avoided: str | None = None
        for attempt in range(self._retries + 1):
            queues = await self.queues(draft.topic)
            target = queue or self._choose(queues, order_key, avoided)
            try:
                address = self._session.address_of(target.broker_name)
                response = await self._session.request(
                    address,
                    code,
                    draft.header(self.group, target.queue_id),
                    draft.body,
                    self._timeout_s,
                )
                return result_of(draft, target, response)
            except (OSError, TimeoutError, RequestError) as error:
                refused = isinstance(error, RequestError) and error.code not in RETRIED
                if refused or attempt == self._retries:
                    raise
                avoided = target.broker_name
                self._session.forget_route(draft.topic)
        raise AssertionError("the last attempt returns or raises")

    def _choose(
        self, queues: list[MessageQueue], order_key: str | None, avoided: str | None
    ) -> MessageQueue:
        if order_key is not None:
            return queues[abs(java_hash(order_key)) % len(queues)]
        return self._turn(queues, avoided)

    def _turn(self, queues: list[MessageQueue], avoided: str | None) -> MessageQueue:
        others = [queue for queue in queues if queue.broker_name != avoided] or queues
        return others[next(self._turns) % len(others)]

    # -- transactions -------------------------------------------------------------------------

    async def send_in_transaction(self, message: Message, decide: Decide) -> SendResult:
        """Send a message that consumers see only if ``decide``, called in between, commits it.

        If ``decide`` fails, or the process does, the broker asks ``check`` later.
        """
        if message.delay_level:
            what = "messages of transactions are not delayed; set delay_level to 0"
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, what)
        draft = draft_of(message, self._ids, self.group)
        result = await self._send(draft, None, None)
        outcome = Outcome.UNKNOWN
        try:
            decided = decide(message)
            outcome = await decided if inspect.isawaitable(decided) else decided
        finally:
            address = self._session.address_of(result.queue.broker_name)
            header = self._end(result, draft, outcome)
            await self._session.tell(address, RequestCode.END_TRANSACTION, header)
        return result

    def _end(self, result: SendResult, draft: Draft, outcome: Outcome) -> EndTransactionHeader:
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
        record = decode_message(request.content)
        outcome = Outcome.UNKNOWN
        if self._check is not None:
            decided = self._check(Received(MessageQueue(record.topic, "", record.queue_id), record))
            outcome = await decided if inspect.isawaitable(decided) else decided
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
