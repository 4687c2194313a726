"""The sources of a table, and those among them that are files: stores, replicas and archives.

A source is planned in the driver, which returns parts that tasks read. All kinds of sources return
the same columns, and give each message its queue, its offset there and its physical offset. So a
table can begin with an archive and continue with the files of the broker, or with the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from firetrail.errors import ConfigError, DataLostError, LakeError
from firetrail.format.layout import COMPRESSED, NO_QUEUE_OFFSET
from firetrail.format.names import COMMIT_LOG, name_server
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_manifest import MANIFEST, DataFile, LakeLayout, Manifest
from firetrail.pipeline.lakes.location import local_place
from firetrail.pipeline.source.decompression import inflate
from firetrail.pipeline.source.plan.fingerprint import whole_fingerprint
from firetrail.pipeline.source.plan.log_splits import plan_queues, safe_end
from firetrail.pipeline.source.plan.ranges import QueuePart, known_topics, look_at, queue_ends
from firetrail.pipeline.source.plan.store_splits import OffsetSplit, StoreSplit
from firetrail.pipeline.source.split_reader import read_split
from firetrail.pipeline.source.unit_reader import first_at_or_after
from firetrail.pipeline.tables.messages.broker_progress import (
    BrokerProgress,
    NewestMessage,
    content_digest,
)
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.root.folder import check_is_store
from firetrail.system import SYSTEM
from firetrail.text import did_you_mean

COLUMNS = (
    *("queue_id", "queue_offset", "physical_offset", "msg_id", "tags", "keys", "properties"),
    *("body", "born_time", "store_time", "sys_flag"),
)
"""The columns of the source that a table needs."""
ARCHIVE_PART_BYTES = 128 << 20
"""Bytes of archive files that a task reads; a larger file is a task of its own."""
_ROWS = 8192


class TableSource(NamedTuple):
    """A place with the messages of one broker."""

    broker: str
    """Its name in the table; empty if the user named none."""
    place: str
    """The folder of a store, the folder or URL of an archive, or ``namesrv=HOST:PORT``."""
    member: str = ""
    """The name that a running broker has at its name server."""

    def __str__(self) -> str:
        return f"{self.place}, {self.member}" if self.member else self.place


@dataclass(frozen=True, slots=True)
class StoreMessages:
    """A part of the files of a broker, which a task reads."""

    broker: str
    split: StoreSplit

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages, with decompressed bodies."""
        return map(inflated_rows, read_split(self.split, COLUMNS))


@dataclass(frozen=True, slots=True)
class ArchiveMessages:
    """Files of an archive, of which a task reads the messages of a topic."""

    broker: str
    lake: Lake
    paths: tuple[str, ...]
    topic: str
    topic_column: bool
    ends: dict[int, int]
    """The offsets of the queues before which the table has all messages."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages, with decompressed bodies."""
        chosen = pc.bit_wise_and(pc.field("sys_flag"), NO_QUEUE_OFFSET) == 0
        if self.topic_column:
            chosen &= pc.field("topic") == self.topic
        for queue_id, end in self.ends.items():
            chosen &= (pc.field("queue_id") != queue_id) | (pc.field("queue_offset") >= end)
        for path in self.paths:
            data = ds.dataset(
                [self.lake.folder.path(path)],
                format="parquet",
                filesystem=self.lake.folder.filesystem,
            )
            for batch in data.to_batches(
                columns=list(COLUMNS),
                filter=chosen,
                batch_size=_ROWS,
                batch_readahead=1,
                fragment_readahead=1,
            ):
                if batch.num_rows:
                    yield inflated_rows(batch)


class SourcePart(Protocol):
    """Messages of one broker, which a task reads."""

    @property
    def broker(self) -> str: ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages, with decompressed bodies."""


class SourcePlan(NamedTuple):
    """The new messages of a source."""

    source: TableSource
    parts: Sequence[SourcePart]
    ranges: dict[int, tuple[int, int]] | None
    """The range of each queue that the parts have; None if only the tasks find that out."""
    read_to: int
    size: int
    """Bytes of log or of files, about."""


def source_list(given: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the sources that a user gives, one or several.

    Raises:
        ConfigError: There are none.
    """
    found = [str(each) for each in ([given] if isinstance(given, str | Path) else given)]
    if not found:
        raise ConfigError("source", given, "name at least one")
    return found


