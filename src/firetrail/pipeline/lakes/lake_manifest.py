"""The manifest of a lake: the records that it holds, the store they come from, and their files.

::

    LAKE/_firetrail/manifest.json                                        replaced as a whole
    LAKE/day=<yyyy-mm-dd>/<start>-<number>-<token>.parquet               layout "day"
    LAKE/topic=<topic>/day=<yyyy-mm-dd>/<start>-<number>-<token>.parquet  layout "topic"

A record is archived once a file in the manifest contains it. Data files are written and synced
before the manifest: a job that is killed leaves files that no manifest names, and the next job
removes them. The records of a range follow each other without a gap, so a range is complete if its
files are.
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
"""Version of lakes with a folder per topic, the only layout that older releases can read."""
FOLDER = "_firetrail"
MANIFEST = f"{FOLDER}/manifest.json"
PENDING = f"{FOLDER}/pending.json"


class LakeLayout(StrEnum):
    """The folders of a lake."""

    DAY = "day"
    """One folder per day; topics with few records share files."""
    TOPIC = "topic"
    """One folder per topic and day."""


class DataFile(NamedTuple):
    """A Parquet file with records of one day, from one topic or from several small ones."""

    path: str  # relative to the lake
    topic: str  # the first one by name
    last_topic: str  # the last one by name
    day: str
    start: int  # physical offset of the first record
    last: int  # physical offset of the last record
    end: int  # physical offset after the last record
    messages: int
    size: int
    sha256: str


class RetiredFile(NamedTuple):
    """A file that compaction replaced, kept for readers of an older version of the table."""

    path: str
    since_ms: int


class Range(NamedTuple):
    """A contiguous part of the log that is archived completely."""

    start: int
    end: int
    messages: int


class Anchor(NamedTuple):
    """A record that identifies the store."""

    offset: int
    size: int
    sha256: str


class StoreFacts(NamedTuple):
    """Settings with which a restored store is created like the archived one."""

    host: str
    segment_size: int
    queue_file_size: int
    index_slots: int
    index_entries: int
    index_tags: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a lake; ``sequence`` counts its changes."""

    lake_id: str
    table: str
    sequence: int
    store: StoreFacts
    layout: LakeLayout
    anchors: tuple[Anchor, ...] = ()
    ranges: tuple[Range, ...] = ()
    files: tuple[DataFile, ...] = ()
    retired: tuple[RetiredFile, ...] = ()

    @classmethod
    def new(cls, table: str, store: StoreFacts, layout: LakeLayout) -> Self:
        """Return the manifest of an empty lake."""
        return cls(uuid.uuid4().hex[:16], table, 0, store, layout)

    @property
    def end(self) -> int | None:
        """Physical offset up to which records are archived; None before the first one."""
        return self.ranges[-1].end if self.ranges else None

    @property
    def messages(self) -> int:
        """The number of records in the lake."""
        return sum(part.messages for part in self.ranges)

    def extended(self, part: Range, files: list[DataFile], anchors: tuple[Anchor, ...]) -> Manifest:
        """Return a manifest that includes ``part``, merged with the last range if it follows it."""
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
        self, old: set[str], new: list[DataFile], retired: tuple[RetiredFile, ...]
    ) -> Manifest:
        """Return a manifest with other files for the same records."""
        kept = [file for file in self.files if file.path not in old]
        return replace(
            self,
            sequence=self.sequence + 1,
            files=_in_order([*kept, *new]),
            retired=(*self.retired, *retired),
        )

    def followed(self) -> Manifest:
        """Return a manifest with the same content, after which older jobs publish no more."""
        return replace(self, sequence=self.sequence + 1)

    def without_retired_before(self, time_ms: int) -> Manifest:
        """Return a manifest without the files that were replaced before a time."""
        kept = tuple(old for old in self.retired if old.since_ms >= time_ms)
        return replace(self, retired=kept)

    def encode(self) -> bytes:
        """Return the content of the manifest file."""
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
    """Decode a manifest file; ``place`` names the file in errors."""
    try:
        found: Mapping[str, Any] = json.loads(content)
        version = found["firetrail_archive"]
        if version not in (VERSION, VERSION_BY_TOPIC):
            raise LakeError(
                f"{place}: was written by another version of Firetrail (manifest version "
                f"{version}, this one reads {VERSION_BY_TOPIC} and {VERSION}); upgrade Firetrail"
            )
        return Manifest(
            lake_id=str(found["lake_id"]),
            table=str(found["table"]),
            sequence=int(found["sequence"]),
            store=StoreFacts(**found["store"]),
            layout=LakeLayout(found.get("layout", LakeLayout.TOPIC)),
            anchors=tuple(Anchor(**anchor) for anchor in found["anchors"]),
            ranges=tuple(Range(**part) for part in found["ranges"]),
            files=tuple(
                DataFile(**{"last_topic": file["topic"]} | file) for file in found["files"]
            ),
            retired=tuple(RetiredFile(**file) for file in found["retired"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(
            f"{place}: is not the manifest of an archive ({error}); restore the file from a backup"
        ) from error


def gaps(manifest: Manifest) -> list[tuple[int, int]]:
    """Return the parts of the log that were deleted before they were archived."""
    return [(before.end, after.start) for before, after in pairwise(manifest.ranges)]
