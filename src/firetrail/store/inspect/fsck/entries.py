"""The index compared with the log: it must have every key of every record, and nothing else.

Entries are in the order of the log, across all index files, so both sides are walked in parallel.
If they differ, the next entries decide which of them is missing, superfluous or wrong.
"""

from array import array
from functools import lru_cache
from typing import NamedTuple

from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.files.index import IndexEntry, IndexHeader
from firetrail.format.kernels.derive import ENTRIES_PER_RECORD_MAX, derive_entries
from firetrail.format.names import INDEX
from firetrail.store.index.tag_entries import has_tag_entries
from firetrail.store.inspect.fsck.index_shadow import ExpectedEntry, FileCheck
from firetrail.store.inspect.fsck.report import DamagedRanges, Findings
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.log.walk import ROWS_PER_BATCH
from firetrail.store.problems import ProblemKind

ENTRIES_PER_BATCH = max(ENTRIES_PER_RECORD_MAX, 4 * ROWS_PER_BATCH)


class MissingKeys(NamedTuple):
    """Keys of consecutive records that the index does not have."""

    file: str
    position: int
    first: int  # physical offset
    last: int
    keys: int


class IndexCheck:
    """The check of all index files of a store."""

    def __init__(
        self,
        view: StoreView,
        findings: Findings,
        damaged: DamagedRanges,
        judged_to: int,
        only: int | None = None,
    ) -> None:
        """``only`` is the number of the single file to check; None checks all."""
        self._view = view
        self._findings = findings
        self._damaged = damaged
        self._judged_to = judged_to
        self._left = list(view.index.files)
        self._newest = self._left[-1] if self._left else None
        self._before: IndexHeader | None = None
        if only is not None:
            self._before = self._left[only - 1].header if only else None
            self._left = [self._left[only]]
        self._file: FileCheck | None = None
        self._entries = array("q", bytes(24 * ENTRIES_PER_BATCH))
        self._missing: MissingKeys | None = None
        self._after_last = (INDEX, 0)
        """The file and position after the last entry of the index."""
        self._tags = bool(has_tag_entries(view.index, view.log))
        self._keys_of = lru_cache(maxsize=64)(self._find_keys_of)
        self.entries = 0

    # -- along the log ------------------------------------------------------------------------

    def feed(self, view: memoryview, columns: Columns, rows: int) -> None:
        """Compare the entries of some records."""
        row = 0
        while row < rows:
            count, row = derive_entries(view, columns.table, row, rows, self._entries, self._tags)
            self._compare(count)

    def take(self, entries: memoryview) -> None:
        """Compare entries that were derived elsewhere, at most as many as :meth:`feed` derives."""
        memoryview(self._entries)[: len(entries)] = entries
        self._compare(len(entries) // 3)

    def _compare(self, count: int) -> None:
        at = 0
        while at < count:
            file = self._current()
            if file is None:
                self._note_missing(at, count)
                return
            end = at + min(count - at, file.left)
            if file.accept(self._entries, at, end):
                self._end_missing()
                self.entries += end - at
                at = end
            else:
                while at < end and file.left:
                    at = self._step(file, at, count)

    def _expected(self, at: int, count: int) -> ExpectedEntry | None:
        return ExpectedEntry(*self._entries[3 * at : 3 * at + 3]) if at < count else None

    def _step(self, file: FileCheck, at: int, count: int) -> int:
        """Handle one difference or agreement; return the next position in the expected entries."""
        entry, expected = file.entry(file.number), self._expected(at, count)
        assert entry is not None and expected is not None
        if not any(entry):
            detail = f"the header counts {file.last} entries, but {file.number} does not exist"
            file.note(file.position(file.number), None, ProblemKind.INDEX_HEADER, detail)
            file.last = file.number - 1
            return at
        following, expected_next = file.entry(file.number + 1), self._expected(at + 1, count)
        if _are_same(entry, expected):
            self._end_missing()
            file.take_expected(entry, expected)
            self.entries += 1
            return at + 1
        if _are_same(following, expected_next):
            self._take_wrong(file, entry, expected)
            return at + 1
        if self._is_tag(expected):
            next_key = self._next_key(at, count)
            if next_key is None or _are_same(entry, next_key):
                self._tags = self._tags and next_key is None  # an older version wrote here
                return at + 1
        if _are_same(following, expected):
            self._take_surplus(file, entry)
            return at
        if _are_same(entry, expected_next):
            self._note_missing(at, at + 1)
            return at + 1
        if self._is_repeated(entry, expected):
            self._take_surplus(file, entry)
            return at
        if self._is_replaced(entry, expected, following):
            self._take_wrong(file, entry, expected)
            return at + 1
        if entry.physical_offset < expected.physical_offset:
            self._take_surplus(file, entry)
            return at
        end = at + 1
        while end < count and self._entries[3 * end + 1] < entry.physical_offset:
            end += 1
        self._note_missing(at, end)
        return end

    def _is_repeated(self, entry: IndexEntry, expected: ExpectedEntry) -> bool:
        """Return whether the entry is for an earlier key of the message whose key is expected.

        After an unclean stop the Java store may index a message again whose first entries are the
        last ones of the previous file.
        """
        offset = expected.physical_offset
        return entry.physical_offset == offset and entry.key_hash in self._keys_of(offset)[0]

    def _is_replaced(
        self, entry: IndexEntry, expected: ExpectedEntry, following: IndexEntry | None
    ) -> bool:
        """Return whether the entry is in the place of the expected one and is damaged."""
        return (
            expected.physical_offset == entry.physical_offset
            or (following is None and expected.key_hash == entry.key_hash)
            or not 0 <= entry.physical_offset < self._view.end
            or (following is not None and following.physical_offset < entry.physical_offset)
        )

    def _take_wrong(self, file: FileCheck, entry: IndexEntry, expected: ExpectedEntry) -> None:
        detail = (
            f"entry {file.number} is for key hash {entry.key_hash} at {entry.physical_offset} "
            f"instead of {expected.key_hash} at {expected.physical_offset}"
        )
        position = file.position(file.number)
        as_written = file.is_linked_by(entry.key_hash, entry) and not file.is_linked_by(
            expected.key_hash, entry
        )
        if as_written:
            detail += "; the entry is intact, so it may be the key in the record that is damaged"
        file.note(position, expected.physical_offset, ProblemKind.INDEX_ENTRY, detail)
        if as_written:
            file.take_as_it_is(entry)  # it was written like this: the record has changed
        else:
            file.take_expected(entry, expected)

    def _take_surplus(self, file: FileCheck, entry: IndexEntry) -> None:
        """Handle an entry that no record requires."""
        offset = entry.physical_offset
        keys, tags = self._keys_of(offset)
        position = file.position(file.number)
        if entry.key_hash in tags - keys:
            self._tags = True  # a newer version has written from here on
        elif entry.key_hash in keys:
            detail = f"entry {file.number} repeats an earlier one"
            file.note(position, offset, ProblemKind.INDEX_REPEATED, detail)
        elif offset not in self._damaged:
            detail = f"entry {file.number} is for key hash {entry.key_hash}, which no key of the "
            file.note(position, offset, ProblemKind.INDEX_STRAY, f"{detail}message at {offset} has")
        file.take_as_it_is(entry)

    def _next_key(self, at: int, count: int) -> ExpectedEntry | None:
        """Return the first expected entry after ``at`` that is not for a tag."""
        for following in range(at + 1, count):
            expected = self._expected(following, count)
            if expected is not None and not self._is_tag(expected):
                return expected
        return None

    def _is_tag(self, expected: ExpectedEntry) -> bool:
        keys, tags = self._keys_of(expected.physical_offset)
        return expected.key_hash in tags - keys

    def _find_keys_of(self, offset: int) -> tuple[frozenset[int], frozenset[int]]:
        """Return the key hashes of the record at an offset, without and with its tag."""
        stop, columns = self._view.log.scan_one(offset, Check.NONE)
        segment = self._view.log.find(offset)
        if stop is not Stop.LIMIT or segment is None:
            return frozenset(), frozenset()
        room = array("q", bytes(24 * ENTRIES_PER_RECORD_MAX))
        found = []
        for tags in (False, True):
            count, _ = derive_entries(segment.view, columns.table, 0, 1, room, tags)
            found.append(frozenset(room[0 : 3 * count : 3]))
        return found[0], found[1]

    # -- files --------------------------------------------------------------------------------

    def _current(self) -> FileCheck | None:
        """Return the file with the next entry, or None at the end of the index."""
        while self._file is None or not self._file.left:
            before = self._file
            if before is not None and not self._goes_on(before):
                self._finish_file(before)
            elif before is not None:
                continue
            if not self._left:
                return None
            file = self._left.pop(0)
            name = f"{INDEX}/{file.segment.path.name}"
            header = None if self._view.index_faults else self._before
            self._file = FileCheck(file, name, header, self._findings)
            self._before = self._file.header
            self._pass_expired(self._file)
        return self._file

    def _goes_on(self, file: FileCheck) -> bool:
        """Return whether there are more entries than the header counts; they are compared as well.

        The header of a store that was not closed, or is in use, may count fewer.
        """
        if self._view.state is not StoreState.CLOSED:
            return False
        counted = file.last
        while (entry := file.entry_after_last()) is not None and any(entry):
            if entry.key_hash not in self._keys_of(entry.physical_offset)[1]:
                if counted == file.last:
                    detail = f"bytes after the last entry, {file.last}, that are not an entry"
                    position = file.position(file.last + 1)
                    file.note(position, None, ProblemKind.INDEX_STRAY, detail)
                break
            file.last += 1
        return counted < file.last

    def _finish_file(self, file: FileCheck) -> None:
        """Compare header and slots, except those of a newest file that may be written."""
        if file.file is not self._newest or self._view.state is StoreState.CLOSED:
            file.finish()
        file.close()
        self._after_last = (file.name, file.position(file.last + 1))
        self._file = None

    def _pass_expired(self, file: FileCheck) -> None:
        """Skip the first entries, whose messages retention has deleted."""
        number = file.number
        while (entry := file.entry(number)) and any(entry):
            if not 0 <= entry.physical_offset < self._view.log.min_offset:
                break
            number += 1
        file.take_many(number)

    # -- findings -----------------------------------------------------------------------------

    def _note_missing(self, first: int, end: int) -> None:
        offsets = self._entries[3 * first + 1 : 3 * end : 3]
        judged = [offset for offset in offsets if offset < self._judged_to]
        if not judged:
            return
        if self._missing is not None:
            keys = self._missing.keys + len(judged)
            self._missing = self._missing._replace(last=judged[-1], keys=keys)
            return
        file = self._file
        name, position = (file.name, file.position(file.number)) if file else self._after_last
        self._missing = MissingKeys(name, position, judged[0], judged[-1], len(judged))

    def _end_missing(self) -> None:
        run, self._missing = self._missing, None
        if run is None:
            return
        where = f"at {run.first}" if run.first == run.last else f"from {run.first} to {run.last}"
        kind, detail = ProblemKind.INDEX_MISSING, f"{run.keys} keys of the messages {where}"
        if not self._view.index.files and not self._view.index_faults:
            kind = ProblemKind.NO_INDEX
            detail = f"the store has no index; {detail} cannot be queried"
        else:
            detail += " are not in the index"
        self._findings.add(run.file, run.position, run.first, kind, detail)

    def finish(self) -> None:
        """Check the rest of the index after the log: only a live store may have more entries."""
        closed = self._view.state is StoreState.CLOSED
        while (file := self._current()) is not None:
            if not closed:
                file.close()
                self._file = None
                break
            self._take_rest(file)
        self._end_missing()

    def _take_rest(self, file: FileCheck) -> None:
        entry = file.entry(file.number)
        assert entry is not None
        if not any(entry):
            detail = f"the header counts {file.last} entries, but {file.number} does not exist"
            file.note(file.position(file.number), None, ProblemKind.INDEX_HEADER, detail)
            file.last = file.number - 1
        else:
            self._take_surplus(file, entry)


def _are_same(entry: IndexEntry | None, expected: ExpectedEntry | None) -> bool:
    """Return whether an entry is for the expected key and message."""
    return entry is not None and expected is not None and entry[:2] == expected[:2]