def parse_source(text: str) -> TableSource:
    """Return the source that a text ``PLACE`` or ``BROKER=PLACE`` names.

    Raises:
        ConfigError: The text names no place.
    """
    broker, equals, place = text.partition("=")
    if not equals or "/" in broker or not broker or name_server(text) is not None:
        broker, place = "", text
    if not place or name_server(place) == "":
        raise ConfigError("source", text, "must be PLACE or BROKER=PLACE")
    if name_server(place) is not None:
        return TableSource(broker, place)
    place = local_place(place)
    return TableSource(broker, place if "://" in place else str(Path(place).absolute()))


def check_exists(source: TableSource) -> None:
    """Raise an error unless a source is a store or an archive.

    Raises:
        NotAStoreError: The folder is neither a store nor an archive.
        LakeError: There is no archive at the URL.
    """
    if is_archive(source.place):
        Lake(source.place).require_manifest()
    else:
        check_is_store(SYSTEM, Path(source.place))


def plan_files(
    source: TableSource,
    topic: str,
    known: BrokerProgress,
    *,
    split_bytes: int | None,
    allow_gap: bool,
) -> SourcePlan:
    """Return the parts of a store or an archive with the messages that a table does not have.

    Raises:
        LakeError: The source is not the one that the table was made from.
        DataLostError: Messages were deleted before they were read, unless ``allow_gap``.
        ConfigError: The source has no such topic.
        NotAStoreError: The source is neither a store nor an archive.
    """
    if is_archive(source.place):
        return _plan_archive(source, topic, known)
    return _plan_store(source, topic, known, split_bytes, allow_gap)


def is_archive(place: str) -> bool:
    """Whether a place is an archive and not a store, which cannot be at a URL."""
    if "://" in place:
        return True
    return Path(place, MANIFEST).exists() and not Path(place, COMMIT_LOG).exists()


# -- stores -----------------------------------------------------------------------------------


def _plan_store(
    source: TableSource, topic: str, known: BrokerProgress, split_bytes: int | None, allow_gap: bool
) -> SourcePlan:
    with StoreView.open(source.place, topics={topic}) as view:
        _check_topic(view, source, topic, known)
        _check_same_log(view, source, topic, known.anchor)
        end = safe_end(view)
        parts: list[QueuePart] = []
        ranges: dict[int, tuple[int, int]] = {}
        for key in view.queues.pairs():
            with closing(view.open_queue(*key)) as queue:
                low, high = queue_ends(view, queue)
                begin = first_offset(
                    source, (topic, queue.queue_id), (low, high), known, allow_gap=allow_gap
                )
                stop = max(first_at_or_after(queue, begin, high, end), begin)
                if begin < stop:
                    ranges[queue.queue_id] = begin, stop
                    parts.append(look_at(queue, begin, stop))
        splits, _ = plan_queues(view, parts, split_bytes=split_bytes)
        size = sum(part.size for part in parts)
        made = [StoreMessages(source.broker, split) for split in splits]
        # While the store is in use, the ends of its queues are not of one instant.
        read_to = end if view.state is StoreState.CLOSED else 0
        return SourcePlan(source, made, ranges, read_to, size)


def _check_topic(view: StoreView, source: TableSource, topic: str, known: BrokerProgress) -> None:
    missing = [queue_id for queue_id in known.queues if (topic, queue_id) not in view.tails]
    if missing and any(known.queues[queue_id].end for queue_id in missing):
        raise no_queue(source, topic, missing[0])
    topics = known_topics(view)
    if topic not in topics:
        existing = ", ".join(topics) or "none"
        hint = did_you_mean(topic, topics)
        raise ConfigError(
            "topic", topic, f"{source.place} has no such topic{hint}; its topics are {existing}"
        )


