"""Staged rows: tasks check and encode them into files, and the driver appends these to a store.

A staged file is an Arrow stream of chunks: topic, queue id, and the items of a client batch
(``format.batch``). The store writes these as records without decoding single messages again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from firetrail.errors import IllegalMessageError
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.kernels.draft import Draft, Message
from firetrail.format.names import QUEUE_ID_MAX, check_topic
from firetrail.pipeline.sink.overrides import prefer_columns
from firetrail.pipeline.sink.row_checks import check_rows
from firetrail.pipeline.sink.sink_columns import SinkOptions
from firetrail.pipeline.sink.vectors import chunks, vectors
from firetrail.pipeline.workers import naming_file
from firetrail.store.admission.drafter import Drafter
from firetrail.store.bulk import BulkAppend
from firetrail.system import SYSTEM

CHUNK_BYTES = 256 << 10
"""Size at which a chunk ends: small enough to leave little unused space in log files."""
MORE_LEVELS = (
    "if the broker has more, name its file with messageDelayLevel in the option brokerConf"
)
_CREATE_TRIES = 100
"""How many times a folder may vanish while a file is created in it, at most. Each time, another
write has ended at that very moment."""
_REMEDY = "free some space, or name a folder on another disk with the option stagingPath"
CHUNKS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("items", pa.binary()),
        pa.field("messages", pa.int32()),
    ]
)


class RowStager:
    """Encodes the rows of one task into a file."""

    def __init__(self, options: SinkOptions, folder: Path) -> None:
        self._options = options
        self._drafter = Drafter(options.config)
        self._file = StagedFile(folder)
        self._chunks: dict[tuple[str, int], list[BatchItem]] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._topics: dict[str, bytes] = {}
        self._turn = 0
        self.messages = 0

    def stage(self, batches: Iterable[pa.RecordBatch]) -> str | None:
        """Write all rows to a new file and return its path; None if there are no rows."""
        with self._file as file:
            for batch in batches:
                self._stage(batch)
            self._write_all()
        return str(file.path) if file.exists else None

    def _stage(self, batch: pa.RecordBatch) -> None:
        queues = self._options.queues
        batch = prefer_columns(batch)
        check_rows(batch, self.messages, self._options.config.delay_levels.max_level, MORE_LEVELS)
        rows = vectors(batch, self._options.config, self._turn, queues)
        if rows is None:
            for row in rows_of(batch):
                key = self._add(row)
                if self._sizes[key] >= CHUNK_BYTES:
                    self._write(key)
            return
        self._write_all()  # earlier rows must come first
        for topic in rows.topics.dictionary.to_pylist():
            check_topic(topic)
        for chunk in chunks(rows, CHUNK_BYTES):
            self._file.write(_batch(*chunk))
        self.messages += batch.num_rows
        if "queue_id" not in batch.schema.names:
            self._turn = (self._turn + batch.num_rows) % queues

    def _add(self, row: dict[str, Any]) -> tuple[str, int]:
        message = self._message(row)
        if message.topic not in self._topics:
            check_topic(message.topic)
            self._topics[message.topic] = message.topic.encode()
        draft = Draft(message, self._topics[message.topic], self._drafter.rules)
        if draft.may_delay:
            message = self._drafter.delayed(message, draft)
        key = message.topic, message.queue_id
        item = BatchItem(0, draft.body, message.encode_properties())
        self._chunks.setdefault(key, []).append(item)
        self._sizes[key] = self._sizes.get(key, 0) + draft.size
        self.messages += 1
        return key

    def _message(self, row: dict[str, Any]) -> Message:
        queue_id = row.get("queue_id")
        if queue_id is None:
            queue_id = self._turn
            self._turn = (self._turn + 1) % self._options.queues
        return message_of(row, queue_id)

    def _write(self, key: tuple[str, int]) -> None:
        items = self._chunks.pop(key)
        del self._sizes[key]
        self._file.write(_batch(*key, encode_batch(items), len(items)))

    def _write_all(self) -> None:
        for key in list(self._chunks):
            self._write(key)


class StagedFile:
    """A file of chunks, which is created with its first chunk.

    A task without rows leaves nothing to remove: its neighbours may be using the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid.uuid4().hex}.arrows"
        self._file: pa.NativeFile | None = None
        self._writer: pa.RecordBatchWriter | None = None

    @property
    def exists(self) -> bool:
        """Whether the file was created."""
        return self._file is not None

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        try:
            with naming_file(self.path, _REMEDY), self._file:
                if self._writer is not None:
                    self._writer.close()
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            if kind is not None:  # no one will ask for the file of a failed task
                SYSTEM.files.discard(self.path)

    def write(self, chunk: pa.RecordBatch) -> None:
        """Append a chunk."""
        with naming_file(self.path, _REMEDY):
            if self._writer is None:
                self._file = self._create()
                self._writer = pa.ipc.new_stream(self._file, CHUNKS)
            self._writer.write_batch(chunk)

    def _create(self) -> pa.NativeFile:
        """Create the file; try again if another writer removes an empty folder in between."""
        for _ in range(_CREATE_TRIES):
            with suppress(FileNotFoundError, FileExistsError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                return pa.OSFile(str(self.path), "wb")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(self.path), "wb")


def _batch(topic: str, queue_id: int, items: bytes | memoryview, messages: int) -> pa.RecordBatch:
    columns = [[topic], [queue_id], [items], [messages]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, CHUNKS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=CHUNKS)


def message_of(row: dict[str, Any], queue_id: int) -> Message:
    """Return a row as a message; raise IllegalMessageError if a value is not allowed."""
    for name in ("topic", "body"):
        if row[name] is None:
            raise IllegalMessageError(name, "is null; every row needs a topic and a body")
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise IllegalMessageError("queue_id", f"{queue_id} is not in 0..{QUEUE_ID_MAX}")
    body, keys = row["body"], row.get("keys") or ()
    return Message(
        row["topic"],
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags"),
        keys=keys.split() if isinstance(keys, str) else keys,
        properties=dict(row.get("properties") or ()),
        queue_id=queue_id,
        delay_level=row.get("delay_level") or 0,
    )


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows as dictionaries by column name."""
    names = batch.schema.names
    for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def append_staged(bulk: BulkAppend, paths: Iterable[str]) -> None:
    """Append the content of staged files, in order."""
    for batch in staged_batches(paths):
        bulk.add(*batch)


def staged_batches(paths: Iterable[str]) -> Iterator[tuple[str, int, memoryview]]:
    """Yield topic, queue id and items of each client batch in the staged files, in order."""
    for path in paths:
        with pa.memory_map(path) as file, pa.ipc.open_stream(file) as stream:
            for chunk in stream:
                for topic, queue_id, items in zip(*chunk.columns[:3], strict=True):
                    content = memoryview(items.as_buffer()).cast("B")
                    yield topic.as_py(), queue_id.as_py(), content
