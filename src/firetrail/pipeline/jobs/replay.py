"""Replay: messages that a SQL predicate chooses, copied to a topic of a store.

Spark finds the messages: where they stand in the log, and nothing else of them. One process then
copies them from there, in the order of each queue, in commits that are visible completely or not
at all (:mod:`firetrail.store.bulk`) and that have as their number how far the source was copied.
Run again, a replay goes on behind its last commit: after a kill, and for messages that came since.

A copy has the body, flag, queue id and properties of its message, and its id as a property.
Properties by which a store delays or commits messages are left out, times and born host are new.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from firetrail.errors import StoreError
from firetrail.format import layout, properties
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.names import check_topic
from firetrail.format.properties import decode_properties, encode_properties
from firetrail.format.record import Record, decode_message
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.jobs.archive import safe_end
from firetrail.pipeline.jobs.sql import sql
from firetrail.pipeline.source.places import is_remote
from firetrail.pipeline.source.planning import plan_log
from firetrail.store.bulk import BulkAppend, Ticket, committed_number
from firetrail.store.config import StoreConfig
from firetrail.store.view import StoreView

ORIGIN = "REPLAY_ORIGIN"
"""Property of a copy: the offset id of the message that it was made from."""
SEARCH_BYTES = 4 << 30
"""Of the log, searched at once: what is found in it is in memory, 12 bytes a message."""
COMMIT_BYTES = 64 << 20
COMMIT_MESSAGES = 100_000
_LEFT_OUT = {
    properties.DELAY,
    properties.REAL_TOPIC,
    properties.REAL_QID,
    properties.TRAN_MSG,
    properties.TRAN_PREPARED_QUEUE_OFFSET,
    properties.TRANSACTION_ID,
    layout.PROPERTY_CRC_NAME.decode(),
}
_LEFT_OUT_BYTES = tuple(name.encode() + b"\x01" for name in _LEFT_OUT)
_COMPRESSION = 0x701  # whether, and how: RocketMQ 5 keeps the kind in bits 8 to 10
_IN_A_QUEUE = "sys_flag & 12 in (0, 8)"


class Replayed(NamedTuple):
    """What a run has done."""

    replay: str  # its id
    messages: int
    bytes: int
    commits: int
    start: int  # physical offsets of the source
    end: int
    dry_run: bool


class _Found(NamedTuple):
    """A message that the predicate chose."""

    offset: int
    size: int


def replay(
    spark: SparkSession,
    source: str | Path,
    target: str | Path | None,
    *,
    where: str,
    topic: str | None = None,
    replay_id: str | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    config: StoreConfig | None = None,
    on_progress: Callable[[int], None] = lambda offset: None,
) -> Replayed:
    """Copy the messages for which ``where`` holds, to ``topic`` or each to its own topic.

    ``rate`` limits the messages per second. A replay is known again by ``replay_id``, or by what it
    was asked for. ``target`` must not be in use; without one, what would be copied is counted.
    ``on_progress`` hears how many bytes of the source's log are done.
    """
    if is_remote(str(source)):
        raise StoreError(f"{source}: replay reads single messages, which needs a local folder")
    if topic is not None:
        check_topic(topic)
    settings = config or StoreConfig()
    root = None if target is None or dry_run else Path(target).absolute()
    name = replay_id or _id_of(str(Path(source).resolve()), where, topic)
    done = -1 if root is None else committed_number(root, settings, name)
    with StoreView.open(source) as view:
        job = _Replay(spark, view, where, topic, rate)
        start, end = max(done, view.log.min_offset), safe_end(view)
        if root is not None:
            job.skip_copies(root)
            job.copy_to(root, settings, name, start, end, on_progress)
        else:
            job.count(start, end, on_progress)
    return Replayed(name, job.messages, job.bytes, job.commits, start, end, root is None)


def _id_of(*parts: str | None) -> str:
    return "replay-" + hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class _Replay:
    """One run."""

    def __init__(
        self,
        spark: SparkSession,
        view: StoreView,
        where: str,
        topic: str | None,
        rate: float | None,
    ) -> None:
        self._spark = spark
        self._view = view
        self._where = f"{_IN_A_QUEUE} and ({where})"
        self._topic = topic
        self._rate = rate
        self.messages = self.bytes = self.commits = 0

    def skip_copies(self, target: Path) -> None:
        """In the store that the copies go to, they are not messages to be copied again."""
        if target.resolve() != self._view.root.resolve():
            return
        if self._topic is None:
            raise StoreError(
                f"{target}: source and target of the replay; name another topic with --topic"
            )
        self._where += f" and topic <> '{self._topic}'"

    def find(self, start: int, end: int) -> Iterator[_Found]:
        """The chosen messages, in the order of the log."""
        for split in plan_log(self._view, start, end, split_bytes=SEARCH_BYTES):
            query = (
                f"select physical_offset, size from log where {self._where} "
                f"and physical_offset >= {split.start} and physical_offset < {split.end}"
            )
            with original_errors():
                found = sql(self._spark, self._view.root, query).toArrow()
            for batch in found.sort_by("physical_offset").to_batches():
                offsets, sizes = (column.to_pylist() for column in batch.columns)
                yield from map(_Found, offsets, sizes)

    def count(self, start: int, end: int, on_progress: Callable[[int], None]) -> None:
        """Look what would be copied."""
        for found in self.find(start, end):
            self.messages += 1
            self.bytes += found.size
            on_progress(found.offset - start)

    def copy_to(
        self,
        target: Path,
        config: StoreConfig,
        name: str,
        start: int,
        end: int,
        on_progress: Callable[[int], None],
    ) -> None:
        """Copy in commits, not faster than the rate."""
        begun = time.monotonic()
        found = self.find(start, end)
        while chosen := list(self._slice(found)):
            behind = chosen[-1].offset + chosen[-1].size
            self._commit(target, config, Ticket(name, behind), chosen)
            on_progress(behind - start)
            if self._rate is not None:
                ahead = begun + self.messages / self._rate - time.monotonic()
                time.sleep(max(ahead, 0))
        with BulkAppend(target, config, Ticket(name, end)) as bulk:
            if not bulk.done:  # nothing more is chosen up to the end
                bulk.commit()

    def _slice(self, found: Iterator[_Found]) -> Iterator[_Found]:
        """What goes into one commit."""
        most = COMMIT_MESSAGES if self._rate is None else max(int(self._rate), 1)
        size = 0
        for one in islice(found, min(most, COMMIT_MESSAGES)):
            yield one
            size += one.size
            if size >= COMMIT_BYTES:
                return

    def _commit(
        self, target: Path, config: StoreConfig, ticket: Ticket, chosen: list[_Found]
    ) -> None:
        with BulkAppend(target, config, ticket) as bulk:
            if bulk.done:
                return
            waiting: dict[tuple[str, int, int], list[BatchItem]] = {}
            for offset, size in chosen:
                record = self._read(offset, size)
                key = self._topic or record.topic, record.queue_id, record.sys_flag & _COMPRESSION
                items = waiting.setdefault(key, [])
                items.append(BatchItem(record.flag, record.body, _properties(record)))
                if len(items) >= 256:
                    bulk.add(*key[:2], encode_batch(waiting.pop(key)), key[2])
            for key, items in waiting.items():
                bulk.add(*key[:2], encode_batch(items), key[2])
            bulk.commit()
        self.messages += len(chosen)
        self.bytes += sum(one.size for one in chosen)
        self.commits += 1

    def _read(self, offset: int, size: int) -> Record:
        content = self._view.log.read(offset, size)
        if content is None:
            raise StoreError(
                f"{self._view.root}: the message at {offset} is not there any more; run the "
                "replay again"
            )
        return decode_message(content)


def _properties(record: Record) -> bytes:
    """The properties of a copy."""
    raw = record.raw_properties
    if any(name in raw for name in _LEFT_OUT_BYTES):
        kept = {n: v for n, v in decode_properties(raw).items() if n not in _LEFT_OUT}
        raw = b"".join(f"{name}\x01{value}\x02".encode() for name, value in kept.items())
    if raw and not raw.endswith(b"\x02"):
        raw += b"\x02"
    return raw + encode_properties({ORIGIN: record.message_id})
