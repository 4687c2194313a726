"""The driver's view of a store, so that tasks can check that they see the same files.

A worker may lack the mount, or have an older copy or another store at the same path. To a reader,
missing files look like missing messages. So the planner records a few facts, and the readers
compare them:

- the files of the log in the part to be read,
- the bytes at the beginning and at the end of that part,
- the first bytes of the file with the newest record, which identify the store.

Retention deletes the oldest files and never the newest. Missing files count as deleted by retention
only if the newest file exists and is unchanged, and all files before them are missing, too. Any
other missing file is an error (``NotSharedError``), whatever the options say.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from firetrail.errors import DataLostError, NotSharedError
from firetrail.pipeline.workers import not_shared
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.view_log import ViewLog
from firetrail.system import SYSTEM

SAMPLE_BYTES = 128
"""Enough for the fixed fields of a record: offset, times, hosts, checksum of the body."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A few bytes of the log."""

    offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class LogFingerprint:
    """The driver's view of a part of the log."""

    bases: tuple[int, ...]
    """The offsets at which the files of the part begin."""
    samples: tuple[Sample, ...]
    """Bytes of the part, damaged or not."""
    newest: Sample | None
    """The first bytes of the file that holds the newest record; None if they cannot be read."""

    def check(self, log: ViewLog, *, allow_loss: bool) -> None:
        """Raise NotSharedError unless the log is the one that the driver planned with.

        Raise DataLostError if retention deleted files of the part, unless ``allow_loss``.
        """
        if not self.bases and self.newest is None:
            return  # the log was empty
        if not log.segments:
            state = "empty" if log.folder.is_dir() else "missing"
            raise not_shared(log.folder, f"the folder is {state}")
        if self.newest is not None:
            self._check_newest(log, self.newest)
        present = {segment.base for segment in log.segments}
        for base in self.bases:
            if base not in present and base > log.min_offset:
                raise not_shared(log.path_of(base), "the file is missing")
        for sample in self.samples:
            found = _read(log, sample.offset, len(sample.content))
            cut = log.find(sample.offset) is None and sample.offset >= log.min_offset
            if cut or (found is not None and found != sample.content):
                raise _differs(log, sample.offset)
        if self.bases and self.bases[0] < log.min_offset and not allow_loss:
            raise log_lost(log.folder.parent, self.bases[0], log.min_offset)

    def _check_newest(self, log: ViewLog, newest: Sample) -> None:
        found = _read(log, newest.offset, len(newest.content))
        if found is None:
            path = log.path_of(newest.offset)
            raise not_shared(path, "the newest file that the driver saw is missing")
        if found != newest.content:
            raise _differs(log, newest.offset)


def log_lost(store: str | Path, wanted: int, begin: int) -> DataLostError:
    """Return the error if ``wanted`` is to be read of a log that now begins at ``begin``."""
    return DataLostError(
        f"{store}: the log now begins at {begin}, because retention deleted the messages from "
        f"{wanted} on; read with failOnDataLoss=false to skip them"
    )


def check_store(root: str | Path, fingerprint: LogFingerprint) -> None:
    """Raise NotSharedError unless the store in a folder is the one the driver planned with."""
    with closing(ViewLog(SYSTEM, Path(root))) as log:
        log.load()
        fingerprint.check(log, allow_loss=True)


def fingerprint_of(view: StoreView, start: int, end: int) -> LogFingerprint:
    """Return the facts about the log from ``start`` up to ``end``."""
    log = view.log
    bases = []
    segment = log.find(start) or log.following(start)
    while segment is not None and segment.base < end:
        bases.append(segment.base)
        segment = log.following(segment.base)
    samples = (_first(log, start, end), _last(log, start, end))
    holder = log.find(view.end - 1)
    newest = None if holder is None else _first(log, holder.base, view.end)
    return LogFingerprint(tuple(bases), tuple(filter(None, samples)), newest)


def whole_fingerprint(view: StoreView) -> LogFingerprint:
    """Return the facts about the whole log."""
    return fingerprint_of(view, view.log.min_offset, view.end)


def _first(log: ViewLog, start: int, end: int) -> Sample | None:
    content = _read(log, start, min(end - start, SAMPLE_BYTES))
    return None if content is None else Sample(start, content)


def _last(log: ViewLog, start: int, end: int) -> Sample | None:
    holder = log.find(end - 1)
    begin = max(start, end - SAMPLE_BYTES, holder.base if holder is not None else 0)
    return _first(log, begin, end)


def _read(log: ViewLog, offset: int, size: int) -> bytes | None:
    """Return the bytes at an offset, up to the end of its file; None if the file is missing."""
    segment = log.find(offset)
    view = log.look(segment) if segment is not None else None
    if segment is None or view is None:
        return None
    at = offset - segment.base
    return bytes(view[at : at + size])


def _differs(log: ViewLog, offset: int) -> NotSharedError:
    path = log.path_of(offset - offset % log.segment_size)
    detail = f"differs at {offset} from what the driver saw (another store, or an older copy)"
    return not_shared(path, detail)
