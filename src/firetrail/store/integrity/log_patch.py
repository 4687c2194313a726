"""Parts of the log that one broker copies from another: read if they are good, written in place."""

from firetrail.errors import StoreDamagedError, StoreError
from firetrail.format import layout
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import scan
from firetrail.store.integrity.damaged_messages import record_damage
from firetrail.store.log.commit_log import CommitLog

ROWS = 256
"""Maximum number of records of one part."""
_BLANK = layout.BLANK.struct.unpack_from


class LogPatch:
    """Reads and replaces parts of a log."""

    def __init__(self, log: CommitLog) -> None:
        """Prepare to read and write ``log``."""
        self._log = log

    def read(self, offset: int, size: int) -> memoryview:
        """Return good, consecutive records, or the mark of 8 bytes at the end of a file.

        Args:
            offset: The physical offset of the first record.
            size: The most bytes to return. At least one record is returned.

        Raises:
            StoreError: The log does not have the offset.
            StoreDamagedError: No good record begins there.
        """
        segment = self._log.queue.find(offset)
        view = segment.look() if segment is not None else None
        if segment is None or view is None or not offset < self._log.readable_offset:
            raise StoreError(f"the log has no record at offset {offset}")
        at, limit = offset - segment.base, segment.committed
        columns = Columns(ROWS)
        end = min(at + max(size, 0), limit)
        rows, stopped, stop = scan(view, at, end, segment.base, columns.table, Check.RECORD)
        if not rows and stop != Stop.BLANK:  # perhaps it is longer
            one = Columns(1).table
            rows, stopped, stop = scan(view, at, limit, segment.base, one, Check.RECORD)
        if not rows and stop == Stop.BLANK and _BLANK(view, at)[0] == segment.size - at:
            stopped = at + layout.BLANK.size
        elif not rows:
            raise record_damage(segment, offset)
        return view[at:stopped]

    def write(self, offset: int, records: bytes) -> int:
        """Replace a part of the log by good records, on disk; return where the log continues.

        If this is interrupted, some of the records are replaced, and the others stay as they were.

        Args:
            offset: The physical offset of the first record.
            records: The result of :meth:`read` on a broker with the same log.

        Raises:
            StoreDamagedError: They are not good records for this place.
            StoreError: The log does not have the place.
            OSError: The file cannot be written.
        """
        segment = self._log.queue.find(offset)
        end = offset + len(records)
        if segment is None or end > min(self._log.flushed_offset, segment.end):
            raise StoreError(f"the log does not have bytes {offset} to {end} in one file")
        if self._is_end_mark(records, segment.end - offset):
            end = segment.end
        else:
            columns = Columns(ROWS)
            whole = scan(records, 0, len(records), offset, columns.table, Check.RECORD)
            if not whole[0] or whole[1] != len(records):
                raise StoreDamagedError(
                    str(segment.path),
                    offset - segment.base,
                    offset,
                    "the replacement contains bytes that are not good records",
                    "nothing was changed",
                )
        with memoryview(records) as content:
            segment.rewrite(offset - segment.base, content)
        return end

    @staticmethod
    def _is_end_mark(records: bytes, left: int) -> bool:
        is_mark = len(records) == layout.BLANK.size
        return is_mark and _BLANK(records) == (left, layout.MAGIC_BLANK)