_REPLACED = (
    "it is a replica that lags, or its log or its topic was replaced; use the source that the "
    "table was made from, or begin a new table"
)


def no_queue(source: TableSource, topic: str, queue_id: int) -> LakeError:
    """Return the error for a source without a queue from which a table has messages."""
    return LakeError(
        f"{source}: has no queue {queue_id} of {topic}, from which the table has messages; "
        f"{_REPLACED}"
    )


def first_offset(
    source: TableSource,
    queue: tuple[str, int],
    ends: tuple[int, int],
    known: BrokerProgress,
    *,
    allow_gap: bool,
) -> int:
    """Return the offset of the first message of a queue that a table does not have.

    Args:
        source: The source.
        queue: The topic and the number of the queue.
        ends: The first and the end offset of the queue.
        known: What the table has of the broker.
        allow_gap: Whether messages may have been deleted before they were read.

    Raises:
        LakeError: The table has more of the queue than there is.
        DataLostError: Messages were deleted before they were read, unless ``allow_gap``.
    """
    (topic, queue_id), (low, high) = queue, ends
    if queue_id not in known.queues:
        return low
    begin = known.queues[queue_id].end
    if begin > high:
        raise LakeError(
            f"{source}: queue {queue_id} of {topic} ends at offset {high}, but the table has its "
            f"messages up to {begin}; {_REPLACED}"
        )
    if begin < low and not allow_gap:
        raise DataLostError(
            f"{source}: queue {queue_id} of {topic} begins at offset {low}, but the table has its "
            f"messages only up to {begin}: those in between were deleted before they were read; "
            "read them from an archive or a replica, or continue with --allow-gap"
        )
    return max(begin, low)


def _check_same_log(
    view: StoreView, source: TableSource, topic: str, anchor: NewestMessage | None
) -> None:
    """Raise LakeError if the newest message of the table is another one in the store."""
    if anchor is not None and _is_stored(view, topic, anchor) is False:
        raise other_log(source, anchor)


def _is_stored(view: StoreView, topic: str, anchor: NewestMessage) -> bool | None:
    """Whether a store has a message in its place; None if it has none there, or no longer."""
    if (topic, anchor.queue_id) not in view.tails:
        return None
    with closing(view.open_queue(topic, anchor.queue_id)) as queue:
        low, high = queue_ends(view, queue)
        if not low <= anchor.queue_offset < high:
            return None  # deleted, or reported with the offsets
        unit = queue.unit(anchor.queue_offset)
    found = None
    if unit is not None and unit.physical_offset == anchor.physical_offset:
        split = OffsetSplit(
            str(view.root), (anchor.physical_offset,), fingerprint=whole_fingerprint(view)
        )
        found = next(map(inflated_rows, read_split(split, COLUMNS)), None)
    return found is not None and is_newest(found.slice(0, 1), anchor)


def is_newest(row: pa.RecordBatch, anchor: NewestMessage) -> bool:
    """Whether a message is the newest one that a table has of a broker."""
    if row.column("physical_offset")[0].as_py() != anchor.physical_offset:
        return False
    stored = row.column("store_time").cast(pa.int64())[0].as_py() or 0
    found = row.column("msg_id")[0].as_py() or "", stored // 1000
    if found != (anchor.msg_id, anchor.store_ms):
        return False
    digest = content_digest(row)
    return not (digest and anchor.digest) or digest == anchor.digest


def other_log(source: TableSource, anchor: NewestMessage) -> LakeError:
    """Return the error for a source with another message in the place of the table's newest one."""
    return LakeError(
        f"{source}: is not the log that the table was made from: the message at "
        f"{anchor.physical_offset} is not {anchor.msg_id}; use the store that the table was made "
        "from, or begin a new table"
    )


# -- archives ---------------------------------------------------------------------------------


