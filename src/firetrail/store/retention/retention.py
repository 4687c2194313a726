"""The deletion of old messages: whole files of the log, oldest first, and what points into them.

A file is deleted when it has expired and it is time (at the configured hours, or when the disk
fills up), or even unexpired while the disk is nearly full: the disk is measured before each such
file, and space that a deleted file has not freed yet counts as free. The active file is never
deleted. Neither is a file until it and the queues and index derived from it are on disk, nor, if so
configured, before it is archived. Expired files that a connected replica needs are kept while the
disk has room. Queues and index follow the new beginning of the log.
"""

import logging
from collections.abc import Callable
from datetime import datetime

from firetrail.format.names import OFFSET_MAX
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.admission.gate import Closure, Gate
from firetrail.store.retention.archive_marks import archived_offset
from firetrail.store.retention.freed_space import FreedSpace
from firetrail.store.root.store_parts import StoreParts
from firetrail.text import human_size

HOUR_MS = 3_600_000


_log = logging.getLogger(__name__)


class Retention:
    """Decides which files have expired, and removes them."""

    def __init__(
        self,
        parts: StoreParts,
        gate: Gate,
        settled: Callable[[], int],
        note_begin: Callable[[int], None],
        replicated: Callable[[], int],
        used: Callable[[], float],
    ) -> None:
        """Prepare retention.

        Args:
            parts: The log, queues and index to delete from.
            gate: Shut while the disk is full.
            settled: Syncs everything; returns the position up to which it is on disk.
            note_begin: Records durably where the log will begin, before a file is deleted.
            replicated: Returns the position before which no connected replica needs the log.
            used: Returns the used part of the disk, from 0.0 to 1.0.
        """
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._gate = gate
        self._live = parts.live
        self._settled = settled
        self._note_begin = note_begin
        self._replicated = replicated
        self._used = used
        self.guard = parts.system.threads.lock()
        """Held while files are deleted, by the housekeeper's rounds and by other callers."""
        self._system = parts.system
        self._freed = FreedSpace(parts.system)
        self._opened_ms = self._system.clock.now_ms()
        self._opened_at = self._system.clock.monotonic()
        self._followed = parts.log.min_offset
        self._waiting: set[SegmentQueue] = set()  # have removed files that are still being read

    def round(self) -> int:
        """Check clock and disk, and delete files if possible; return the number of deleted log
        files."""
        used = self._used()
        self._watch_disk(used)
        with self.guard:
            self._sweep()
            is_due = used > self._live.current.disk_max_used_ratio or self._is_hour()
            removed = self._delete(self._pressure, is_due=is_due)
            self._follow()
        if removed:
            self._watch_disk(self._used())
        return removed

    def delete(self, *, forced: bool = False) -> int:
        """Delete expired files now, or any if ``forced``; return how many log files that were."""
        with self.guard:
            self._sweep()
            reason = "deletion was requested regardless of age" if forced else ""
            removed = self._delete(lambda: reason, is_due=True)
            self._follow()
        return removed

    def _sweep(self) -> None:
        """Remove files that could not be removed before because they were still being read."""
        grace_ms = self._live.current.destroy_forcibly_after_ms
        for files in self._waiting:
            files.sweep(grace_ms)
        self._waiting = {files for files in self._waiting if files.has_retired}
        if self._index is not None:
            self._index.sweep(grace_ms)

    def _delete(self, forced: Callable[[], str], *, is_due: bool) -> int:
        """Delete files, oldest first, and return how many.

        Args:
            forced: Returns why the next file is deleted although it has not expired; empty if it is
                kept.
            is_due: Whether expired files are deleted.
        """
        queue = self._log.queue
        removed = settled = 0
        archived = self._archived()
        while removed < self._live.current.delete_batch_max and len(queue.segments) > 1:
            oldest = queue.segments[0]
            reason = forced()
            if oldest.end > archived or not (reason or (is_due and self._is_unneeded(oldest))):
                break
            if oldest.end >= settled:
                settled = self._settled()
            # Something on disk must remain: an empty log would not know where to continue.
            if oldest.end >= settled:
                break
            self._log_removal(oldest, reason)
            self._note_begin(oldest.end)
            self._freed.expect(oldest)
            queue.retire_first(self._live.current.destroy_forcibly_after_ms)
            removed += 1
            if removed < self._live.current.delete_batch_max:
                self._system.clock.sleep_ms(self._live.current.delete_interval_ms)
        if removed and queue.has_retired:
            self._waiting.add(queue)
        return removed

    def _pressure(self) -> str:
        """Return why a file is deleted before it expires; empty while the disk has enough space."""
        config = self._live.current
        used = self._used()
        if not config.clean_forcibly or used <= config.disk_clean_forcibly_ratio:
            return ""
        if used - self._freed.late() <= config.disk_clean_forcibly_ratio:
            return ""
        return (
            f"{used:.0%} of the file system is used, more than "
            f"{config.disk_clean_forcibly_ratio:.0%} (diskSpaceCleanForciblyRatio)"
        )

    def _is_unneeded(self, segment: Segment) -> bool:
        """Return whether a file has expired, and no connected replica needs it."""
        return self._is_expired(segment) and segment.end <= self._replicated()

    def _log_removal(self, segment: Segment, forced: str) -> None:
        hours = self._live.current.file_reserved_hours
        expired = self._is_expired(segment)
        changed_ms = self._system.files.modified_ms(segment.path)
        age_ms = max(self._system.clock.now_ms() - changed_ms, 0)
        _log.log(
            logging.INFO if expired else logging.WARNING,
            "retention removes %s: %s of messages (log offsets %d to %d), last changed %.1f h ago, "
            "because %s",
            segment.path,
            human_size(segment.end - segment.base),
            segment.base,
            segment.end,
            age_ms / HOUR_MS,
            f"files are kept for {hours} h" if expired else forced,
        )

    def _archived(self) -> int:
        """Return the position before which files may be deleted as far as lakes are concerned."""
        if not self._live.current.delete_archived_only:
            return OFFSET_MAX
        return archived_offset(self._system, self._log.queue.folder.parent)

    def _watch_disk(self, used: float) -> None:
        """Refuse puts above the warning ratio; accept them again below the cleaning ratio."""
        if used > self._live.current.disk_warning_ratio:
            self._gate.shut(Closure.DISK_FULL, f"{used:.0%} of the file system is used")
        elif used <= self._live.current.disk_clean_forcibly_ratio:
            self._gate.lift(Closure.DISK_FULL)

    def _is_hour(self) -> bool:
        now = datetime.fromtimestamp(self._system.clock.now_ms() / 1000)
        return now.hour in self._live.current.delete_when

    def _is_expired(self, segment: Segment) -> bool:
        """Return whether the file was last modified long enough ago.

        A clock that jumps ahead while the store is open must not make everything expire at once:
        the time counts as no later than the start plus the time that has actually passed.
        """
        clock = self._system.clock
        passed_ms = int((clock.monotonic() - self._opened_at) * 1000)
        now_ms = min(clock.now_ms(), self._opened_ms + passed_ms)
        changed_ms = self._system.files.modified_ms(segment.path)
        return now_ms >= changed_ms + self._live.current.file_reserved_hours * HOUR_MS

    def _follow(self) -> None:
        """Let queues and index begin where the log begins now."""
        log_min = self._log.min_offset
        if log_min == self._followed:
            return
        grace_ms = self._live.current.destroy_forcibly_after_ms
        for queue in self._queues.all():
            if queue.delete_expired(log_min, grace_ms) and queue.files.has_retired:
                self._waiting.add(queue.files)
        if self._index is not None:
            self._index.delete_expired(log_min, grace_ms)
        self._followed = log_min
