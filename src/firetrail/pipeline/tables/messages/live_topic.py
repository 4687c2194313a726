"""A topic at the running brokers of a name server, as a source of tables.

The brokers keep the names that they have at the name server. The log of a broker is recognized by
the newest message that the table has of it. Brokers offer to readers what they have stored safely:
those of Firetrail what is synced, and confirmed if their replicas have to confirm it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from firetrail.errors import ConfigError, LakeError, OutageError
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS
from firetrail.pipeline.source.plan.store_splits import EVERYTHING, QueueRange
from firetrail.pipeline.source.source_options import ReadOptions
from firetrail.pipeline.tables.messages.broker_progress import BrokerProgress, NewestMessage
from firetrail.pipeline.tables.messages.table_sources import (
    COLUMNS,
    SourcePlan,
    TableSource,
    first_offset,
    inflated_rows,
    is_newest,
    no_queue,
    other_log,
)
from firetrail.pipeline.wire.broker_plan import BrokerPart, measured, split_parts
from firetrail.pipeline.wire.broker_queues import Cluster, OffsetRange
from firetrail.pipeline.wire.broker_reader import read_wire
from firetrail.pipeline.wire.broker_splits import BrokerRange, WireSplit
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.text import some_of

_SKIP_LOST = "run the job again; if it fails again, continue with --allow-gap"


@dataclass(frozen=True, slots=True)
class LiveMessages:
    """A part of the queues of a running broker, which a task reads."""

    broker: str
    split: WireSplit
    allow_gap: bool

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages, with decompressed bodies."""
        return map(inflated_rows, read_wire(self.split, COLUMNS, allow_loss=self.allow_gap))