def _plan_archive(source: TableSource, topic: str, known: BrokerProgress) -> SourcePlan:
    lake = Lake(source.place)
    manifest = lake.require_manifest()
    with_column = manifest.layout is LakeLayout.DAY
    files = _files_of(manifest, topic)
    _check_same_archive(source, lake, topic, known.anchor)
    ends = known.ends()
    new = sorted((file for file in files if file.end > known.read_to), key=lambda file: file.start)
    parts = [
        ArchiveMessages(source.broker, lake, tuple(share), topic, with_column, ends)
        for share in _shares(new)
    ]
    size = sum(file.size for file in new)
    return SourcePlan(source, parts, None, manifest.end or 0, size)


def _shares(files: Sequence[DataFile]) -> Iterator[list[str]]:
    share: list[str] = []
    size = 0
    for file in files:
        if share and size + file.size > ARCHIVE_PART_BYTES:
            yield share
            share, size = [], 0
        share.append(file.path)
        size += file.size
    if share:
        yield share


def _check_same_archive(
    source: TableSource, lake: Lake, topic: str, anchor: NewestMessage | None
) -> None:
    """Raise LakeError if the newest message of the table is another one in the archive."""
    if anchor is None or _is_archived(lake, topic, anchor):
        return
    if _covers(lake, anchor.physical_offset):
        raise other_log(source, anchor)


def _is_archived(lake: Lake, topic: str, anchor: NewestMessage) -> bool:
    """Whether an archive has a message in its place."""
    manifest = lake.require_manifest()
    with_column = manifest.layout is LakeLayout.DAY
    for file in _files_of(manifest, topic):
        if not file.start <= anchor.physical_offset <= file.last:
            continue
        data = ds.dataset(
            [lake.folder.path(file.path)], format="parquet", filesystem=lake.folder.filesystem
        )
        found = data.to_table(
            columns=list(COLUMNS),
            filter=(pc.field("physical_offset") == anchor.physical_offset)
            & ((pc.field("topic") == topic) if with_column else pc.scalar(True)),
        )
        if found.num_rows and is_newest(inflated_rows(found.to_batches()[0].slice(0, 1)), anchor):
            return True
    return False


def has_topic(source: TableSource, topic: str) -> bool:
    """Whether a store or an archive has a topic."""
    if is_archive(source.place):
        return bool(_files_of(Lake(source.place).require_manifest(), topic))
    with StoreView.open(source.place, topics={topic}) as view:
        return topic in known_topics(view)


def files_have(source: TableSource, topic: str, anchor: NewestMessage) -> bool:
    """Whether a store or an archive has the newest message of a broker in a table, in its place."""
    if is_archive(source.place):
        return _is_archived(Lake(source.place), topic, anchor)
    with StoreView.open(source.place, topics={topic}) as view:
        return bool(_is_stored(view, topic, anchor))


def _files_of(manifest: Manifest, topic: str) -> list[DataFile]:
    return [file for file in manifest.files if file.topic <= topic <= file.last_topic]


def _covers(lake: Lake, physical_offset: int) -> bool:
    """Whether an archive has the part of the log with a physical offset."""
    ranges = lake.require_manifest().ranges
    return any(part.start <= physical_offset < part.end for part in ranges)


# -- bodies -----------------------------------------------------------------------------------


def inflated_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with decompressed bodies.

    Those that cannot be decompressed stay as they are, and keep their flag of compression.
    """
    flags = batch.column("sys_flag")
    if not pc.any(pc.not_equal(pc.bit_wise_and(flags, COMPRESSED), 0)).as_py():
        return batch
    places: Any = batch.column("physical_offset").to_pylist()
    stored = batch.column("body")
    bodies = inflate(stored, flags.to_pylist(), places, lenient=True)
    failed = pc.is_null(bodies)
    plain = pc.bit_wise_and(flags, pa.scalar(~COMPRESSED, pa.int32()))
    for name, values in (
        ("body", pc.if_else(failed, stored, bodies)),
        ("sys_flag", pc.if_else(failed, flags, plain)),
    ):
        batch = batch.set_column(batch.schema.get_field_index(name), name, values)
    return batch
