"""Reads of an open store that check what they find before it is sent on."""

from contextlib import suppress
from typing import NoReturn

from firetrail.errors import FormatError, StoreBusyError, StoreDamagedError
from firetrail.format.columns import Check
from firetrail.format.light import is_light
from firetrail.format.record import Record, decode_message
from firetrail.store.dispatch.dispatcher import HELP_S
from firetrail.store.engine import Engine
from firetrail.store.integrity.damage_ledger import DamagedPlace, DamageLedger, QueueUnit
from firetrail.store.integrity.damaged_messages import DamageReports, record_damage
from firetrail.store.integrity.queue_place import contradiction, misplacement, names_light_queue
from firetrail.store.log.log_records import is_good, record_offset
from firetrail.store.queues.filter_bits import FilterBits
from firetrail.store.reads.queue_records import QueueRecords
from firetrail.store.reads.reader import TIME_MAX, QueryResult
from firetrail.store.results import GetResult, GetStatus, PutResult

SKIPPED_UNITS_MAX = 8
"""Maximum number of damaged units that one read skips; it searches the log for the record of
each."""


def _good_in_light_queue(name: str, found: GetResult) -> int | None:
    """Return how many messages come before one that does not name the light queue.

    None if all of them name it. The kernels compare the messages of other queues.
    """
    places = enumerate(found.buffers)
    return next((at for at, record in places if not names_light_queue(record, name)), None)


