"""The damage of an open store, and lookups that check what they find before it is sent on."""

from __future__ import annotations

from firetrail.errors import StoreBusyError, StoreDamagedError
from firetrail.format.columns import Check
from firetrail.format.record import Record
from firetrail.store.engine import Engine
from firetrail.store.integrity.damage_ledger import DamageLedger
from firetrail.store.integrity.damaged_messages import DamageReports, record_damage
from firetrail.store.integrity.log_patch import LogPatch
from firetrail.store.integrity.log_scrub import LogScrub
from firetrail.store.log.log_records import is_good, record_offset
from firetrail.store.reader import TIME_MAX, QueryResult
from firetrail.store.store import Store


class CheckedStore(Store):
    """A store that knows its damaged records, and finds single messages as stored bytes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._damage_reports = DamageReports(engine.log.queue)
        self.damage = DamageLedger(engine.live, engine.system)
        """The damaged records that were found and are not repaired."""
        self.log_patch = LogPatch(engine.log)
        """Copies good records to and from the logs of other brokers."""
        self.log_scrub = LogScrub(engine.system, engine.root, engine.log, self.damage)
        """Reads the whole log, in steps, to find damage."""

    def close(self, within_s: float | None = None) -> None:
        """Close the store as :meth:`Store.close` does, and end its scrub."""
        self.log_scrub.close()
        super().close(within_s)

    def buffer_at(self, physical_offset: int) -> memoryview | None:
        """Return the stored bytes of the message that begins at this physical offset.

        Raises StoreDamagedError if they are not those that were stored.
        """
        record = self._engine.reader.at_offset(physical_offset)
        if record is not None and not self._is_good(record):
            segment = self._log.queue.find(physical_offset)
            assert segment is not None
            raise self._noted(record_damage(segment, physical_offset))
        return record

    def _is_good(self, record: memoryview) -> bool:
        return not self._live.current.verify_reads or is_good(record, Check.RECORD)

    def _noted(self, error: StoreDamagedError) -> StoreDamagedError:
        self.damage.note(error)
        return error

    def stored(self, physical_offset: int) -> Record | None:
        """Return the message at an offset that held one before, or None if it has expired.

        Raises:
            StoreDamagedError: No good record begins there any more.
            StoreBusyError: The same, but the record may be repaired soon: ask again.
        """
        try:
            record = self.at(physical_offset)
            segment = self._log.queue.find(physical_offset)
            if record is None and segment is not None:
                raise record_damage(segment, physical_offset)
        except StoreDamagedError as error:
            if self.damage.awaits_repair(error):
                raise StoreBusyError(f"a record is being repaired: {error}") from error
            raise
        return record

    def query_buffers(
        self,
        topic: str,
        key: str,
        begin: int = 0,
        end: int = TIME_MAX,
        max_count: int | None = None,
    ) -> QueryResult:
        """Query the index as it is now; return stored bytes and how far the index has come.

        Damaged messages are left out, and noted.
        """
        found = self._engine.reader.query(topic, key, begin, end, max_count)
        good = []
        for record in found.buffers:
            if self._is_good(record):
                good.append(record)
            elif (segment := self._log.queue.find(offset := record_offset(record))) is not None:
                self.damage.note(record_damage(segment, offset))
        return found._replace(buffers=good)
