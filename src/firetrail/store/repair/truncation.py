"""The truncation of a closed store's log, for a replica whose master has another history.

The records that are removed are copied first, to a folder ``dropped-<time>`` in the store
(:mod:`firetrail.store.evidence.dropped_records`). Then the store is marked as one that was not
closed, with a watermark that ends where the log will, and the log is zeroed from there on and
synced. The next opening recovers it: it cuts queues and index, and the broker sets offsets back.

A crash at any point leaves a store that recovery accepts: with the whole log, or with a part of the
records that should have been removed. The truncation can then be repeated.
"""

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import StoreError
from firetrail.format.columns import Check
from firetrail.format.files.checkpoint import encode_checkpoint
from firetrail.format.names import CHECKPOINT, COMMIT_LOG, WATERMARK
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.evidence.dropped_records import DroppedRecords, find_dropped, set_aside
from firetrail.store.evidence.inventory import read_inventory, write_inventory
from firetrail.store.log.log_records import store_time_at
from firetrail.store.log.paths import log_spread
from firetrail.store.problems import LOG_REMEDY
from firetrail.store.root.confirmed_file import shorten_confirmed
from firetrail.store.root.folder import AbortFile, FolderLock, check_is_store
from firetrail.store.root.watermark import (
    Watermark,
    WatermarkFile,
    read_checkpoint,
    read_watermark,
    shortened_checkpoint,
)
from firetrail.system import System


class LogCut(NamedTuple):
    """The new end of a log: after its record at ``last_record``."""

    last_record: int
    end: int


def find_removed(system: System, root: Path, cut: LogCut) -> DroppedRecords | None:
    """Return the records after a cut, or None if there are none."""
    return find_dropped(system, root, cut.end, Check.RECORD, begin=cut.end)


def truncate_store(system: System, root: Path, cut: LogCut) -> Path | None:
    """Remove everything after a record from a store that is not in use.

    Args:
        system: The operating system.
        root: The folder of the store.
        cut: The record that will be the last one.

    Returns:
        The folder with a copy of the removed records; None if there were none.

    Raises:
        StoreLockedError: The store is in use.
        StoreError: The log cannot be cut there.
        OSError: A file cannot be written.
    """
    check_is_store(system, root)
    lock = FolderLock(system, root)
    try:
        spread = log_spread(system.files, root)
        log_files = SegmentQueue(system, root / COMMIT_LOG, 0, remedy=LOG_REMEDY, spread=spread)
        with closing(log_files) as log:
            log.load()
            last_store_time = store_time_at(log, cut.last_record)
            if last_store_time is None:
                raise StoreError(f"{root}: there is no record at offset {cut.last_record}")
            removed = find_removed(system, root, cut)
            kept = set_aside(system, root, removed) if removed is not None else None
            _mark_unclean(system, root, cut, last_store_time, by_java=lock.last_held_by_java)
            log.truncate(cut.end)
            return kept
    finally:
        lock.release()


def _mark_unclean(
    system: System, root: Path, cut: LogCut, last_store_time: int, *, by_java: bool
) -> None:
    """Make the next opening recover the store from the cut, or from where it would anyway."""
    inventory = read_inventory(system, root)
    places = {topic: min(place, cut.end) for topic, place in inventory.removed.items()}
    write_inventory(system, root, inventory._replace(durable_offset=-1, removed=places))
    abort = AbortFile(system, root)
    valid = not by_java and (abort.is_ours or not abort.exists)
    mark = read_watermark(system, root) if valid else None
    checkpoint = read_checkpoint(system, root)
    shorter = shortened_checkpoint(checkpoint, cut.end, cut.last_record, last_store_time)
    if mark is not None:
        with closing(WatermarkFile(system, root)) as file:
            file.write(_shortened(mark, cut, last_store_time), **shorter._asdict())
    else:
        if (root / WATERMARK).exists():
            system.files.remove(root / WATERMARK)
        if shorter != checkpoint:
            system.files.replace(root / CHECKPOINT, encode_checkpoint(shorter))
    if not abort.exists:
        abort.create(sealed=False)
    shorten_confirmed(system, root, cut.end)


def _shortened(mark: Watermark, cut: LogCut, last_store_time: int) -> Watermark:
    """Return a watermark that claims nothing after the cut."""
    mark = mark._replace(clean=False, durable_offset=min(mark.durable_offset, cut.end))
    if mark.dispatched_offset < cut.end:
        return mark
    return Watermark(False, mark.durable_offset, cut.end, cut.last_record, last_store_time)
