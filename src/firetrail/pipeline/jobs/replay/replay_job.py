"""The replay job: copies messages selected by a SQL predicate to a topic of a store or of brokers.

Spark finds the positions of the messages in the log. One process then copies the messages, each
queue in order, in numbered commits; the number is the offset up to which the source is copied
(:mod:`firetrail.pipeline.jobs.replay.targets`). If a replay is run again, after a kill or for newer
messages, it continues after its last commit.

A copy has the body, flag, queue id and properties of the message, and the message's id as a further
property. Properties that make a store delay or commit a message are left out. The times and the
born host of the copy are new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from firetrail.errors import StoreError
from firetrail.format import layout, properties
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.kernels.properties import join_properties
from firetrail.format.names import check_topic, name_server
from firetrail.format.properties import closed_properties, decode_properties, encode_properties
from firetrail.format.record import Record, decode_message
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.jobs.archive.archive_job import anchor_of
from firetrail.pipeline.jobs.replay.targets import BrokerTarget, ReplayPiece, StoreTarget, Target
from firetrail.pipeline.jobs.sql import Mode, sql
from firetrail.pipeline.source.places import is_remote
from firetrail.pipeline.source.plan.log_splits import plan_log, safe_end
from firetrail.store.inspect.view import StoreView
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import SYSTEM

ORIGIN = "REPLAY_ORIGIN"
"""Property of a copy: the offset id of the original message."""
SEARCH_BYTES = 4 << 30
"""Bytes of log per query; the results of a query are held in memory, 12 bytes per message."""
PIECE_BYTES = 256 << 10
PIECE_MESSAGES = 256
"""Limits of a batch of copies; brokers take no batch of more than 4 MiB."""
_LEFT_OUT = {
    properties.DELAY,
    *properties.TIMER_TIMES,
    properties.REAL_TOPIC,
    properties.REAL_QID,
    properties.TRAN_MSG,
    properties.TRAN_PREPARED_QUEUE_OFFSET,
    properties.TRANSACTION_ID,
    layout.PROPERTY_CRC_NAME.decode(),
}
_LEFT_OUT_BYTES = tuple(name.encode() + b"\x01" for name in _LEFT_OUT)
_COMPRESSION = 0x701  # bit 0: is compressed; bits 8 to 10: the method, in RocketMQ 5
_IN_A_QUEUE = f"sys_flag & {layout.NO_QUEUE_OFFSET} = 0"


class ReplayResult(NamedTuple):
    """The result of a run."""

    replay: str  # id of the replay
    messages: int  # copied, or counted in a dry run
    bytes: int  # of their records
    commits: int
    start: int  # physical offsets of the source
    end: int
    dry_run: bool
    skipped: int  # damaged positions in that range, counted with mode="permissive"


class _SelectedMessage(NamedTuple):
    """A message that the predicate selects."""

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
    mode: Mode = "failfast",
    config: StoreConfig | None = None,
    on_progress: Callable[[int], None] = lambda offset: None,
) -> ReplayResult:
    """Copy messages to a store or to brokers.

    If the replay is run again with the same id, it continues after its last commit.

    Args:
        spark: The session to run on.
        source: Folder of the store to copy from. It may be in use.
        target: Folder of a store that is not in use, or ``namesrv=HOST:PORT`` for brokers. None
            only counts the messages that would be copied.
        where: SQL predicate over the columns of the table ``log``, such as
            ``"topic = 'orders' and store_time >= '2026-11-01'"``.
        topic: Topic of the copies. None, the default, keeps each message's own topic.
        replay_id: Name under which progress is recorded. By default it is derived from ``source``,
            ``where`` and ``topic``.
        rate: Limit in messages per second; None, the default, means no limit.
        dry_run: Only count the messages, even if there is a target.
        mode: ``failfast``, the default, fails at a damaged record, selected or not. ``permissive``
            skips damaged records and counts them, which reads the log once more. A replay that
            failed can be continued with it.
        config: Settings of the target if it is a store; the defaults if None.
        on_progress: Called with the number of bytes of the source's log that are processed.

    Returns:
        The numbers of messages, bytes and commits, the range of the log, and the number of damaged
        positions that were skipped in it.

    Raises:
        StoreError: The source is not a local store, is not the one that the replay was begun with,
            or is also the target without another ``topic``.
        StoreDamagedError: A record is damaged, unless ``mode`` is ``permissive``.
        StoreLockedError: Another process has the target store open.
        PipelineError: ``where`` is not valid, or the brokers cannot be reached.
        IllegalMessageError: ``topic`` is not a valid name.
    """
    _check_local(str(source))
    if topic is not None:
        check_topic(topic)
    name = replay_id or _id_of(str(Path(source).resolve()), where, topic)
    with ExitStack() as opened:
        goal: Target | None = None
        if target is not None and not dry_run:
            if (namesrv := name_server(str(target))) is not None:
                goal = opened.enter_context(BrokerTarget(namesrv, Path(source), name))
            else:
                goal = StoreTarget(Path(target).absolute(), config or StoreConfig(), name)
        done = -1 if goal is None else goal.done()
        view = opened.enter_context(StoreView.open(source))
        job = _Replay(spark, view, where, topic, rate, mode)
        start, end = max(done, view.log.min_offset), safe_end(view)
        if goal is None:
            job.count(start, end, on_progress)
        else:
            if isinstance(goal, StoreTarget):
                job.skip_copies(goal.root)
            if done >= 0:
                _check_source(view, goal, name)
            job.copy_to(goal, start, end, on_progress)
        skipped = job.count_damage(start, end) if mode == "permissive" else 0
    return ReplayResult(
        replay=name,
        messages=job.messages,
        bytes=job.bytes,
        commits=job.commits,
        start=start,
        end=end,
        dry_run=goal is None,
        skipped=skipped,
    )


def _check_local(source: str) -> None:
    """Raise StoreError unless the source is a local folder."""
    if name_server(source) is not None:
        raise StoreError(
            f"{source}: replay reads the files of a store; to copy from brokers, read with the "
            "data source and write with its sink"
        )
    if is_remote(source):
        raise StoreError(
            f"{source}: replay reads single messages, which needs a local folder; copy the store "
            "to one"
        )


def _check_source(view: StoreView, target: Target, name: str) -> None:
    """Raise StoreError unless the store is the one that the replay was begun with.

    In another store, the offsets recorded as copied would be skipped although they were not.
    Records that retention has deleted since are not compared.
    """
    known = [item for item in target.anchors().items() if item[1] >= view.log.min_offset]
    for sha256, offset in known:
        found = anchor_of(view, offset)
        if found is not None and found.sha256 == sha256:
            return
    if known:
        raise StoreError(
            f"{view.root}: is not the store that {name} was begun with, or its log has changed: "
            f"the record at {known[0][1]} is another one; give the replay of this store an id of "
            "its own with --id"
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
        mode: Mode,
    ) -> None:
        self._spark = spark
        self._view = view
        self._where = f"{_IN_A_QUEUE} and ({where})"
        self._topic = topic
        self._rate = rate
        self._mode: Mode = mode
        self.messages = self.bytes = self.commits = 0

    def skip_copies(self, target: Path) -> None:
        """Exclude the copies themselves if the store is also the target."""
        if target.resolve() != self._view.root.resolve():
            return
        if self._topic is None:
            raise StoreError(
                f"{target}: is source and target of the replay; name another topic with --topic"
            )
        self._where += f" and topic <> '{self._topic}'"

    def find(self, start: int, end: int) -> Iterator[_SelectedMessage]:
        """Yield the selected messages in the order of the log."""
        for split in plan_log(self._view, start, end, split_bytes=SEARCH_BYTES):
            query = (
                f"select physical_offset, size from log where {self._where} "
                f"and physical_offset >= {split.start} and physical_offset < {split.end}"
            )
            with original_errors():
                found = sql(self._spark, self._view.root, query, mode=self._mode).toArrow()
            for batch in found.sort_by("physical_offset").to_batches():
                offsets, sizes = (column.to_pylist() for column in batch.columns)
                yield from map(_SelectedMessage, offsets, sizes)

    def count(self, start: int, end: int, on_progress: Callable[[int], None]) -> None:
        """Count the messages that would be copied."""
        for found in self.find(start, end):
            self.messages += 1
            self.bytes += found.size
            on_progress(found.offset - start)

    def count_damage(self, start: int, end: int) -> int:
        """Return the number of damaged positions in a range of the log."""
        damage = self._spark.read.format("rocketmq").option("view", "damage")
        found = damage.load(str(self._view.root))
        with original_errors():
            return found.where(f"physical_offset >= {start} and physical_offset < {end}").count()

    def copy_to(
        self, target: Target, start: int, end: int, on_progress: Callable[[int], None]
    ) -> None:
        """Copy in commits, at most at the given rate."""
        begun = SYSTEM.clock.monotonic()
        found = self.find(start, end)
        chosen = list(self._slice(found, target))
        self._note_source(target)
        while chosen:
            copied_to = chosen[-1].offset + chosen[-1].size
            if target.commit(copied_to, self._pieces(chosen, target)):
                self.commits += 1
            on_progress(copied_to - start)
            if self._rate is not None:
                ahead = begun + self.messages / self._rate - SYSTEM.clock.monotonic()
                SYSTEM.clock.sleep_ms(round(1000 * max(ahead, 0)))
            chosen = list(self._slice(found, target))
        target.commit(end, ())  # nothing more is selected up to the end

    def _note_source(self, target: Target) -> None:
        """Record the source's oldest record in the target, unless it has one to identify it."""
        oldest = anchor_of(self._view, self._view.log.min_offset)
        if oldest is not None and not target.anchors():
            target.note_anchor(oldest.sha256, oldest.offset)

    def _slice(
        self, found: Iterator[_SelectedMessage], target: Target
    ) -> Iterator[_SelectedMessage]:
        most = target.commit_messages if self._rate is None else max(int(self._rate), 1)
        size = 0
        for one in islice(found, min(most, target.commit_messages)):
            yield one
            size += one.size
            if size >= target.commit_bytes:
                return

    def _pieces(self, chosen: list[_SelectedMessage], target: Target) -> Iterator[ReplayPiece]:
        """Yield the copies by queue, each queue in order.

        All messages of a piece are compressed in the same way, so a piece ends where that changes.
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
        """Whether a message of the target brokers is a copy; raise StoreError if unknown."""
        if self._topic is None:
            raise StoreError(
                f"{record.store_host}: is source and target of the replay; name another topic "
                "with --topic"
            )
        return record.topic == self._topic

    def _read(self, offset: int, size: int) -> Record:
        content = self._view.log.read(offset, size)
        if content is None:
            raise StoreError(
                f"{self._view.root}: the message at {offset} was deleted during the replay, "
                "probably by retention; run the replay again"
            )
        return decode_message(content)


def _properties(record: Record) -> bytes:
    """Return the encoded properties of a copy."""
    raw = record.raw_properties
    if any(name in raw for name in _LEFT_OUT_BYTES):
        kept = {n: v for n, v in decode_properties(raw).items() if n not in _LEFT_OUT}
        raw = join_properties(kept).encode()
    return closed_properties(raw) + encode_properties({ORIGIN: record.message_id})
