"""Transactions: messages that consumers do not see until their producer commits them.

A half message waits in an internal topic. A commit puts the message into its real topic. Commit and
rollback both store an end mark in another internal topic. If a producer does neither, the broker
checks: it asks a producer of the group for the outcome. Before each check the half message is
stored again at the end of its topic, with the number of checks, so that a start never reads far
back. While no producer of the group is connected, there are no checks and none is
counted: the half message waits for as long as the log is kept. The topics, and the offsets in them,
are those of RocketMQ's broker.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping

from firetrail.access.implied_permissions import PUB, UPDATE, no_record, require_record, topic_need
from firetrail.auth.caller import Caller
from firetrail.broker.broker_state import BrokerState
from firetrail.broker.services.clients import Client
from firetrail.broker.stored_messages import CODES, internal_records, require_stored
from firetrail.broker.transactions.half_messages import (
    QUEUE,
    HalfMessage,
    Identity,
    ask,
    checks_of,
    committed_from,
    copy_of,
    half_at,
    identity_of,
    producer_of,
)
from firetrail.errors import IllegalMessageError, RequestError, StoreBusyError, StoreDamagedError
from firetrail.format import layout
from firetrail.format.kernels.draft import Message
from firetrail.format.properties import (
    CHECK_IMMUNITY_TIME,
    DELAY,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    replace_properties,
)
from firetrail.format.record import Record
from firetrail.format.system_topics import CHECKED_OFTEN_TOPIC, HALF_TOPIC, OP_TOPIC
from firetrail.format.values.hosts import Host
from firetrail.format.values.ids import decode_message_id, encode_message_id
from firetrail.format.values.integers import number_in
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.admin.admin_headers import MessageIdHeader
from firetrail.remoting.messages.headers import EndTransactionHeader
from firetrail.remoting.servers.fair_shares import FairShares
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.results import PutResult
from firetrail.store.retention.retention import HOUR_MS
from firetrail.text import counted

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""The group whose offsets are those before which all half messages and end marks are settled."""
ENDED = "d"
"""Tag of the end marks of half messages."""
BATCH_SIZE = 64
"""Number of half messages that are checked before the event loop runs other tasks."""
FAR_BACK = 100_000
"""A half message that waits for its producer is stored again once it is followed by this number of
half messages plus the number of open ones. This limits how much a start reads, however long a
producer is away."""

_log = logging.getLogger(__name__)