class LiveTopic:
    """The queues of a topic at the brokers of a name server; used as a context manager."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        self._options = options
        self._topic = topic
        self._cluster = Cluster(options)
        self._queues: list[MessageQueue] = []

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__()

    def look(self, known: Iterable[str]) -> None:
        """Ask for the queues, and wait for those of brokers of which the table has messages.

        Args:
            known: The names of these brokers.

        Raises:
            ConfigError: There is no such topic, and the table has no messages.
            LakeError: A broker is registered, but no longer has the topic.
            OutageError: No broker is registered that has queues to read.
        """
        before = self._cluster.masters()
        try:
            self._queues = self._cluster.queues(NO_BOUNDS)
        except ConfigError as error:
            if not known:
                raise ConfigError("topic", self._topic, error.allowed) from None
            self._queues = []
        # A broker that is registered before and after has been so in between.
        registered = before & self._cluster.masters()
        for name in sorted(registered & {*known} - set(self.members)):
            raise LakeError(
                f"{self._options.place}, {name}: no longer has queues of {self._topic} to read, "
                "but the table has messages of them; create the topic again only for a new table, "
                "or make it readable again"
            )
        if not self._queues:
            self._queues = self._cluster.queues(NO_BOUNDS, [self._topic])
        if not self._queues:
            raise OutageError(
                f"{self._options.place}: no registered broker has queues of {self._topic} that may "
                "be read; start the master of a broker that has them, or make the topic readable"
            )

    @property
    def members(self) -> list[str]:
        """The names of the brokers that have queues of the topic."""
        return sorted({queue.broker_name for queue in self._queues})

    def sources(
        self, given: TableSource, brokers: Mapping[str, BrokerProgress]
    ) -> list[TableSource]:
        """Return the brokers as sources: all of them, or the one that is named.

        That is the one with this name at the name server, or the one that has the newest message
        which the table has of the broker with this name.

        Args:
            given: The name server as the user named it.
            brokers: What the table has.

        Raises:
            ConfigError: It is not clear which brokers are those of the table.
            OutageError: A broker that the table knows is not found.
        """
        members = self.members
        if not given.broker:
            if brokers and not brokers.keys() & {*members}:
                raise ConfigError(
                    "source",
                    given.place,
                    f"has the {_named(members)}, but the table the {_named(sorted(brokers))}; name "
                    f"the broker as the table does: {min(brokers)}={given.place}",
                )
            return [TableSource(name, given.place, name) for name in members]
        if given.broker in members:
            return [given._replace(member=given.broker)]
        sources = [given._replace(member=name) for name in members]
        progress = brokers.get(given.broker)
        if progress is None:
            allowed = f"has no broker {given.broker}, but the {_named(members)}"
            raise ConfigError("source", given.place, allowed)
        if progress.anchor is not None:
            anchor = progress.anchor
            sources = [source for source in sources if self.has_message(source, anchor)]
        if len(sources) != 1 or progress.anchor is None:
            raise OutageError(
                f"{given.place}: has the {_named(members)}, but none of the name {given.broker}, "
                "or with the newest message that the table has of it; start it, or name another "
                "source"
            )
        return sources

    def plan(
        self,
        source: TableSource,
        known: BrokerProgress,
        *,
        split_bytes: int | None,
        allow_gap: bool,
    ) -> SourcePlan:
        """Return the parts of a broker's queues with the messages that a table does not have.

        Raises:
            LakeError: The log is not the one that the table was made from.
            DataLostError: Messages were deleted before they were read, unless ``allow_gap``.
            OutageError: The broker does not become available.
        """
        own = [queue for queue in self._queues if queue.broker_name == source.member]
        listed = {queue.queue_id for queue in own}
        for queue_id, part in sorted(known.queues.items()):
            if queue_id not in listed and part.end and not allow_gap:
                raise no_queue(source, self._topic, queue_id)
        all_ends = self._shown(source, self._cluster.ends(own), known)
        if known.anchor is not None and self._is_stored(all_ends, known.anchor) is False:
            raise other_log(source, known.anchor)
        parts = []
        for queue, low, high in all_ends:
            name = self._topic, queue.queue_id
            begin = first_offset(source, name, (low, high), known, allow_gap=allow_gap)
            if begin < high:
                parts.append(BrokerPart(queue, begin, high))
        parts = measured(self._cluster, parts)
        splits = split_parts(parts, self._options, EVERYTHING, split_bytes)
        made = [
            LiveMessages(source.broker, replace(split, skip_lost=_SKIP_LOST), allow_gap)
            for split in splits
        ]
        ranges = {part.queue.queue_id: (part.begin, part.end) for part in parts}
        size = sum(part.size for part in parts)
        return SourcePlan(source, made, None if allow_gap else ranges, 0, size)

    def has_message(self, source: TableSource, anchor: NewestMessage) -> bool:
        """Whether a broker has the newest message that a table has of a broker, in its place."""
        own = [queue for queue in self._queues if queue.broker_name == source.member]
        some = [queue for queue in own if queue.queue_id == anchor.queue_id]
        return bool(self._is_stored(self._cluster.ends(some), anchor))

    def _is_stored(self, all_ends: Iterable[OffsetRange], anchor: NewestMessage) -> bool | None:
        """Whether a broker has a message in its place; None if it has none there any longer."""
        for queue, low, high in all_ends:
            if queue.queue_id == anchor.queue_id and low <= anchor.queue_offset < high:
                row = self._row(queue, anchor.queue_offset)
                return None if row is None else is_newest(row, anchor)
        return None

    def _row(self, queue: MessageQueue, offset: int) -> pa.RecordBatch | None:
        """Return one message; None if it is deleted in this moment."""
        one = BrokerRange(
            queue.broker_name, QueueRange(queue.topic, queue.queue_id, offset, offset + 1)
        )
        options = self._options
        split = WireSplit(
            options.namesrv,
            options.group,
            (one,),
            retry_ms=options.retry_ms,
            access_file=options.access_file,
        )
        return next(map(inflated_rows, read_wire(split, COLUMNS, allow_loss=True)), None)

    def _shown(
        self, source: TableSource, all_ends: list[OffsetRange], known: BrokerProgress
    ) -> list[OffsetRange]:
        """Return the ends of queues, and wait for messages that a broker may hide for a while.

        After an unclean stop, a broker does not know exactly what its replicas have confirmed, and
        may show less than before. Then its last message is older than the table's newest one.
        """
        reach = {queue: known.ends().get(queue.queue_id, 0) for queue, _, _ in all_ends}
        short = [ends for ends in all_ends if ends.high < reach[ends.queue]]
        for ends in short:
            last = None if ends.low == ends.high else self._row(ends.queue, ends.high - 1)
            if last is None or known.anchor is None or not _is_before(last, known.anchor):
                return all_ends  # another log: what follows refuses it
        if not short:
            return all_ends
        return self._cluster.ends([ends.queue for ends in all_ends], reach)


def _is_before(row: pa.RecordBatch, anchor: NewestMessage) -> bool:
    stored = row.column("store_time").cast(pa.int64())[0].as_py() or 0
    place = row.column("physical_offset")[0].as_py()
    return bool(place < anchor.physical_offset and stored // 1000 <= anchor.store_ms)


def _named(brokers: list[str]) -> str:
    return f"{'broker' if len(brokers) == 1 else 'brokers'} {some_of(brokers)}"
