"""Transactions: messages that nobody sees until their producer commits them.

A half message waits in a topic of its own. Commit puts it where it belongs, commit and rollback
alike note its end in another topic. Who says neither is asked; for each question the half message
is stored again, behind the others, with the number of questions, so that the oldest open one is
never far back. The topics, and the offsets in them, are those of RocketMQ's broker.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field

from firetrail.broker.clients import Client, Clients
from firetrail.broker.config import BrokerConfig
from firetrail.broker.copying import copied
from firetrail.broker.offsets import OffsetTable
from firetrail.broker.own_records import own_records
from firetrail.broker.topics import CHECKED_OFTEN_TOPIC, HALF_TOPIC, OP_TOPIC, TopicTable
from firetrail.errors import IllegalMessageError, RequestError, StoreDamagedError
from firetrail.format import layout
from firetrail.format.ids import decode_message_id, encode_message_id
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import (
    CHECK_IMMUNITY_TIME,
    DELAY,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    replace_properties,
    without_crc,
)
from firetrail.format.record import Record, encode_record
from firetrail.remoting.admin_headers import MessageIdHeader
from firetrail.remoting.answering import Handler
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.command import Command
from firetrail.remoting.connection import Connection
from firetrail.remoting.headers import CheckTransactionHeader, EndTransactionHeader
from firetrail.store.results import PutResult
from firetrail.store.served import ServedStore

GROUP = "CID_RMQ_SYS_TRANS"
"""The group whose offsets say how far half and end topic are done with."""
ENDED = "d"
"""Tag of the messages that note the end of half messages."""
QUEUE = 0
AT_ONCE = 64
"""Half messages that are looked at before others get their turn."""

Identity = tuple[str, str]
"""Producer group and unique key."""
_NUMBER = re.compile("[0-9]{1,9}")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Half:
    """A half message that is open."""

    offset: int
    physical_offset: int
    store_time: int
    checks: int = 0
    earlier: list[int] = field(default_factory=list)
    """Offsets under which it was stored before it was asked for."""
    ending: asyncio.Task[None] | None = None
    """What stores its end at the moment."""


class Transactions:
    """Half messages from begin to end."""

    def __init__(
        self,
        store: ServedStore,
        topics: TopicTable,
        offsets: OffsetTable,
        clients: Clients,
        config: BrokerConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._config = config
        self._now_ms = now_ms
        self._open: dict[int, Half] = {}
        self._loaded: dict[Identity | None, Half] = {}  # open at the start, and asked for before
        self._next = 0  # half messages before it are in _open, or have ended
        self.handlers: dict[int, Handler] = {
            RequestCode.END_TRANSACTION: self._end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._resume,
        }

    # -- begin --------------------------------------------------------------------------------

    def half(self, message: Message) -> Message:
        """The half message that is stored for a message."""
        if self._config.reject_transactions:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.name}] sending transaction message is forbidden",
            )
        changes = {REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id), DELAY: None}
        return Message(
            HALF_TOPIC,
            message.body,
            queue_id=QUEUE,
            flag=message.flag,
            sys_flag=message.sys_flag & ~layout.TRANSACTION_MASK,
            born_time=message.born_time,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            raw_properties=replace_properties(message.raw_properties or b"", changes),
            wait_for_flush=message.wait_for_flush,
        )

    def begun(self, place: PutResult) -> None:
        """A half message was stored."""
        self._remember(Half(place.queue_offset, place.physical_offset, place.store_time))

    # -- end ----------------------------------------------------------------------------------

    async def _end(self, connection: Connection, request: Command) -> Command:
        header = EndTransactionHeader.decode(request.fields)
        decision = header.commit_or_rollback
        if decision not in (layout.TRANSACTION_COMMIT, layout.TRANSACTION_ROLLBACK):
            return request.answer()  # the producer does not know yet, and is asked again
        record = self._asked_for(header)
        half = self._open.get(header.tran_state_table_offset) or self._stored_again(record)
        if half is None:
            return request.answer()  # it has ended already
        if half.ending is None:
            commits = decision == layout.TRANSACTION_COMMIT
            work = self._store_end(half, _committed(record) if commits else None)
            half.ending = asyncio.get_running_loop().create_task(work)
        await asyncio.shield(half.ending)  # who says it again waits for the same end
        return request.answer()

    def _stored_again(self, record: Record) -> Half | None:
        """What is open of a half message that was asked for before a start, under other offsets."""
        half = self._loaded.get(_identity(record))
        if half is None or half.offset not in self._open or half.offset < record.queue_offset:
            return None
        return half

    async def _store_end(self, half: Half, committed: Message | None) -> None:
        try:
            if committed is not None:
                await self._put(committed)
            await self._put(self._end_mark(half.offset))
            self._forget(half)
        finally:
            half.ending = None

    def _asked_for(self, header: EndTransactionHeader) -> Record:
        record = self._store.at(header.commit_log_offset)
        if record is None or record.topic != HALF_TOPIC:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"no prepared message at offset {header.commit_log_offset} of the log",
            )
        if record.properties.get(PGROUP) != header.producer_group:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != header.tran_state_table_offset:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the prepared message has another queue offset than "
                f"{header.tran_state_table_offset}",
            )
        return record

    async def _resume(self, connection: Connection, request: Command) -> Command:
        """Ask for a message again that was given up."""
        message_id = MessageIdHeader.decode(request.fields).msg_id
        record = self._store.at(decode_message_id(message_id).physical_offset)
        if record is None or record.topic != CHECKED_OFTEN_TOPIC:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"no message {message_id:.64} among those in {CHECKED_OFTEN_TOPIC}",
            )
        properties = replace_properties(record.raw_properties, {TRANSACTION_CHECK_TIMES: "0"})
        self.begun(await self._put(_copy(record, HALF_TOPIC, properties)))
        return request.answer()

    def _end_mark(self, offset: int) -> Message:
        return Message(OP_TOPIC, b"%d" % offset, tags=ENDED, queue_id=QUEUE)

    async def _put(self, message: Message) -> PutResult:
        result = self._store.begin_put(message)
        if isinstance(result, Coroutine):
            result = await result
        return result.require_ok()

    def _remember(self, half: Half) -> None:
        for offset in (half.offset, *half.earlier):
            self._open[offset] = half
        self._next = max(self._next, half.offset + 1)

    def _forget(self, half: Half) -> None:
        for offset in (half.offset, *half.earlier):
            self._open.pop(offset, None)

    # -- what is open -------------------------------------------------------------------------

    def load(self) -> None:
        """Find the half messages that are open, after a start."""
        self._next = self._progress(HALF_TOPIC)
        newest: dict[Identity | None, Half] = {}
        for record in self._messages(HALF_TOPIC, self._next):
            checks = _number(record, TRANSACTION_CHECK_TIMES) or 0
            half = Half(record.queue_offset, record.physical_offset, record.store_time, checks)
            identity = _identity(record)
            older = newest.get(identity)
            # Stored again to be asked for; a crash may have come before the older one's end mark.
            if older is not None and checks == older.checks + 1:
                half.earlier = [*older.earlier, older.offset]
            if identity is not None:
                newest[identity] = half
            self._remember(half)
        for mark in self._messages(OP_TOPIC, self._progress(OP_TOPIC)):
            for word in mark.body.split(b","):
                if word.strip().isdigit():
                    self._ended(int(word))
        self._loaded = {
            identity: half
            for identity, half in newest.items()
            if half.checks and half.offset in self._open
        }

    def _ended(self, offset: int) -> None:
        """An end mark names the offset: all of it has ended, or was stored again behind it."""
        half = self._open.pop(offset, None)
        if half is not None and half.offset == offset:
            self._forget(half)

    def _progress(self, topic: str) -> int:
        first = self._store.min_offset(topic, QUEUE)
        known = self._offsets.get(GROUP, topic, QUEUE)
        return max(first, known or 0)

    def _messages(self, topic: str, offset: int) -> Iterator[Record]:
        return own_records(self._store, topic, QUEUE, offset)

    # -- questions ----------------------------------------------------------------------------

    async def check(self) -> None:
        """Ask for the half messages that are old enough, and save how far all have ended."""
        now = self._now_ms()
        for number, half in enumerate(sorted(self._halves(), key=lambda half: half.offset)):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            if half.offset not in self._open or half.ending is not None:
                continue  # it has ended meanwhile, or is about to
            record = self._stored(half)
            half.store_time = min(half.store_time, now)  # if the clock was set back
            if record is None:
                self._forget(half)
            elif now - half.store_time >= self._patience(record):
                await self._ask(half, record)
        self._save_progress()

    def _stored(self, half: Half) -> Record | None:
        """Its record, None if retention has deleted it or, which is reported, it is damaged."""
        try:
            return self._store.stored(half.physical_offset)
        except StoreDamagedError as error:
            _log.error("a half message is damaged and given up: %s", error)
            return None

    def _halves(self) -> list[Half]:
        return list({half.offset: half for half in self._open.values()}.values())

    def _patience(self, record: Record) -> int:
        seconds = _number(record, CHECK_IMMUNITY_TIME)
        return self._config.transaction_timeout_ms if seconds is None else seconds * 1000

    async def _ask(self, half: Half, record: Record) -> None:
        try:
            half.checks += 1
            if half.checks <= self._config.transaction_check_max:
                await self._ask_again(half, record)
                return
            self._topics.ensure(CHECKED_OFTEN_TOPIC, 1)
            await self._put(_copy(record, CHECKED_OFTEN_TOPIC, record.raw_properties))
            _log.warning(
                "the half message at %d of producer group %s is given up after %d checks and moved "
                "to %s",
                record.physical_offset,
                record.properties.get(PGROUP, ""),
                self._config.transaction_check_max,
                CHECKED_OFTEN_TOPIC,
            )
        except IllegalMessageError as error:  # it never can be; those behind it have their turn
            _log.error(
                "the half message at %d cannot be stored again: %s; given up",
                record.physical_offset,
                error,
            )
        self._forget(half)
        await self._put(self._end_mark(half.offset))

    async def _ask_again(self, half: Half, record: Record) -> None:
        changes = {TRANSACTION_CHECK_TIMES: str(half.checks), CHECK_IMMUNITY_TIME: None}
        again = _copy(record, HALF_TOPIC, replace_properties(record.raw_properties, changes))
        place = await self._put(again)
        old = half.offset
        half.earlier.append(old)
        half.offset, half.physical_offset = place.queue_offset, place.physical_offset
        half.store_time = place.store_time
        self._remember(half)
        await self._put(self._end_mark(old))
        producer = next(self._clients.producers_of(record.properties.get(PGROUP, "")), None)
        stored = self._store.at(half.physical_offset)
        if producer is not None and stored is not None:
            _question(producer, stored)

    def _save_progress(self) -> None:
        """All half messages before the oldest open one have ended."""
        oldest = min((half.offset for half in self._halves()), default=self._next)
        self._offsets.commit(GROUP, HALF_TOPIC, QUEUE, oldest)
        if not self._open:
            ends = self._store.max_offset(OP_TOPIC, QUEUE)
            self._offsets.commit(GROUP, OP_TOPIC, QUEUE, ends)


def _number(record: Record, name: str) -> int | None:
    """The number in a property, None if there is none: producers may write anything there."""
    text = record.properties.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def _identity(record: Record) -> Identity | None:
    """What a half message has in common with what is stored of it again."""
    properties = record.properties
    unique = properties.get(UNIQ_KEY)
    return (properties.get(PGROUP, ""), unique) if unique else None


def _copy(record: Record, topic: str, properties: bytes) -> Message:
    return copied(record, topic, QUEUE, properties, wait_for_flush=False)


def _committed(record: Record) -> Message:
    """The message that consumers get."""
    properties = record.properties
    return copied(
        record,
        properties[REAL_TOPIC],
        int(properties[REAL_QID]),
        record.raw_properties,
        sys_flag=record.sys_flag | layout.TRANSACTION_COMMIT,
        prepared_offset=record.physical_offset,
    )


def _question(producer: Client, record: Record) -> None:
    """CHECK_TRANSACTION_STATE, with the message as its producer knows it."""
    properties = record.properties
    unique = properties.get(UNIQ_KEY)
    header = CheckTransactionHeader(
        record.queue_offset,
        record.physical_offset,
        unique,
        unique,
        encode_message_id(record.store_host, record.physical_offset),
    )
    shown = record._replace(
        topic=properties[REAL_TOPIC],
        queue_id=int(properties[REAL_QID]),
        raw_properties=without_crc(record.raw_properties),
    )
    producer.connection.tell(
        Command(RequestCode.CHECK_TRANSACTION_STATE, header.encode(), encode_record(shown))
    )
