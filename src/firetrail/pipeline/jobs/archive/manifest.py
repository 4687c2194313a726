"""The manifest of a lake: which records of which store it holds, in which files.

::

    LAKE/_firetrail/manifest.json                                        replaced as a whole
    LAKE/day=<yyyy-mm-dd>/<start>-<number>-<token>.parquet               layout "day"
    LAKE/topic=<topic>/day=<yyyy-mm-dd>/<start>-<number>-<token>.parquet  layout "topic"

A record is archived when a file in the manifest has it. Data files are written and synced first,
then the manifest: a job that is killed leaves files that no manifest names, and the next one
removes them. The physical offsets of a range follow each other without a gap, so that a range is
complete if its files are.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple, Self

from firetrail.errors import LakeError

VERSION = 2
VERSION_BY_TOPIC = 1
"""Of lakes with a folder for each topic: the only ones that versions before this one know."""
FOLDER = "_firetrail"
MANIFEST = f"{FOLDER}/manifest.json"
PENDING = f"{FOLDER}/pending.json"


class LakeLayout(StrEnum):
    """Which folders the files of a lake are in."""

    DAY = "day"
    """One for each day; topics with few records share files."""
    TOPIC = "topic"
    """One for each topic and day."""


class DataFile(NamedTuple):
    """A Parquet file: records of one day, of one topic or of several small ones."""

    path: str  # relative to the lake
    topic: str  # the first one by name
    last_topic: str  # and the last one
    day: str
    start: int  # physical offset of its first record
    last: int  # of its last one
    end: int  # and behind that
    messages: int
    size: int
    sha256: str


class Retired(NamedTuple):
    """A file that compaction has replaced, kept for those who read an older state of the table."""

    path: str
    since_ms: int


class Range(NamedTuple):
    """A part of the log without a gap, archived completely."""

    start: int
    end: int
    messages: int


class Anchor(NamedTuple):
    """A record by which the store is known again."""

    offset: int
    size: int
    sha256: str


class StoreFacts(NamedTuple):
    """What a restored store needs to be made like the one that was archived."""

    host: str
    segment_size: int
    queue_file_size: int
    index_slots: int
    index_entries: int
    index_tags: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a lake holds; ``sequence`` counts its changes."""

    lake_id: str
    table: str
    sequence: int
    store: StoreFacts
    layout: LakeLayout
    anchors: tuple[Anchor, ...] = ()
    ranges: tuple[Range, ...] = ()
    files: tuple[DataFile, ...] = ()
    retired: tuple[Retired, ...] = ()

    @classmethod
    def new(cls, table: str, store: StoreFacts, layout: LakeLayout) -> Self:
        """The manifest of an empty lake."""
        return cls(uuid.uuid4().hex[:16], table, 0, store, layout)

    @property
    def end(self) -> int | None:
        """Physical offset up to which records are archived; None before the first one."""
        return self.ranges[-1].end if self.ranges else None

    @property
    def messages(self) -> int:
        """How many records the lake holds."""
        return sum(part.messages for part in self.ranges)

    def extended(self, part: Range, files: list[DataFile], anchors: tuple[Anchor, ...]) -> Manifest:
        """With the records of ``part``: a range of its own unless it follows the last one."""
        ranges = self.ranges
        if ranges and ranges[-1].end == part.start:
            before = ranges[-1]
            part = Range(before.start, part.end, before.messages + part.messages)
            ranges = ranges[:-1]
        return replace(
            self,
            sequence=self.sequence + 1,
            anchors=anchors,
            ranges=(*ranges, part),
            files=_in_order([*self.files, *files]),
        )

    def exchanged(
        self, old: set[str], new: list[DataFile], retired: tuple[Retired, ...]
    ) -> Manifest:
        """With other files for the same records."""
        kept = [file for file in self.files if file.path not in old]
        return replace(
            self,
            sequence=self.sequence + 1,
            files=_in_order([*kept, *new]),
            retired=(*self.retired, *retired),
        )

    def without_retired_before(self, time_ms: int) -> Manifest:
        """With only those replaced files that are still to be kept."""
        kept = tuple(old for old in self.retired if old.since_ms >= time_ms)
        return replace(self, retired=kept)

    def encode(self) -> bytes:
        """The file's content."""
        by_topic = self.layout is LakeLayout.TOPIC
        content = {"firetrail_archive": VERSION_BY_TOPIC if by_topic else VERSION} | asdict(self)
        for name in ("anchors", "ranges", "files", "retired"):
            content[name] = [part._asdict() for part in getattr(self, name)]
        if by_topic:
            del content["layout"]
            for file in content["files"]:
                del file["last_topic"]
        content["store"] = self.store._asdict()
        return json.dumps(content, indent=1).encode()


def _in_order(files: list[DataFile]) -> tuple[DataFile, ...]:
    return tuple(sorted(files, key=lambda file: (file.topic, file.day, file.start)))


def decode_manifest(content: bytes, place: str) -> Manifest:
    """The manifest that a file holds; ``place`` is for the error if it holds none."""
    try:
        found: Mapping[str, Any] = json.loads(content)
        version = found["firetrail_archive"]
        if version not in (VERSION, VERSION_BY_TOPIC):
            raise LakeError(
                f"{place}: written by another version of Firetrail (manifest {version}, this one "
                f"reads {VERSION_BY_TOPIC} and {VERSION})"
            )
        return Manifest(
            str(found["lake_id"]),
            str(found["table"]),
            int(found["sequence"]),
            StoreFacts(**found["store"]),
            LakeLayout(found.get("layout", LakeLayout.TOPIC)),
            tuple(Anchor(**anchor) for anchor in found["anchors"]),
            tuple(Range(**part) for part in found["ranges"]),
            tuple(DataFile(**{"last_topic": file["topic"]} | file) for file in found["files"]),
            tuple(Retired(**file) for file in found["retired"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(f"{place}: no manifest of an archive ({error}); put it back") from error


def gaps(manifest: Manifest) -> list[tuple[int, int]]:
    """Parts of the log that were deleted before they were archived."""
    return [(before.end, after.start) for before, after in pairwise(manifest.ranges)]
