"""The rewind of a replica to the last record that it has in common with a master.

A master that was replaced while replicas lagged has records that no other broker has. Before it can
follow the new master it must remove them. The common point is found by bisection: request 33
VIEW_MESSAGE_BY_ID returns the master's record at an offset. Every log file begins with a record, so
files are searched first and then the records of one file: about 40 requests for any log.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import DivergedError, ReplicationError, StuckError
from firetrail.format.columns import Check, Stop
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.replica.master_check import EMPTY_REMEDY, LogRange, Master
from firetrail.store.evidence.dropped_records import DroppedRecords
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.log_records import is_good, record_at, scan_record
from firetrail.store.log.segment_scan import record_offsets
from firetrail.store.repair.truncation import LogCut, find_removed, truncate_store
from firetrail.store.root.folder import check_not_in_use
from firetrail.system import System


class RewindPlan(NamedTuple):
    """The plan of a rewind."""

    cut: LogCut
    """The last common record; at -1 if the store has no messages."""
    own_end: int
    """The end of the replica's log."""
    master: LogRange
    removed: DroppedRecords | None
    """The records that the master does not have; None if there are none."""
    is_damaged: bool = False
    """Whether the log is damaged after the last common record, so that what follows could not be
    compared."""


class RewindResult(NamedTuple):
    """The result of a rewind."""

    plan: RewindPlan
    kept: Path | None
    """The folder with a copy of the removed records; None if nothing was removed."""


async def plan_rewind(system: System, root: Path, master: Master) -> RewindPlan:
    """Find the last record that a closed store and a master have in common; change nothing.

    Args:
        system: The operating system.
        root: The folder of the store.
        master: The master.

    Raises:
        StoreLockedError: The store is in use.
        DivergedError: The logs have no record in common.
        StuckError: The master has deleted all records that the store has.
        ReplicationError: The master refuses to answer, or has files of another length.
        NotReachedError: The master does not answer.
    """
    check_not_in_use(system, root)
    with StoreView.open(root, system=system) as view:
        config = await master.config()
        if view.last_record < 0:  # it can follow as it is
            return RewindPlan(LogCut(-1, view.end), view.end, await master.log_range(), None)
        if config.file_size != view.log.segment_size:
            raise ReplicationError(
                f"{root}: the log files have {view.log.segment_size} bytes, the master's "
                f"{config.file_size}; {EMPTY_REMEDY}"
            )
        cut, there = await _common_point(view, master)
        removed = await asyncio.to_thread(find_removed, system, root, cut)
        if removed is not None:
            removed.loss.detail = "the master does not have them"
        return RewindPlan(cut, view.end, there, removed, _is_damaged(view, cut.end))


async def rewind(
    system: System,
    root: Path,
    master: Master,
    confirm: Callable[[RewindPlan], None] = lambda plan: None,
) -> RewindResult:
    """Remove the records of a closed store that a master does not have.

    Args:
        system: The operating system.
        root: The folder of the store.
        master: The master.
        confirm: Called with the plan before anything is changed if records will be removed; it may
            raise.

    Raises:
        StoreError: The store cannot be cut.
        OSError: A file cannot be written.
        FiretrailError: See :func:`plan_rewind`.
    """
    plan = await plan_rewind(system, root, master)
    kept = None
    if plan.own_end > plan.cut.end:
        confirm(plan)
        kept = await asyncio.to_thread(truncate_store, system, root, plan.cut)
    EpochFile(system, root).truncate(plan.cut.end)
    return RewindResult(plan, kept)


async def _common_point(view: StoreView, master: Master) -> tuple[LogCut, LogRange]:
    log = view.log
    there = await master.log_range()
    if there.begin == there.end:
        raise DivergedError(
            f"{view.root}: the broker at {master.address.broker} has no messages, so the two have "
            f"no record in common; check that it is the right master. If it is, {EMPTY_REMEDY}"
        )
    bases = [base for base in (s.base for s in log.segments) if there.begin <= base < view.end]
    if not bases:
        raise StuckError(
            f"{view.root}: the log ends at {view.end}, but the master has deleted everything before"
            f" {there.begin}, so they have nothing in common; {EMPTY_REMEDY}"
        )
    file = await _last_same(view, master, bases)
    if file is None:
        raise DivergedError(
            f"{view.root}: the record at offset {bases[0]}, the first that both have, is not the "
            f"same as the master's, so they have nothing in common; {EMPTY_REMEDY}"
        )
    segment = log.find(file)
    assert segment is not None
    offsets = record_offsets(segment, file, min(segment.size, view.end - segment.base))
    offset = await _last_same(view, master, offsets)
    if offset is None or (await master.log_range()).begin > offset:
        raise ReplicationError(
            f"{view.root}: the master has deleted files during the comparison; try again"
        )
    return LogCut(offset, offset + len(_own(view, offset))), there


async def _last_same(view: StoreView, master: Master, offsets: Sequence[int]) -> int | None:
    """Return the last of some offsets at which both have the same record; None if at none.

    A damaged record of the replica says nothing about the master's, so the next one is compared.
    """
    low, high = 0, len(offsets)
    while low < high:
        middle = (low + high) // 2
        at = next((at for at in range(middle, high) if _is_good(view, offsets[at])), None)
        if at is not None and await master.record(offsets[at]) == _own(view, offsets[at]):
            low = at + 1
        else:
            high = middle
    return offsets[low - 1] if low else None


def _is_good(view: StoreView, offset: int) -> bool:
    return is_good(memoryview(_own(view, offset)), Check.RECORD)


def _is_damaged(view: StoreView, offset: int) -> bool:
    """Return whether there is a damaged record at an offset; at the end of a file, the next one's
    first record is looked at."""
    segment = view.log.find(offset)
    while segment is not None and offset < view.end:
        stop, _ = scan_record(segment, offset, Check.RECORD)
        if stop is not Stop.BLANK:
            return stop is not Stop.LIMIT
        offset = segment.base + segment.size
        segment = view.log.find(offset)
    return False


def _own(view: StoreView, offset: int) -> bytes:
    record = record_at(view.log, offset)
    return bytes(record) if record is not None else b""
