"""Replay: messages that a SQL predicate chooses, copied to a topic of a store or of brokers.

Spark finds the messages: where they stand in the log, and nothing else of them. One process then
copies them from there, in the order of each queue, in commits that have as their number how far the
source was copied (:mod:`firetrail.pipeline.jobs.replay.targets`). Run again, a replay goes on
behind its last commit: after a kill, and for messages that came since.

A copy has the body, flag, queue id and properties of its message, and its id as a property.
Properties by which a store delays or commits messages are left out, times and born host are new.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from firetrail.errors import StoreError
from firetrail.format import layout, properties
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.names import check_topic, name_server
from firetrail.format.properties import decode_properties, encode_properties
from firetrail.format.record import Record, decode_message
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.jobs.archive.job import anchor_of, safe_end
from firetrail.pipeline.jobs.replay.targets import BrokerTarget, ReplayPiece, StoreTarget, Target
from firetrail.pipeline.jobs.sql import sql
from firetrail.pipeline.source.log_splits import plan_log
from firetrail.pipeline.source.places import is_remote
from firetrail.store.config import StoreConfig
from firetrail.store.inspect.view import StoreView

ORIGIN = "REPLAY_ORIGIN"
"""Property of a copy: the offset id of the message that it was made from."""
SEARCH_BYTES = 4 << 30
"""Of the log, searched at once: what is found in it is in memory, 12 bytes a message."""
PIECE_BYTES = 256 << 10
PIECE_MESSAGES = 256
"""Copies that go together: brokers take no batch of more than 4 MiB."""
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
    was asked for. ``target`` is a store that is not in use, or ``namesrv=HOST:PORT`` for brokers;
    without one, what would be copied is counted. ``on_progress`` hears how many bytes of the
    source's log are done.
    """
    if name_server(str(source)) is not None:
        raise StoreError(
            f"{source}: replay reads the files of a store; from brokers, write what the data "
            "source reads with its sink"
        )
    if is_remote(str(source)):
        raise StoreError(f"{source}: replay reads single messages, which needs a local folder")
    if topic is not None:
        check_topic(topic)
    name = replay_id or _id_of(str(Path(source).resolve()), where, topic)
    with ExitStack() as opened:
        goal: Target | None = None
        namesrv = name_server(str(target))
        if target is not None and not dry_run:
            if namesrv is not None:
                goal = opened.enter_context(BrokerTarget(namesrv, Path(source), name))
            else:
                goal = StoreTarget(Path(target).absolute(), config or StoreConfig(), name)
        done = -1 if goal is None else goal.done()
        view = opened.enter_context(StoreView.open(source))
        job = _Replay(spark, view, where, topic, rate)
        start, end = max(done, view.log.min_offset), safe_end(view)
        if goal is None:
            job.count(start, end, on_progress)
        else:
            if isinstance(goal, StoreTarget):
                job.skip_copies(goal.root)
            if done >= 0:
                _check_source(view, goal, name)
            job.copy_to(goal, start, end, on_progress)
    return Replayed(name, job.messages, job.bytes, job.commits, start, end, goal is None)


def _check_source(view: StoreView, target: Target, name: str) -> None:
    """Raise StoreError unless the store is the one that the replay was begun with.

    What was noted as done would be skipped in another one, too. Records that retention has deleted
    since tell nothing.
    """
    known = [item for item in target.anchors().items() if item[1] >= view.log.min_offset]
    for sha256, offset in known:
        found = anchor_of(view, offset)
        if found is not None and found.sha256 == sha256:
            return
    if known:
        raise StoreError(
            f"{view.root}: not the store that {name} was begun with, or its log goes on "
            f"differently: the record at {known[0][1]} is another; give the replay of this store "
            "a name of its own with --id"
        )


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
        self, target: Target, start: int, end: int, on_progress: Callable[[int], None]
    ) -> None:
        """Copy in commits, not faster than the rate."""
        begun = time.monotonic()
        found = self.find(start, end)
        chosen = list(self._slice(found, target))
        self._note_source(target)
        while chosen:
            behind = chosen[-1].offset + chosen[-1].size
            if target.commit(behind, self._pieces(chosen, target)):
                self.commits += 1
            on_progress(behind - start)
            if self._rate is not None:
                ahead = begun + self.messages / self._rate - time.monotonic()
                time.sleep(max(ahead, 0))
            chosen = list(self._slice(found, target))
        target.commit(end, ())  # nothing more is chosen up to there

    def _note_source(self, target: Target) -> None:
        """Let the target know the source by its oldest record, unless it does."""
        oldest = anchor_of(self._view, self._view.log.min_offset)
        if oldest is not None and not target.anchors():
            target.note_anchor(oldest.sha256, oldest.offset)

    def _slice(self, found: Iterator[_Found], target: Target) -> Iterator[_Found]:
        """What goes into one commit."""
        most = target.commit_messages if self._rate is None else max(int(self._rate), 1)
        size = 0
        for one in islice(found, min(most, target.commit_messages)):
            yield one
            size += one.size
            if size >= target.commit_bytes:
                return

    def _pieces(self, chosen: list[_Found], target: Target) -> Iterator[ReplayPiece]:
        """The copies by queue, and each queue's in order.

        A piece has one kind of compression, so it ends where another kind begins.
        """
        waiting: dict[tuple[str, int], list[BatchItem]] = {}
        sizes: dict[tuple[str, int], int] = {}
        kinds: dict[tuple[str, int], int] = {}

        def close(key: tuple[str, int]) -> ReplayPiece:
            del sizes[key]
            return ReplayPiece(*key, encode_batch(waiting.pop(key)), kinds.pop(key))

        for offset, size in chosen:
            record = self._read(offset, size)
            if target.is_home(str(record.store_host)) and self._is_copy(record):
                continue
            key = self._topic or record.topic, record.queue_id
            kind = record.sys_flag & _COMPRESSION
            if kinds.setdefault(key, kind) != kind:
                yield close(key)
                kinds[key] = kind
            items = waiting.setdefault(key, [])
            items.append(BatchItem(record.flag, record.body, _properties(record)))
            sizes[key] = sizes.get(key, 0) + size
            self.messages += 1
            self.bytes += size
            if len(items) >= PIECE_MESSAGES or sizes[key] >= PIECE_BYTES:
                yield close(key)
        yield from map(close, list(waiting))

    def _is_copy(self, record: Record) -> bool:
        """Whether a message of the brokers that the copies go to is one; StoreError if unclear."""
        if self._topic is None:
            raise StoreError(
                f"{record.store_host}: source and target of the replay; name another topic with "
                "--topic"
            )
        return record.topic == self._topic

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
