"""A check of a table against its sources, with code that the job which writes tables does not use.

Messages are read one by one, as brokers serve them, from a running broker by the client, or from
the dataset of an archive; rows are read by the library of the table's format. Only the decoder is
the same, and the reading of keys from text. Memory is needed for one position per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from firetrail.client.consumers.pull_consumer import PullConsumer
from firetrail.client.messages.received_message import Received
from firetrail.errors import ConfigError, DataLostError, FormatError
from firetrail.format.compression import inflated
from firetrail.format.layout import COMPRESSED, takes_queue_offset
from firetrail.format.record import decode_message
from firetrail.pipeline.decoding.body_decoder import BodyDecoder, Operation, TableRows
from firetrail.pipeline.lakes.lake_reader import lake_dataset
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.table_columns import REASON, VALIDITY
from firetrail.pipeline.tables.files.table_manifest import MAIN, REJECTED, TableManifest
from firetrail.pipeline.tables.keyed.keyed_rows import key_value
from firetrail.pipeline.tables.messages.open_sources import OpenSources
from firetrail.pipeline.tables.messages.reject_reasons import is_of_row
from firetrail.pipeline.tables.messages.table_sources import (
    TableSource,
    is_archive,
    source_list,
)
from firetrail.pipeline.tables.runs.expected_history import (
    ExpectedHistory,
    HistoryVersion,
    MessagePlace,
    RowMark,
)
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.table_reader import stored_rows
from firetrail.pipeline.tables.table_options import decoder_spec
from firetrail.pipeline.wire.broker_access_file import access_in
from firetrail.pipeline.wire.loop import Loop
from firetrail.store.inspect.view import StoreView

_BATCH = 1000
_SHOWN = 10
_WAIT_S = 10.0
"""The time that a pull waits for a broker that cannot be reached."""


class Verification(NamedTuple):
    """The result: numbers of messages, and examples of what differs."""

    table: str
    messages: int  # of the sources that the table should have
    rows: int  # in the table
    rejected: int
    unreadable: int  # messages that the sources no longer have, and the table may have
    missing: int
    repeated: int
    unexpected: int
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the table has exactly the messages that it should have."""
        return not self.missing and not self.repeated and not self.unexpected


class _SourceMessage(NamedTuple):
    place: MessagePlace
    physical_offset: int
    store_ms: int
    keys: Sequence[str]
    body: bytes | None
    """None if it cannot be decompressed."""
    tags: str | None = None


@names_table
def verify_table(
    source: str | Path | Sequence[str | Path],
    to: str | Path,
    *,
    source_options: Mapping[str, str] | None = None,
) -> Verification:
    """Compare a table with the messages of its topic.

    Args:
        source: The sources, as for :func:`~firetrail.pipeline.table`. Messages that several of them
            have are compared once.
        to: Folder of the table, which no job may be writing.
        source_options: As for :func:`~firetrail.pipeline.table`. Default: none.

    Returns:
        The numbers of messages and rows, and what differs.

    Raises:
        LakeError: The folder has no table, or a run was killed and has to be completed first.
        ConfigError: The table has no message columns.
        DataLostError: The table has a key, and the sources lack messages.
        OutageError: A name server or broker does not become available.
    """
    publication = Publication(str(to))
    manifest = publication.require_manifest()
    if manifest.prefix is None:
        raise ConfigError("message_columns", False, "without them, rows cannot be compared")
    publication.check_alone(manifest)
    publication.check_settled(manifest)
    with OpenSources(source_list(source), source_options) as opened:
        sources = opened.found(manifest.topic, manifest.brokers)
        return TableCheck(publication, manifest, opened).run(sources)