class Transactions:
    """All open half messages. Handles END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE."""

    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._offsets = state.offsets
        self._clients = state.clients
        self._live = state.live
        self._now_ms = state.system.clock.now_ms
        self._open: dict[int, HalfMessage] = {}
        self._loaded: dict[Identity | None, HalfMessage] = {}  # copies that were open at the start
        self._shares = FairShares(
            "open transactions",
            "End transactions, or raise open_transactions_max.",
            lambda: self._live.current.open_transactions_max,
            state.system.clock.monotonic,
        )
        self._next = 0  # half messages before this offset are in _open, or have ended
        self._absent: set[str] = set()  # groups without a producer in the last round of checks
        self.is_checking = False
        """Whether half messages are being checked, and may be stored again."""
        self.handlers: dict[int, Handler] = {
            RequestCode.END_TRANSACTION: self._end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._resume,
        }

    # -- begin --------------------------------------------------------------------------------

    def admit(
        self,
        properties: dict[str, str],
        topic: str,
        queue_id: int,
        host: Host | None,
        caller: Caller | None,
    ) -> tuple[str, int]:
        """Return the topic and queue of half messages, for a message that begins a transaction.

        Args:
            properties: Its properties, which this changes to those that it is stored with.
            topic: Its destination.
            queue_id: The queue of that topic.
            host: The address of the producer; None if a record cannot hold it.
            caller: The sender; None if there is no access control.

        Raises:
            RequestError: Transactions are refused, or the sender has too many.
        """
        if self._live.current.reject_transactions:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._live.current.name}] sending transaction message is forbidden",
            )
        excess = self._shares.excess(producer_of(properties, host, caller))
        if excess is not None:
            raise RequestError(ResponseCode.SYSTEM_BUSY, excess)
        properties |= {REAL_TOPIC: topic, REAL_QID: str(queue_id)}
        properties.pop(DELAY, None)
        return HALF_TOPIC, QUEUE

    def begun(
        self,
        place: PutResult,
        properties: Mapping[str, str],
        host: Host | None,
        caller: Caller | None,
    ) -> None:
        """Remember a half message that was stored.

        Args:
            place: Its place.
            properties: Its properties.
            host: The address of the producer; None if a record cannot hold it.
            caller: The sender; None if there is no access control.
        """
        holder = producer_of(properties, host, caller)
        half = half_at(place, properties, holder=holder)
        self._shares.take(holder)
        self._remember(half)

    # -- end ----------------------------------------------------------------------------------

    async def _end(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = EndTransactionHeader.decode(request.fields)
        decision = header.commit_or_rollback
        if decision not in (layout.TRANSACTION_COMMIT, layout.TRANSACTION_ROLLBACK):
            return request.answer()  # the producer does not know yet, and will be asked again
        record = self._half_record(request, header)
        half = self._open.get(header.tran_state_table_offset) or self._later_copy(record)
        if half is None:
            return request.answer()  # the transaction has ended already
        if half.ending is None:
            commits = decision == layout.TRANSACTION_COMMIT
            work = self._store_end(half, committed_from(record) if commits else None)
            half.ending = asyncio.get_running_loop().create_task(work)
        # A repeated request waits for the same task.
        end = await asyncio.shield(half.ending)
        return request.answer(CODES[end.status], end.detail or None)

    def _later_copy(self, record: Record) -> HalfMessage | None:
        """Return the open copy of a half message that was checked before the broker's start.

        The producer refers to the copy that it was sent in that check.
        """
        half = self._loaded.get(identity_of(record.properties))
        if half is None or half.offset not in self._open or half.offset < record.queue_offset:
            return None
        return half

    async def _store_end(self, half: HalfMessage, committed: Message | None) -> PutResult:
        """Store the end of a transaction; return the result of the first put that is unconfirmed.

        If all are confirmed, it is that of the last put.
        """
        try:
            place = await self._put(committed) if committed is not None else None
            marked = -1
            while half.offset != marked:  # a check may store a copy of it meanwhile
                marked = half.offset
                mark = await self._put(self._end_mark(marked))
            self._forget(half)
            return mark if place is None or place.ok else place
        finally:
            half.ending = None

    def _half_record(self, request: RemotingCommand, header: EndTransactionHeader) -> Record:
        """Return the half message that a request names; raise RequestError if there is none.

        The permission is checked first: others must not learn its group and offset.
        """
        record = self._store.embedded.at(header.commit_log_offset)
        if record is None or record.topic != HALF_TOPIC:
            detail = f"no prepared message at offset {header.commit_log_offset} of the log"
            raise no_record(request.caller, detail, PUB)
        require_record(request, record, PUB)
        if record.properties.get(PGROUP) != header.producer_group:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != header.tran_state_table_offset:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the prepared message has another queue offset than "
                f"{header.tran_state_table_offset}",
            )
        return record

    async def _resume(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Start checking a message again that was given up."""
        message_id = MessageIdHeader.decode(request.fields).msg_id
        record = self._store.embedded.at(decode_message_id(message_id).physical_offset)
        if record is None or record.topic != CHECKED_OFTEN_TOPIC:
            detail = f"there is no message {message_id:.64} in {CHECKED_OFTEN_TOPIC}"
            raise no_record(request.caller, detail, UPDATE)
        require_record(request, record, UPDATE)
        properties = replace_properties(record.raw_properties, {TRANSACTION_CHECK_TIMES: "0"})
        place = await self._put(copy_of(record, HALF_TOPIC, properties))
        self.begun(place, record.properties, record.born_host, request.caller)
        return request.answer()

    def _end_mark(self, offset: int) -> Message:
        return Message(OP_TOPIC, b"%d" % offset, tags=ENDED, queue_id=QUEUE)

    async def _put(self, message: Message) -> PutResult:
        result = self._store.writer.begin_put(message)
        if not isinstance(result, PutResult):
            result = await result
        return require_stored(result)

    def _remember(self, half: HalfMessage) -> None:
        for offset in (half.offset, *half.earlier):
            self._open[offset] = half
        self._next = max(self._next, half.offset + 1)

    def _forget(self, half: HalfMessage) -> None:
        if self._open.get(half.offset) is half:
            self._shares.give_back(half.holder)
        for offset in (half.offset, *half.earlier):
            self._open.pop(offset, None)

    # -- recovery -----------------------------------------------------------------------------

    def load(self) -> None:
        """Read the open half messages from the store, at the start of the broker."""
        self._next = self._progress(HALF_TOPIC)
        newest: dict[Identity | None, HalfMessage] = {}
        copies: set[int] = set()
        for record in self._messages(HALF_TOPIC, self._next):
            properties = record.properties
            checks = checks_of(properties)
            half = half_at(record, properties, checks or 0)
            identity = identity_of(properties)
            older = newest.get(identity)
            # Every copy has a count. A crash may have prevented the end mark of the older one.
            if older is not None and checks in (older.checks, older.checks + 1):
                half.earlier = [*older.earlier, older.offset]
            if identity is not None:
                newest[identity] = half
            if checks is not None:
                copies.add(half.offset)
            self._remember(half)
        for mark in self._messages(OP_TOPIC, self._progress(OP_TOPIC)):
            for word in mark.body.split(b","):
                offset = number_in(word.strip().decode("utf-8", "replace"), 0)
                if offset is not None:
                    self._ended(offset)
        self._loaded = {
            identity: half
            for identity, half in newest.items()
            if half.offset in copies and half.offset in self._open
        }
        for half in self._halves():
            self._shares.take(half.holder)

    def _ended(self, offset: int) -> None:
        """Apply an end mark, to the half message or only to this copy of it."""
        half = self._open.pop(offset, None)
        if half is not None and half.offset == offset:
            self._forget(half)

    def _progress(self, topic: str) -> int:
        first = self._store.queues.min_offset(topic, QUEUE)
        known = self._offsets.get(TRANSACTION_GROUP, topic, QUEUE)
        return max(first, known or 0)

    def _messages(self, topic: str, offset: int) -> Iterator[Record]:
        return internal_records(self._store, topic, QUEUE, offset)

    # -- checks -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check the half messages that are old enough; save up to where all have ended."""
        self.is_checking = True
        try:
            await self._check_all()
        finally:
            self.is_checking = False

    async def _check_all(self) -> None:
        now = self._now_ms()
        first_kept = self._store.log.min_offset
        deleted: Counter[str] = Counter()
        absent: Counter[str] = Counter()
        busy: StoreBusyError | None = None
        halves = sorted(self._halves(), key=lambda half: half.offset)
        far_back = FAR_BACK + len(halves)
        for number, half in enumerate(halves):
            if number % BATCH_SIZE == 0:
                await asyncio.sleep(0)
            if self._store.is_quiet:
                return
            if half.offset not in self._open or half.ending is not None:
                continue  # it has ended since the round began, or is about to
            half.store_time = min(half.store_time, now)  # if the clock was set back
            if half.physical_offset < first_kept:
                self._forget(half)
                deleted[half.group] += 1
            elif now - half.store_time >= self._immunity_ms(half):
                try:
                    await self._check(half, now, absent, far_back)
                except StoreBusyError as error:  # it must not block others
                    busy = error
        self._save_progress()
        self._report(deleted, absent)
        if busy is not None:
            raise busy

    def _report(self, deleted: Counter[str], absent: Counter[str]) -> None:
        """Log deleted half messages, and groups that have had no producer since this round."""
        for group, count in deleted.items():
            _log.warning(
                "%d half messages of producer group %s were deleted with old files of the log "
                "before their transactions ended; consumers will not get them",
                count,
                group,
            )
        for group in absent.keys() - self._absent:
            _log.warning(
                "producer group %s (of gRPC clients: topic %s) has %s, but no connected producer "
                "to ask for the outcome; they wait for one for %d hours (fileReservedTime)",
                group,
                group,
                counted(absent[group], "open transaction"),
                self._store.config.file_reserved_hours,
            )
        self._absent = set(absent)

    async def _check(
        self, half: HalfMessage, now: int, absent: Counter[str], far_back: int
    ) -> None:
        """Check a due half message: ask a producer, give it up, or let it wait for a producer.

        While it waits, its record is not read, unless it is too far back.
        """
        check_max = self._live.current.transaction_check_max
        kept_h = self._store.config.file_reserved_hours
        if not half.topic:
            await self._give_up(half, "without a topic and queue to deliver it to")
        elif half.checks >= check_max:
            await self._give_up(half, f"after {check_max} checks")
        elif self._producer(half) is not None:
            await self._ask(half)
        elif now - half.store_time >= kept_h * HOUR_MS:
            await self._give_up(half, f"after {kept_h} hours without a producer to ask")
        else:
            absent[half.group] += 1
            if self._next - half.offset > far_back:
                await self._store_again(half)

    def _producer(self, half: HalfMessage) -> Client | None:
        """Return a producer to ask, another one for each check: one may hang, or never answer.

        The question contains the message, so a producer that may not send to its topic is not
        asked: anybody can claim to belong to the group.
        """
        wanted = topic_need(half.topic, PUB)
        producers = [
            one
            for one in self._clients.producers_of(half.group)
            if not one.connection.is_closed and self._clients.may(one, wanted)
        ]
        return producers[half.checks % len(producers)] if producers else None

    def _stored(self, half: HalfMessage) -> Record | None:
        """Return its record, or None if it was deleted or is damaged; damage is logged."""
        try:
            return self._store.reads.stored(half.physical_offset)
        except StoreDamagedError as error:
            _log.error(
                "a half message of producer group %s is damaged and given up: %s", half.group, error
            )
            return None

    def _halves(self) -> list[HalfMessage]:
        return list({half.offset: half for half in self._open.values()}.values())

    def _immunity_ms(self, half: HalfMessage) -> int:
        own = half.immunity_ms
        return self._live.current.transaction_timeout_ms if own is None else own

    async def _give_up(self, half: HalfMessage, why: str) -> None:
        record = self._stored(half)
        if record is not None:
            self._topics.ensure(CHECKED_OFTEN_TOPIC, 1)
            try:
                place = await self._put(copy_of(record, CHECKED_OFTEN_TOPIC, record.raw_properties))
            except IllegalMessageError as error:
                self._log_refused(half, error)
            else:
                _log.warning(
                    "the half message at %d of producer group %s is given up %s and moved to %s "
                    "as message %s",
                    half.physical_offset,
                    half.group,
                    why,
                    CHECKED_OFTEN_TOPIC,
                    encode_message_id(record.store_host, place.physical_offset),
                )
        self._forget(half)
        await self._put(self._end_mark(half.offset))

    async def _ask(self, half: HalfMessage) -> None:
        """Store a half message again with one more check counted, and ask a producer."""
        half.checks += 1
        stored = await self._store_again(half)
        if stored is None:
            return
        half.store_time = stored.store_time
        producer = self._producer(half)
        if producer is None:
            half.checks -= 1  # it disconnected while the copy was stored
        else:
            half.is_known = True
            ask(producer, stored)

    async def _store_again(self, half: HalfMessage) -> Record | None:
        """Append a copy of a half message; return None if that fails and it is given up."""
        record = self._stored(half)
        if record is None:
            self._forget(half)
            return None
        changes = {TRANSACTION_CHECK_TIMES: str(half.checks), CHECK_IMMUNITY_TIME: None}
        copy = copy_of(record, HALF_TOPIC, replace_properties(record.raw_properties, changes))
        try:
            place = await self._put(copy)
        except IllegalMessageError as error:  # a retry would never help, and would block others
            self._log_refused(half, error)
            self._forget(half)
            await self._put(self._end_mark(half.offset))
            return None
        old = half.offset
        if self._open.get(old) is not half:  # the transaction has ended meanwhile
            await self._put(self._end_mark(place.queue_offset))
            return None
        if half.is_known:
            half.earlier.append(old)
        else:
            self._open.pop(old, None)
        half.is_known = False
        half.offset, half.physical_offset = place.queue_offset, place.physical_offset
        half.immunity_ms = None
        self._remember(half)
        await self._put(self._end_mark(old))
        return self._store.embedded.at(half.physical_offset)

    def _log_refused(self, half: HalfMessage, error: IllegalMessageError) -> None:
        _log.error(
            "the half message at %d of producer group %s cannot be stored again: %s; given up",
            half.physical_offset,
            half.group,
            error,
        )

    def _save_progress(self) -> None:
        """Commit the offset of the oldest open half message."""
        oldest = min((half.offset for half in self._halves()), default=self._next)
        self._offsets.keep(TRANSACTION_GROUP, HALF_TOPIC, QUEUE, oldest)
        if not self._open:
            ends = self._store.queues.max_offset(OP_TOPIC, QUEUE)
            self._offsets.keep(TRANSACTION_GROUP, OP_TOPIC, QUEUE, ends)
