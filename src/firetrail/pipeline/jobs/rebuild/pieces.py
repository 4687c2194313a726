"""Staged pieces: units and entries derived from parts of the log, until other tasks use them.

A task that reads a part of the log writes two files to a work folder that all tasks can reach: the
units, queue by queue, and the index entries, in the order of the log. It returns their paths. The
files of a killed task are ignored and are removed together with the folder.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

from firetrail.errors import DiskFullError
from firetrail.format.files.unit import UNIT_SIZE, decode_unit
from firetrail.pipeline.workers import not_shared
from firetrail.store.dispatch.derivation import DerivedRun
from firetrail.system import NO_SPACE

ENTRY_SIZE = 24
"""An entry as the kernel derives it: key hash, physical offset and store time, 8 bytes each."""


class DerivedPiece(NamedTuple):
    """Consecutive units of one queue, which are contiguous in a file of units."""

    topic: str
    queue_id: int
    offset: int
    """Queue offset of the first unit."""
    length: int
    physical_offset: int
    """Physical offset of the first unit's record."""
    newest: int
    """Physical offset of the last unit's record."""
    position: int


class StagedPiece(NamedTuple):
    """The units and entries derived from a part of the log, and their files."""

    units: str
    entries: str
    pieces: list[DerivedPiece]
    """The pieces of one queue are in the order of the log."""
    chunks: array[int]
    """The numbers of entries that were derived together."""

    @property
    def entry_count(self) -> int:
        """Number of all entries."""
        return sum(self.chunks)


class _Growing:
    """A piece that is not complete yet."""

    __slots__ = ("next", "offset", "units")

    def __init__(self, offset: int) -> None:
        self.offset = self.next = offset
        self.units = bytearray()


class Stage:
    """Collects what is derived from a part of the log; used as a context manager.

    The units are kept in memory until :meth:`finish`, 20 bytes per message.
    """

    def __init__(self, folder: Path) -> None:
        attempt = uuid4().hex  # attempts at a task may overlap, so they share no file
        self._units_path = folder / f"{attempt}.units"
        self._entries_path = folder / f"{attempt}.entries"
        self._entries = open(self._entries_path, "wb")  # noqa: SIM115  # closed by __exit__
        self._growing: dict[tuple[str, int], _Growing] = {}
        self._pieces: list[tuple[str, int, _Growing]] = []
        self._chunks = array("q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self._entries.close()
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise DiskFullError(
                f"{self._entries_path.parent}: not enough space for the units and index entries "
                "derived from the log, about a fifth of its size; free some space or choose "
                "another work folder"
            ) from error

    def add(self, runs: Iterable[DerivedRun], entries: Iterable[array[int] | memoryview]) -> None:
        """Add units and entries derived from the next records."""
        for run in runs:
            key = run.topic, run.queue_id
            piece = self._growing.get(key)
            if piece is None or piece.next != run.offset:
                piece = self._growing[key] = _Growing(run.offset)
                self._pieces.append((*key, piece))
            piece.units += run.units
            piece.next += len(run.units) // UNIT_SIZE
        for chunk in entries:
            self._entries.write(chunk)
            self._chunks.append(len(chunk) // 3)

    def break_pieces(self) -> None:
        """Begin new pieces, even where the queue offsets continue."""
        self._growing.clear()

    def finish(self) -> StagedPiece:
        """Write the remaining units and return the description of all pieces."""
        pieces = []
        position = 0
        with open(self._units_path, "wb") as file:
            for topic, queue_id, piece in self._pieces:
                length = len(piece.units) // UNIT_SIZE
                first = decode_unit(piece.units).physical_offset
                newest = decode_unit(piece.units, (length - 1) * UNIT_SIZE).physical_offset
                place = (piece.offset, length, first, newest, position)
                pieces.append(DerivedPiece(topic, queue_id, *place))
                position += file.write(piece.units)
        self._entries.flush()
        return StagedPiece(str(self._units_path), str(self._entries_path), pieces, self._chunks)


class StagedFiles:
    """Staged files, mapped on first use."""

    def __init__(self) -> None:
        self._mapped: dict[str, memoryview] = {}

    def units(self, path: str, position: int, length: int) -> memoryview:
        """Return ``length`` units of a file, starting at the byte ``position``."""
        return self._map(path)[position : position + length * UNIT_SIZE]

    def entries(self, path: str) -> memoryview:
        """Return all numbers of a file of entries, three per entry."""
        return self._map(path).cast("q")

    def _map(self, path: str) -> memoryview:
        view = self._mapped.get(path)
        if view is None:
            try:
                file = open(path, "rb")  # noqa: SIM115  # closed below
            except FileNotFoundError:
                raise not_shared(
                    path, "another task wrote this file, but it does not exist"
                ) from None
            with file:
                # It is never written to, but the kernel that appends entries needs a writable view.
                view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            self._mapped[path] = view
        return view