class CheckedReads:
    """Finds messages as stored bytes, and notes those that are damaged."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._log = engine.log
        self._live = engine.live
        self._get = engine.reader.get
        self._dispatcher = engine.dispatcher
        self._lookups = engine.lookups
        self._records = QueueRecords(engine.reader, engine.log.queue)
        self._reports = DamageReports(engine.log.queue)
        self.damage = DamageLedger(engine.live, engine.system)
        """The damaged records that were found and are not repaired."""

    def get_hashed(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        tags: frozenset[int] | None = None,
        bits: FilterBits | None = None,
    ) -> GetResult:
        """Get messages as :meth:`Store.get` does, for a caller that has hashed the tags.

        ``bits`` leaves out messages whose extended units rule them out.

        A message that cannot be delivered, because its unit points nowhere or no record begins
        there, is reported and skipped so that consumers make progress. After SKIPPED_UNITS_MAX of
        them the result is empty and its next offset is after them. A damaged record is such a
        message, unless it is being repaired: then the queue seems to end before it.
        """
        if self._dispatcher.behind and offset >= self._lookups.max_offset(topic, queue_id):
            self._dispatcher.help(HELP_S)  # an acknowledged message must be readable
        check = Check.RECORD if self._live.current.verify_reads else Check.NONE
        for _ in range(SKIPPED_UNITS_MAX):
            try:
                result = self._get(topic, queue_id, offset, max_count, tags, bits, check)
                good = _good_in_light_queue(topic, result) if is_light(topic) else None
                if good is None:
                    return self._engine.statistics.noted(result)
                if good > 0:
                    max_count = good
                    continue
                offset = self.note_damaged(topic, queue_id, offset, 0, tags, bits)
            except StoreDamagedError as error:  # about the message at this offset
                if self.damage.awaits_repair(error, (topic, queue_id, offset)):
                    return self._nothing(GetStatus.OFFSET_OVERFLOW_ONE, topic, queue_id, offset)
                self._reports.note(self._engine.queues.open(topic, queue_id), offset)
            offset += 1
        return self._nothing(GetStatus.NO_MATCHED_MESSAGE, topic, queue_id, offset)

    def _nothing(self, status: GetStatus, topic: str, queue_id: int, offset: int) -> GetResult:
        first, end = (
            self._lookups.min_offset(topic, queue_id),
            self._lookups.max_offset(topic, queue_id),
        )
        return GetResult(status, offset, first, end)

    def note_damaged(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        number: int,
        tags: frozenset[int] | None = None,
        bits: FilterBits | None = None,
    ) -> int:
        """Report message ``number`` (from 0) of a get at ``offset``; return its queue offset."""
        offset = self._engine.reader.offset_of(topic, queue_id, offset, number, tags, bits)
        self._reports.note(self._engine.queues.open(topic, queue_id), offset)
        return offset

    def buffer_at(self, physical_offset: int) -> memoryview | None:
        """Return the stored bytes of the message that begins at this physical offset.

        Raises StoreDamagedError if they are not those that were stored.
        """
        record = self._engine.reader.at_offset(physical_offset)
        return self._checked(record) if record is not None else None

    def _checked(self, record: memoryview) -> memoryview:
        """Return a record; note and raise StoreDamagedError if its bytes have changed."""
        log, queues = self._log.queue, self._engine.queues
        is_good = self._is_good(record)
        misplaced = misplacement(log, queues, record) if is_good else None
        if is_good and misplaced is None:
            return record
        segment = log.find(offset := record_offset(record))
        assert segment is not None
        detail, unit = misplaced or (None, None)
        error = record_damage(segment, offset, detail)
        self.damage.note(error, unit)
        raise error

    def is_misplaced(self, place: DamagedPlace) -> bool:
        """Return whether the record at a place is good, but contradicts the unit that led to it."""
        record = self._engine.reader.at_offset(place.physical_offset)
        if place.unit is None or record is None or not is_good(record, Check.RECORD):
            return False
        topic, queue_id, offset = place.unit
        queue = self._engine.queues.find(topic, queue_id)
        return queue is not None and bool(contradiction(self._log.queue, queue, offset, record))

    def _is_good(self, record: memoryview) -> bool:
        return not self._live.current.verify_reads or is_good(record, Check.RECORD)

    def message(self, topic: str, queue_id: int, offset: int) -> Record | None:
        """Return the message at a queue offset, as services of the broker read it.

        A damaged queue unit does not lead to another message: the log is searched for the one that
        belongs here. None if it has expired.

        Raises:
            StoreDamagedError: There was one, and it is damaged.
            StoreBusyError: The same, but the record may be repaired soon: ask again.
        """
        if (found := self._by_unit(topic, queue_id, offset)) is not None:
            return found
        try:
            buffer = self._engine.reader.message(topic, queue_id, offset)
            return None if buffer is None else self._records.decoded(buffer)
        except StoreDamagedError as error:
            if offset < self._lookups.min_offset(topic, queue_id):  # it expired meanwhile
                return None
            self._raise_damage(error, (topic, queue_id, offset))

    def _by_unit(self, topic: str, queue_id: int, offset: int) -> Record | None:
        """Return the message to which a unit points, if it is good and says that it belongs there.

        This is the usual case, and faster than to find out what is wrong in any other.
        """
        unit = self._lookups.unit(topic, queue_id, offset)
        buffer = self._engine.reader.at_offset(unit.physical_offset) if unit is not None else None
        if buffer is None:
            return None
        with suppress(FormatError):
            found = decode_message(buffer)
            if (found.topic, found.queue_id, found.queue_offset) == (topic, queue_id, offset):
                return found
        return None

    def stored(self, physical_offset: int) -> Record | None:
        """Return the message at an offset that had one before, or None if it has expired.

        This is for a position that the caller got with the message. A queue unit may be damaged:
        use :meth:`message` for what it points to.

        Raises:
            StoreDamagedError: No good record begins there now.
            StoreBusyError: The same, but the record may be repaired soon: ask again.
        """
        try:
            buffer = self._engine.reader.at_offset(physical_offset)
            if buffer is not None:
                return self._records.decoded(buffer)
            segment = self._log.queue.find(physical_offset)
            if segment is not None:
                raise record_damage(segment, physical_offset)
        except StoreDamagedError as error:
            self._raise_damage(error, None)
        return None

    def _raise_damage(self, error: StoreDamagedError, unit: QueueUnit | None) -> NoReturn:
        if self.damage.awaits_repair(error, unit):
            raise StoreBusyError(f"a record is being repaired: {error}") from error
        raise error

    def query_buffers(
        self,
        topic: str,
        key: str,
        begin: int = 0,
        end: int = TIME_MAX,
        max_count: int | None = None,
        *,
        hidden: bool = False,
    ) -> QueryResult:
        """Query the present index; return stored bytes and the position of the index.

        Damaged messages are left out, and noted. Messages that consumers do not see yet are left
        out unless ``hidden`` is set.
        """
        found = self._engine.reader.query(topic, key, begin, end, max_count, hidden=hidden)
        good = []
        for record in found.buffers:
            with suppress(StoreDamagedError):
                good.append(self._checked(record))
        return found._replace(buffers=good)

    def records_of(self, result: PutResult) -> memoryview:
        """Return the consecutive records that a put has stored; none if the store is closed."""
        if self._engine.is_closed:
            return memoryview(b"")
        if self._engine.config.write_buffer_pool:
            self._log.commit()  # bytes in a write buffer are not readable
        segment = self._log.queue.find(result.physical_offset)
        if segment is None:
            return memoryview(b"")
        at = result.physical_offset - segment.base
        return segment.view[at : at + result.size]