class TableCheck:
    """One comparison."""

    def __init__(
        self, publication: Publication, manifest: TableManifest, opened: OpenSources
    ) -> None:
        self._opened = opened
        self._publication = publication
        self._manifest = manifest
        self._spec = decoder_spec(manifest.options)
        self._decoder: BodyDecoder = self._spec.decoder(manifest.schema)
        validity = list(VALIDITY) if manifest.history else []
        self._found = Counter(
            RowMark(*values) for values in self._rows(MAIN, str(manifest.prefix), validity)
        )
        self._rejected: Counter[RowMark] = Counter()
        self._wholly_rejected: set[MessagePlace] = set()
        for *values, reason in self._rows(REJECTED, "_", (), REASON):
            mark = RowMark(*values)
            self._rejected[mark] += 1
            if not is_of_row(str(reason)):
                self._wholly_rejected.add(mark.place)
        self._expected: Counter[RowMark] = Counter()
        self._expected_rejects: Counter[RowMark] = Counter()
        self._newest: dict[Any, tuple[_SourceMessage, bool]] = {}
        self._history = ExpectedHistory()
        self.seen: set[MessagePlace] = set()
        """The messages that the sources have; those of no row may be among them."""

    def run(self, sources: Sequence[TableSource]) -> Verification:
        for source in sources:
            for messages in self.new_messages(source):
                self.expect(messages)
        return self.result()

    def new_messages(self, source: TableSource) -> Iterator[list[_SourceMessage]]:
        """Yield the messages of a source that no other source had."""
        waiting: list[_SourceMessage] = []
        for message in self._messages(source):
            if message.place not in self.seen:
                self.seen.add(message.place)
                waiting.append(message)
            if len(waiting) >= _BATCH:
                yield waiting
                waiting = []
        yield waiting

    def has_rejected(self, place: MessagePlace) -> bool:
        """Whether a message is among the rejected ones."""
        return RowMark(*place) in self._rejected

    def expect_reject(self, place: MessagePlace) -> None:
        """Note that a message must be among the rejected ones."""
        self._expected_rejects[RowMark(*place)] = 1

    def result(self) -> Verification:
        """Return what differs, after all messages were expected."""
        unreadable = self._unreadable()
        if self._manifest.key and unreadable.total():
            raise DataLostError(
                f"{self._publication.lake.place}: the sources no longer have {unreadable.total()} "
                "messages that the table has read, so the newest versions are not known; name an "
                "archive, too"
            )
        for message, gone in self._newest.values():
            if not gone:
                self._expected[RowMark(*message.place)] += 1
        self._expected.update(self._history.rows())
        return self._result(unreadable)

    def _result(self, unreadable: Counter[tuple[str, int]]) -> Verification:
        missing: set[RowMark] = set()
        repeated: set[RowMark] = set()
        unexpected = set(self._foreign(unreadable))
        for found, expected in (
            (self._found, self._expected),
            (self._rejected, self._expected_rejects),
        ):
            missing |= {mark for mark, number in expected.items() if found[mark] < number}
            read = {mark: number for mark, number in found.items() if mark.place in self.seen}
            more = {mark for mark, number in read.items() if number > expected[mark]}
            repeated |= {mark for mark in more if expected[mark]}
            unexpected |= {mark for mark in more if not expected[mark]}
        examples = [
            f"{what}: {mark}"
            for what, marks in (
                ("missing", missing),
                ("repeated", repeated),
                ("unexpected", unexpected),
            )
            for mark in sorted(marks, key=_order)[:_SHOWN]
        ]
        return Verification(
            table=self._publication.lake.place,
            messages=len(self.seen),
            rows=self._found.total(),
            rejected=self._rejected.total(),
            unreadable=unreadable.total(),
            missing=len(missing),
            repeated=len(repeated),
            unexpected=len(unexpected),
            examples=tuple(examples),
        )

    def _unreadable(self) -> Counter[tuple[str, int]]:
        """Return, by broker and queue, the messages of the table that the sources do not have."""
        seen = Counter((broker, queue_id) for broker, queue_id, _ in self.seen)
        return Counter(
            {
                (name, queue_id): max(part.end - part.begin - part.lost - seen[name, queue_id], 0)
                for name, progress in self._manifest.brokers.items()
                for queue_id, part in progress.queues.items()
            }
        )

    def _foreign(self, unreadable: Counter[tuple[str, int]]) -> Iterator[RowMark]:
        """Yield the places of rows and rejects that cannot be those of messages of the table.

        A place that the sources do not have may be that of an unreadable message of its queue, as
        long as there are no more places than such messages.
        """
        possible = unreadable.copy()
        places = {mark.place for mark in (*self._found, *self._rejected)} - self.seen
        for place in sorted(places, key=_order):
            broker, queue_id, offset = place
            part = self._manifest.progress(broker).queues.get(queue_id)
            within = part is not None and offset is not None and part.begin <= offset < part.end
            if within and possible[broker, queue_id]:
                possible[broker, queue_id] -= 1
            else:
                yield RowMark(*place)

    # -- what the table should have -----------------------------------------------------------

    def expect(self, messages: Sequence[_SourceMessage]) -> None:
        """Decode messages, and note the rows and rejects that there should be of them."""
        readable = []
        for message in messages:
            if message.body is None:
                self._expected_rejects[RowMark(*message.place)] = 1
            else:
                readable.append(message)
        if readable:
            self._expect_decoded(readable)

    def _expect_decoded(self, messages: Sequence[_SourceMessage]) -> None:
        decoded = self._decoder.decode([message.body for message in messages])
        if any(map(self._changes_key, decoded.parts)):
            if len(messages) == 1:
                self._expected_rejects[RowMark(*messages[0].place)] = 1
                return
            half = len(messages) // 2
            self._expect_decoded(messages[:half])
            self._expect_decoded(messages[half:])
            return
        rejects = Counter(reject.message for reject in decoded.rejects)
        versions: dict[int, list[tuple[Any, bool]]] = {}
        for part in decoded.parts:
            deletes = [operation == Operation.DELETE for operation in part.operations.to_pylist()]
            indexes = part.messages.to_pylist()
            for at, gone, key in zip(indexes, deletes, self._keys(part), strict=True):
                if gone and key is None:
                    key = self._own_key(messages[at], part.rows.schema)
                if key is None or (gone and not self._manifest.key):
                    rejects[at] += 1
                else:
                    versions.setdefault(at, []).append((key, gone))
        for at, message in enumerate(messages):
            if message.place in self._wholly_rejected:  # also if it fits since then
                self._expected_rejects[RowMark(*message.place)] = 1
                continue
            if rejects[at]:
                self._expected_rejects[RowMark(*message.place)] = rejects[at]
            for version, gone in versions.get(at, ()):
                self._expect_row(version, message, gone)

    def _expect_row(self, key: Any, message: _SourceMessage, gone: bool) -> None:
        if self._manifest.history:
            version = HistoryVersion(message.place, message.store_ms, gone)
            self._history.add(key, message.physical_offset, version)
        elif self._manifest.key:
            self._compete(key, message._replace(body=None), gone)
        else:
            self._expected[RowMark(*message.place)] += 1

    def _changes_key(self, part: TableRows) -> bool:
        """Whether rows have keys of another type, for which their messages were rejected."""
        kinds = ((part.schema.type_of(name), name) for name in self._manifest.key)
        return any(kind != self._manifest.schema.type_of(name) for kind, name in kinds)

    def _keys(self, part: TableRows) -> list[tuple[Any, ...] | None]:
        """Return the key of each row, and None where a part of it is null; () without a key."""
        names = map(self._manifest.schema.own_name, self._manifest.key)
        columns = [part.rows.column(name).to_pylist() for name in names if name is not None]
        if not self._manifest.key:
            return [()] * part.rows.num_rows
        return [None if None in key else key for key in zip(*columns, strict=True)]

    def _own_key(self, message: _SourceMessage, schema: pa.Schema) -> tuple[Any, ...] | None:
        """Return the key of a message that deletes a row, which is a value of the key's column."""
        if len(self._manifest.key) != 1 or not message.keys:
            return None
        name = self._manifest.schema.own_name(self._manifest.key[0])
        found = key_value(message.keys[0], schema.field(name).type, self._spec.zone)
        return None if found is None else (found,)

    def _compete(self, key: Any, message: _SourceMessage, gone: bool) -> None:
        known = self._newest.get(key)
        if known is not None:
            other = known[0]
            if other.place[0] == message.place[0]:
                is_older = message.physical_offset < other.physical_offset
            else:
                times = (message.store_ms, message.place[0]), (other.store_ms, other.place[0])
                is_older = times[0] < times[1]
            if is_older:
                return
        self._newest[key] = message, gone

    # -- what there is ------------------------------------------------------------------------

    def _rows(
        self, table: str, prefix: str, more: Sequence[str], *columns: str
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the positions of all rows of a table, with the values of columns, times in µs.

        Args:
            table: MAIN or REJECTED.
            prefix: The prefix of message columns.
            more: Other columns with the prefix.
            columns: Columns without it.
        """
        prefixed = [f"{prefix}{name}" for name in ("broker", "queue", "offset", *more)]
        names = (*prefixed, *columns)
        for batch in stored_rows(self._publication, self._manifest, table, names):
            yield from zip(*(_in_us(column).to_pylist() for column in batch.columns), strict=True)

    def _messages(self, source: TableSource) -> Iterator[_SourceMessage]:
        """Yield the messages of a source that the table has read."""
        if source.member:
            yield from self._served(source)
            return
        if is_archive(source.place):
            yield from self._archived(source)
            return
        progress, topic = self._manifest.progress(source.broker), self._manifest.topic
        with StoreView.open(source.place, topics={topic}) as view:
            for queue_id, part in progress.queues.items():
                for offset in range(part.begin, part.end):
                    found = view.reader.message(topic, queue_id, offset)
                    if found is None:
                        continue
                    record = decode_message(found)
                    place = source.broker, queue_id, offset
                    body = _inflated(record.body, record.sys_flag)
                    yield _SourceMessage(
                        place,
                        record.physical_offset,
                        record.store_time,
                        record.keys,
                        body,
                        record.tags,
                    )

    def _served(self, source: TableSource) -> Iterator[_SourceMessage]:
        """Yield what a running broker serves, answer by answer."""
        topic = self._manifest.topic
        options = self._opened.read_options(source.place, topic)
        access = access_in(options.access_file)
        with Loop() as loop:
            consumer = PullConsumer(options.namesrv, options.group, access=access)
            loop.run(consumer.open())
            try:
                listed = {
                    queue.queue_id: queue
                    for queue in loop.run(consumer.queues(topic))
                    if queue.broker_name == source.member
                }
                for queue_id, part in self._manifest.progress(source.broker).queues.items():
                    at = part.begin if queue_id in listed else part.end
                    while at < part.end:
                        pulled = loop.run(consumer.pull(listed[queue_id], at, wait_s=_WAIT_S))
                        for message in pulled.messages:
                            if message.queue_offset < part.end:
                                yield _received(source.broker, message)
                        if pulled.next_offset <= at:
                            break
                        at = pulled.next_offset
            finally:
                loop.run(consumer.close())

    def _archived(self, source: TableSource) -> Iterator[_SourceMessage]:
        queues = self._manifest.progress(source.broker).queues
        columns = ["topic", "queue_id", "queue_offset", "physical_offset", "store_time", "keys"]
        columns += ["body", "sys_flag", "tags"]
        for batch in lake_dataset(source.place).to_batches(columns=columns):
            for row in batch.to_pylist():
                queue_id, offset = row["queue_id"], row["queue_offset"]
                part = queues.get(queue_id)
                in_queue = takes_queue_offset(row["sys_flag"])
                if row["topic"] != self._manifest.topic or not in_queue or part is None:
                    continue
                if part.begin <= offset < part.end:
                    yield _SourceMessage(
                        (source.broker, queue_id, offset),
                        row["physical_offset"],
                        round(row["store_time"].timestamp() * 1000),
                        row["keys"],
                        _inflated(row["body"], row["sys_flag"]),
                        row["tags"],
                    )


def _order(values: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    """Return a key by which places and marks are sorted, also those of rows with nulls."""
    return [(each is not None, each) for each in values]


def _in_us(column: pa.Array) -> pa.Array:
    """Return times as µs, and other values as they are."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def _received(broker: str, message: Received) -> _SourceMessage:
    record = message.record
    return _SourceMessage(
        (broker, message.queue_id, message.queue_offset),
        record.physical_offset,
        record.store_time,
        record.keys,
        _inflated(record.body, record.sys_flag),
        record.tags,
    )


def _inflated(body: bytes, flags: int) -> bytes | None:
    if not flags & COMPRESSED:
        return body
    with suppress(FormatError):
        return inflated(body, flags)
    return None
