"""The sender of rows to brokers: they are encoded as for a store, and sent as client batches.

The batches of one queue are sent one after the other, those of different queues concurrently, so
the rows of one task and queue keep their order. Each row may have an id, as the property
``SINK_ROW``: a hash of the write, the number of the micro-batch, the task, the row's number in the
task, and the row itself. A row that is sent twice has the same id both times. Different rows never
have the same id, even if they are equal, or if Spark delivers rows in another order in a retry.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.client.producers.producer import Producer
from firetrail.errors import ConfigError, IllegalMessageError, PropertiesTooLongError
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.kernels.draft import Draft
from firetrail.format.layout import MAX_PROPERTIES
from firetrail.format.message_types import is_delayed, may_be_delayed
from firetrail.format.names import check_topic
from firetrail.format.properties import closed_properties, decode_properties, encode_properties
from firetrail.pipeline.sink.overrides import prefer_columns
from firetrail.pipeline.sink.row_checks import check_rows
from firetrail.pipeline.sink.sink_columns import WireSinkOptions
from firetrail.pipeline.sink.staged_rows import CHUNK_BYTES, message_of, rows_of
from firetrail.pipeline.sink.vectors import Vectors, chunks, vectors
from firetrail.pipeline.wire.broker_access_file import access_in
from firetrail.pipeline.wire.loop import Loop
from firetrail.pipeline.wire.request_retry import RequestRetry
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.wire.codes import Permission
from firetrail.store.admission.drafter import Drafter
from firetrail.store.settings.store_config import StoreConfig
from firetrail.text import counted

SINK_ROW = "SINK_ROW"
"""Property with the id of a row."""
CONNECT = "connecting to the cluster"
MORE_LEVELS = "if the brokers have more, set the level as the property DELAY"


class RowIds:
    """Generates the ids of the rows of one task."""

    def __init__(self, writer_id: str, epoch: int, partition: int) -> None:
        self._prefix = blake2b(repr((writer_id, epoch, partition)).encode(), digest_size=16)
        self._numbers = count()

    def next(self, topic: str, body: bytes, properties: bytes) -> bytes:
        """Return the encoded property for the next row."""
        digest = self._prefix.copy()
        head = f"{next(self._numbers)} {topic} {len(body)} {len(properties)} "
        digest.update(head.encode())
        digest.update(body)
        digest.update(properties)
        return encode_properties({SINK_ROW: digest.hexdigest()})


class OutgoingBatch(NamedTuple):
    """The items of a client batch, which are sent together."""

    topic: str
    items: bytes
    sys_flag: int = 0


_Piece = tuple[int, OutgoingBatch]
"""The number of a queue, and a batch for it."""


class Sender:
    """Sends the rows of one task."""

    def __init__(self, options: WireSinkOptions, ids: RowIds | None, first_turn: int = 0) -> None:
        self._options = options
        self._ids = ids
        self._config = StoreConfig()
        self._drafter = Drafter(self._config)
        self._max_level = self._config.delay_levels.max_level
        self._turn = first_turn
        self._queues: dict[str, list[MessageQueue]] = {}
        self._access = access = access_in(options.access_file)
        self._retry = RequestRetry(
            options.namesrv, options.retry_ms, Permission.WRITE, access=access
        )
        self.messages = 0

    def send(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Send all rows and wait until the brokers have stored them."""
        options = self._options
        with Loop() as loop:
            producer = Producer(options.namesrv, options.group, retries=1, access=self._access)
            loop.run(self._retry.ask(producer.open, CONNECT))
            try:
                for batch in map(prefer_columns, batches):
                    check_rows(batch, self.messages, self._max_level, MORE_LEVELS)
                    topics = pc.unique(batch.column("topic").drop_null()).to_pylist()
                    loop.run(self._find(producer, topics))
                    loop.run(self._send(producer, self._pieces(batch)))
                    self.messages += batch.num_rows
            finally:
                loop.run(producer.close())

    # -- queues -------------------------------------------------------------------------------

    async def _find(self, producer: Producer, topics: Sequence[str]) -> None:
        for topic in topics:
            if topic in self._queues:
                continue
            check_topic(topic)
            found = await find_queues(producer, topic, self._retry)
            most = self._options.queues or len(found)
            if most > len(found):
                has = f"topic {topic} has {counted(len(found), 'queue')}"
                remedy = f"{has}; add some with 'firetrail topic'"
                raise ConfigError("queues", most, remedy)
            self._queues[topic] = found

    def _placed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the number of a queue: the given one, or all queues in turn."""
        topics = batch.column("topic").dictionary_encode()
        counts = [len(self._queues[topic]) for topic in topics.dictionary.to_pylist()]
        spread = [self._options.queues or number for number in counts]
        turns = pa.array(array("q", range(self._turn, self._turn + batch.num_rows)))
        self._turn += batch.num_rows
        most = pa.array(spread, pa.int64()).take(topics.indices)
        numbers = pc.subtract(turns, pc.multiply(pc.divide(turns, most), most))
        if "queue_id" in batch.schema.names:
            given = batch.column("queue_id").cast(pa.int64())
            existing = pa.array(counts, pa.int64()).take(topics.indices)
            wrong = pc.or_(pc.less(given, 0), pc.greater_equal(given, existing))
            for row in pc.indices_nonzero(pc.fill_null(wrong, False))[:1].to_pylist():
                allowed = f"topic {topics[row].as_py()} has 0 to {existing[row].as_py() - 1}"
                raise IllegalMessageError("queue_id", f"{given[row].as_py()}: {allowed}")
            numbers = pc.coalesce(given, numbers)
            batch = batch.drop_columns(["queue_id"])
        return batch.append_column("queue_id", numbers)

    # -- encoding -----------------------------------------------------------------------------

    def _pieces(self, batch: pa.RecordBatch) -> list[_Piece]:
        """Return the batches to send; a delayed message is sent alone."""
        placed = self._placed(batch)
        rows = vectors(placed, self._config, 0, 1)
        if rows is None:
            return self._one_by_one(placed)
        if self._ids is not None:
            rows = _identified(rows, self._ids)
        return [
            (chunk.queue_id, OutgoingBatch(chunk.topic, bytes(chunk.items)))
            for chunk in chunks(rows, CHUNK_BYTES)
        ]

    def _one_by_one(self, batch: pa.RecordBatch) -> list[_Piece]:
        pieces: list[_Piece] = []
        waiting: dict[tuple[str, int], list[BatchItem]] = {}
        sizes: dict[tuple[str, int], int] = {}

        def close(key: tuple[str, int]) -> None:
            items = waiting.pop(key, [])
            if items:
                pieces.append((key[1], OutgoingBatch(key[0], encode_batch(items))))
            sizes.pop(key, None)

        for row in rows_of(batch):
            message = message_of(row, row["queue_id"] or 0)
            draft = Draft(message, message.topic.encode(), self._drafter.rules)
            raw = closed_properties(message.encode_properties())
            if self._ids is not None:
                raw += self._ids.next(message.topic, draft.body, raw)
            _check_length(len(raw))
            key = message.topic, message.queue_id
            # Brokers refuse a delayed message in a batch.
            is_alone = may_be_delayed(raw) and is_delayed(decode_properties(raw))
            if is_alone:
                close(key)
            waiting.setdefault(key, []).append(BatchItem(0, draft.body, raw))
            sizes[key] = sizes.get(key, 0) + draft.size
            if is_alone or sizes[key] >= CHUNK_BYTES:
                close(key)
        for key in list(waiting):
            close(key)
        return pieces

    # -- sending ------------------------------------------------------------------------------

    async def _send(self, producer: Producer, pieces: Iterable[_Piece]) -> None:
        by_queue: dict[MessageQueue, list[OutgoingBatch]] = {}
        for number, batch in pieces:
            queue = self._queues[batch.topic][number]
            by_queue.setdefault(queue, []).append(batch)
        await send_in_order(producer, by_queue, self._retry)


async def find_queues(producer: Producer, topic: str, retry: RequestRetry) -> list[MessageQueue]:
    """Return the writable queues of a topic."""
    return await retry.ask(
        lambda: producer.queues(topic), f"writing to topic {topic}", topic, is_known=False
    )


async def send_in_order(
    producer: Producer,
    batches: Mapping[MessageQueue, Sequence[OutgoingBatch]],
    retry: RequestRetry,
) -> None:
    """Send the batches of each queue one after the other, and to all queues concurrently."""

    async def in_order(queue: MessageQueue, some: Sequence[OutgoingBatch]) -> None:
        for batch in some:
            await retry.ask(
                lambda batch=batch: producer.send_encoded(  # type: ignore[misc]
                    batch.topic, batch.items, queue=queue, sys_flag=batch.sys_flag
                ),
                f"writing to topic {batch.topic}",
                batch.topic,
                broker=queue.broker_name,
            )

    tasks = [asyncio.ensure_future(in_order(*some)) for some in batches.items()]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _identified(rows: Vectors, ids: RowIds) -> Vectors:
    """Return the rows with their ids as a further property."""
    topics = rows.topics.to_pylist()
    bodies = rows.bodies.cast(pa.binary()).to_pylist()
    raws = [
        raw + ids.next(topic, body, raw)
        for topic, body, raw in zip(topics, bodies, rows.properties.to_pylist(), strict=True)
    ]
    _check_length(max(map(len, raws)))
    return rows._replace(properties=pa.array(raws, pa.binary()))


def _check_length(length: int) -> None:
    if length > MAX_PROPERTIES:
        detail = f"{length} bytes with {SINK_ROW}, but at most {MAX_PROPERTIES} are allowed"
        raise PropertiesTooLongError("properties", detail)
