"""A check of a table against its sources, with code that the job which writes tables does not use.

Messages are read one by one, as brokers serve them, or from the dataset of an archive; rows are
read by DataFusion. Only the decoder is the same. Memory is needed for one position per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from firetrail.errors import ConfigError, DataLostError, FormatError, LakeError
from firetrail.format.compression import inflated
from firetrail.format.layout import COMPRESSED
from firetrail.format.record import decode_message
from firetrail.pipeline.decoding.body_decoder import BodyDecoder, Operation
from firetrail.pipeline.lakes.lake_reader import lake_dataset
from firetrail.pipeline.tables.files.table_manifest import MAIN, REJECTED, TableManifest
from firetrail.pipeline.tables.messages.broker_names import named_sources
from firetrail.pipeline.tables.messages.table_sources import TableSource, check_exists, is_archive
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.table_options import decoder_spec
from firetrail.store.inspect.view import StoreView

_BATCH = 1000
_SHOWN = 10
MessagePlace = tuple[str, int, int]
"""The broker, queue and offset of a message."""


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


def verify_table(source: str | Path | Sequence[str | Path], to: str | Path) -> Verification:
    """Compare a table with the messages of its topic.

    Args:
        source: The sources, as for :func:`~firetrail.pipeline.table`. Messages that several of them
            have are compared once.
        to: Folder of the table, which no job may be writing.

    Returns:
        The numbers of messages and rows, and what differs.

    Raises:
        LakeError: The folder has no table.
        ConfigError: The table has no message columns.
        DataLostError: The table has a key, and the sources lack messages.
    """
    given = [source] if isinstance(source, str | Path) else list(source)
    publication = Publication(str(to))
    manifest = publication.manifest()
    if manifest is None:
        raise LakeError(f"{publication.lake.place}: has no table; check the path")
    if manifest.prefix is None:
        raise ConfigError("message_columns", False, "without them, rows cannot be compared")
    sources = named_sources([check_exists(str(each)) for each in given], list(manifest.brokers))
    return _TableCheck(publication, manifest).run(sources)


class _TableCheck:
    """One comparison."""

    def __init__(self, publication: Publication, manifest: TableManifest) -> None:
        self._publication = publication
        self._manifest = manifest
        self._decoder: BodyDecoder = decoder_spec(manifest.options).decoder(manifest.schema)
        self._rejected = Counter(self._places(REJECTED, "_"))
        self._found = Counter(self._places(MAIN, str(manifest.prefix)))
        self._expected: Counter[MessagePlace] = Counter()
        self._newest: dict[Any, tuple[_SourceMessage, bool]] = {}
        self._seen: set[MessagePlace] = set()

    def run(self, sources: Sequence[TableSource]) -> Verification:
        for source in sources:
            waiting: list[_SourceMessage] = []
            for message in self._messages(source):
                if message.place not in self._seen:
                    self._seen.add(message.place)
                    waiting.append(message)
                if len(waiting) >= _BATCH:
                    self._expect(waiting)
                    waiting = []
            self._expect(waiting)
        unreadable = self._manifest.messages - len(self._seen)
        if self._manifest.key and unreadable > 0:
            raise DataLostError(
                f"{self._publication.lake.place}: the sources no longer have {unreadable} messages "
                "that the table has read, so the newest versions are not known; name an archive, "
                "too"
            )
        if self._manifest.key:
            for message, gone in self._newest.values():
                if not gone:
                    self._expected[message.place] += 1
        return self._result()

    def _result(self) -> Verification:
        known = {p: n for p, n in self._found.items() if p in self._seen}
        missing = [p for p, n in self._expected.items() if known.get(p, 0) < n]
        more = [p for p, n in known.items() if n > self._expected.get(p, 0)]
        repeated = [p for p in more if self._expected.get(p)]
        repeated += [p for p, n in self._rejected.items() if n > 1]
        unexpected = [p for p in more if not self._expected.get(p)]
        examples = [
            f"{what}: queue {queue} of {broker}, offset {offset}"
            for what, places in (
                ("missing", missing),
                ("repeated", repeated),
                ("unexpected", unexpected),
            )
            for broker, queue, offset in sorted(places)[:_SHOWN]
        ]
        return Verification(
            self._publication.lake.place,
            len(self._seen),
            self._found.total(),
            self._rejected.total(),
            max(self._manifest.messages - len(self._seen), 0),
            len(missing),
            len(repeated),
            len(unexpected),
            tuple(examples),
        )

    # -- what the table should have -----------------------------------------------------------

    def _expect(self, messages: list[_SourceMessage]) -> None:
        """Decode messages, and note which of their rows the table should have."""
        decoded = self._decoder.decode([message.body for message in messages])
        for part in decoded.parts:
            operations = part.operations.to_pylist()
            rows = part.rows.select(self._key()).to_pylist() if self._manifest.key else []
            for row, at in enumerate(part.messages.to_pylist()):
                message = messages[at]
                if message.body is None or message.place in self._rejected:
                    continue
                gone = operations[row] == Operation.DELETE
                if not self._manifest.key:
                    self._expected[message.place] += not gone
                    continue
                key = tuple(rows[row].values())
                if None in key:
                    key = (self._own_key(message, part.rows.schema),)
                self._compete(key, message, gone)

    def _key(self) -> list[str]:
        names = map(self._manifest.schema.own_name, self._manifest.key)
        return [name for name in names if name is not None]

    def _own_key(self, message: _SourceMessage, schema: pa.Schema) -> Any:
        kind = schema.field(self._key()[0]).type
        return pa.scalar(message.keys[0]).cast(kind).as_py()

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

    def _places(self, table: str, prefix: str) -> Iterator[MessagePlace]:
        """Yield the positions of all rows of a table."""
        library: Any = import_module("deltalake")
        place = self._publication.lakes[table].place
        if not library.DeltaTable.is_deltatable(place):
            return
        names = ", ".join(f'"{prefix}{name}"' for name in ("broker", "queue", "offset"))
        query = library.QueryBuilder().register("t", library.DeltaTable(place))
        for batch in query.execute(f"select {names} from t"):
            columns = (column.to_pylist() for column in pa.record_batch(batch).columns)
            yield from zip(*columns, strict=True)

    def _messages(self, source: TableSource) -> Iterator[_SourceMessage]:
        """Yield the messages of a source that the table has read."""
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
                        place, record.physical_offset, record.store_time, record.keys, body
                    )

    def _archived(self, source: TableSource) -> Iterator[_SourceMessage]:
        queues = self._manifest.progress(source.broker).queues
        columns = ["topic", "queue_id", "queue_offset", "physical_offset", "store_time", "keys"]
        for batch in lake_dataset(source.place).to_batches(columns=[*columns, "body", "sys_flag"]):
            for row in batch.to_pylist():
                queue_id, offset = row["queue_id"], row["queue_offset"]
                part = queues.get(queue_id)
                prepared = row["sys_flag"] & 0xC in (0x4, 0xC)
                if row["topic"] != self._manifest.topic or prepared or part is None:
                    continue
                if part.begin <= offset < part.end:
                    yield _SourceMessage(
                        (source.broker, queue_id, offset),
                        row["physical_offset"],
                        round(row["store_time"].timestamp() * 1000),
                        row["keys"],
                        _inflated(row["body"], row["sys_flag"]),
                    )


def _inflated(body: bytes, flags: int) -> bytes | None:
    if not flags & COMPRESSED:
        return body
    with suppress(FormatError):
        return inflated(body, flags)
    return None
