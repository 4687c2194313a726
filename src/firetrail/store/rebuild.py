"""Consume queues and index files from the log alone.

The same derivation as the live dispatcher's, so the files come out byte for byte the same (index
files are named after the time of their creation, whoever makes them).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import StoreDamagedError, StoreError
from firetrail.format.columns import Check, Stop
from firetrail.format.delay import DelayLevels
from firetrail.format.index import IndexGeometry
from firetrail.storage.segment import Segment
from firetrail.storage.system import System
from firetrail.store.deriving import Deriver
from firetrail.store.indexes import Index
from firetrail.store.queues import QueueTable
from firetrail.store.tagentries import has_tag_entries
from firetrail.store.view import StoreView

REMEDY = "nothing was made; see what is damaged with 'firetrail fsck'"


class Rebuilt(NamedTuple):
    """What was made."""

    messages: int
    queues: int
    index_files: int


def rebuild(
    view: StoreView,
    target: Path,
    delays: DelayLevels,
    on_progress: Callable[[int], None],
) -> Rebuilt:
    """Make ``consumequeue/`` and ``index/`` in ``target``, which must be empty or absent.

    Built under another name beside it and renamed when everything is on disk: ``target`` is
    complete or not there. ``on_progress`` is told how many bytes of the log are done. Raises
    StoreDamagedError if the log cannot be followed to its end; a message whose body is damaged is
    no hindrance, for nothing is derived from bodies.
    """
    files = view.system.files
    if target.exists() and (not target.is_dir() or files.names(target)):
        raise StoreError(f"{target}: not an empty folder; rebuild writes to a new or empty one")
    building = target.with_name(f"{target.name}.building")
    if building.exists():
        shutil.rmtree(building)  # what a rebuild that was killed has left behind
    files.make_folder(building)
    try:
        made = _build(view, building, delays, on_progress)
        files.rename(building, target)  # an empty folder is replaced
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return made


def _build(
    view: StoreView, folder: Path, delays: DelayLevels, on_progress: Callable[[int], None]
) -> Rebuilt:
    system: System = view.system
    queues = QueueTable(system, folder, view.queue_file_size)
    geometry = IndexGeometry(view.config.index_slots, view.config.index_entries)
    index = Index(system, folder, geometry)
    tags = has_tag_entries(view.index, view.log) or False
    deriver = Deriver(queues, index, delays, tags=tags)
    begin = position = view.log.min_offset
    messages = 0
    try:
        for step in deriver.steps(_without_gap(view), begin, view.end, Check.NONE):
            messages += step.rows
            position = step.segment.base + step.position
            if step.stop is Stop.BLANK:
                position = step.segment.base + view.log.segment_size
            on_progress(position - begin)
        if position < view.end:
            raise _damage(view, position, "no good record here, so the log cannot be followed")
        queues.flush()
        if index.files:
            index.flush()
        return Rebuilt(messages, len(queues.pairs()), len(index.files))
    except StoreDamagedError as error:
        if error.physical_offset is None or error.remedy == REMEDY:
            raise
        # A queue cannot take a message because the one before it is not in the log.
        raise _damage(view, error.physical_offset, error.detail) from error
    finally:
        queues.close()
        index.close()


def _without_gap(view: StoreView) -> list[Segment]:
    """The files of the log up to the first one that is missing, or too short."""
    found: list[Segment] = []
    for segment in view.log.segments:
        if found and segment.base != found[-1].base + view.log.length_of(found[-1]):
            break
        found.append(segment)
    return found


def _damage(view: StoreView, offset: int, detail: str) -> StoreDamagedError:
    segment = view.log.find(offset) or view.log.following(offset) or view.log.segments[-1]
    position = max(offset - segment.base, 0)
    return StoreDamagedError(str(segment.path), position, offset, detail, REMEDY)
