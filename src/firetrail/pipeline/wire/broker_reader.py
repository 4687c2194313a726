"""The reader of ranges of brokers' queues: it returns Arrow batches, inside a task, without Spark.

A broker returns few messages per answer (RocketMQ 32, or 8 if they are no longer in memory). So a
range is requested in slices of that size, many at a time. Rows are still returned in the order of
the queue.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from firetrail.client.cluster.session import Session
from firetrail.client.consumers.pull_client import PullClient, PullResult
from firetrail.client.consumers.subscription import by_tags
from firetrail.errors import DataLostError, RequestError, StoreDamagedError
from firetrail.format import columns as col
from firetrail.format.columns import Check, Columns, Stop
from firetrail.format.kernels.scan import ANYWHERE, scan
from firetrail.format.values.tags import ALL_TAGS
from firetrail.pipeline.source.arrays import BatchBuilder
from firetrail.pipeline.source.damage_text import SKIP_DAMAGED
from firetrail.pipeline.source.schema import NAMES, fields
from firetrail.pipeline.source.unit_reader import RecordSelector
from firetrail.pipeline.wire.broker_access_file import access_in
from firetrail.pipeline.wire.broker_queues import name_of
from firetrail.pipeline.wire.broker_splits import BrokerRange, WireSplit
from firetrail.pipeline.wire.gaps import is_sparse, left_out, take
from firetrail.pipeline.wire.loop import Loop
from firetrail.pipeline.wire.request_retry import RequestRetry, no_progress
from firetrail.remoting.messages.bodies import MessageQueue, TopicConfig
from firetrail.remoting.messages.headers import TopicHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.store.log.walk import CHECKSUM_STOPS, ROWS_PER_BATCH, describe_stop

SLICE = 32
"""Messages per request: the most that a broker returns, unless it is configured otherwise."""
SLICE_FILTERED = 800
"""Messages per request if the broker filters by tags: the most that it examines per answer."""
SLICES_MAX = 32
"""Slices that are fetched at the same time."""
HELD_BYTES = 64 << 20
"""Limit for answers that wait for their turn; only the next one in turn may exceed it."""
BATCH_BYTES = 4 << 20
"""A batch is emitted once it has at least this many bytes of records."""
_REMOVED = "MESSAGE_WAS_REMOVING"


def read_wire(
    split: WireSplit,
    columns: Sequence[str] = NAMES,
    *,
    permissive: bool = False,
    decompress: bool = False,
    allow_loss: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a split, range by range, each range in order.

    Every record is verified completely. A damaged one, and one that a broker left out, raises
    StoreDamagedError; ``permissive`` skips records with a wrong checksum, and those left out.
    Bodies are decompressed if ``decompress``. Messages that were deleted, or that a topic lacks by
    its nature, raise DataLostError unless ``allow_loss``.
    """
    builder = BatchBuilder(fields(columns), decompress=decompress, lenient=permissive)
    decoder = _Decoder(builder, permissive)
    with Loop() as loop:
        fetcher = Fetcher(split, allow_loss, permissive)
        loop.run(fetcher.open())
        try:
            for part in split.ranges:
                selector = RecordSelector([part.range], b"", split.wanted)
                while (records := loop.run(fetcher.next(part))) is not None:
                    yield from decoder.batches(part, records, selector)
                seen = selector.picker.seen(0)
                if not (allow_loss or permissive or split.wanted.tags) and seen < part.range.count:
                    missing = f"{part.range.count - seen} of these offsets have no message"
                    raise _lost(part, missing, split.skip_lost)
        finally:
            loop.run(fetcher.close())


def _lost(part: BrokerRange, detail: str, skip_lost: str) -> DataLostError:
    return DataLostError(
        f"queue {part}: {part.range.begin} up to {part.range.end} are to be read, but {detail}; "
        f"retention deleted messages during the read, or the broker lost some; {skip_lost}"
    )


class _Slice(NamedTuple):
    """A piece of a range, and the task that fetches it."""

    part: BrokerRange
    records: asyncio.Task[list[bytes]]


class Fetcher:
    """Fetches the ranges of a split in slices, ahead of their use."""

    def __init__(self, split: WireSplit, allow_loss: bool, permissive: bool) -> None:
        access = access_in(split.access_file)
        self._session = Session(split.namesrv, access=access)
        self._puller = PullClient(self._session, split.group)
        self._retry = RequestRetry(split.namesrv, split.retry_ms, access=access)
        self._tags = " || ".join(split.wanted.tags) or ALL_TAGS
        self._step = SLICE_FILTERED if split.wanted.tags else SLICE
        self._allow_loss = allow_loss
        self._skip_lost = split.skip_lost
        self._allow_gaps = permissive or bool(split.wanted.tags)
        self._sparse: dict[str, bool] = {}  # by topic, if an answer had a gap
        self._todo = iter(self._slices(split.ranges))
        self._slices_fetched: deque[_Slice] = deque()
        self._held = 0
        self._turn = 0  # number of the slice that is returned next
        self._number = 0  # number of the slice that is begun next
        self._room = asyncio.Condition()

    async def open(self) -> None:
        """Connect to the cluster and begin to fetch."""
        await self._retry.ask(self._session.open, "connecting to the cluster")
        self._begin_more()

    async def close(self) -> None:
        """Cancel the slices that are being fetched, and disconnect."""
        for begun in self._slices_fetched:
            begun.records.cancel()
        await asyncio.gather(
            *(begun.records for begun in self._slices_fetched), return_exceptions=True
        )
        await self._session.close()

    def _slices(self, ranges: Sequence[BrokerRange]) -> Iterator[tuple[BrokerRange, int, int]]:
        for part in ranges:
            for begin in range(part.range.begin, part.range.end, self._step):
                yield part, begin, min(begin + self._step, part.range.end)

    def _begin_more(self) -> None:
        while len(self._slices_fetched) < SLICES_MAX:
            following = next(self._todo, None)
            if following is None:
                return
            work = asyncio.ensure_future(self._fetch(self._number, *following))
            self._slices_fetched.append(_Slice(following[0], work))
            self._number += 1

    async def next(self, part: BrokerRange) -> bytes | None:
        """Return the next records of the current range; None at its end."""
        found: list[bytes] = []
        size = 0
        while self._slices_fetched and self._slices_fetched[0].part is part and size < BATCH_BYTES:
            records = await self._slices_fetched[0].records
            self._slices_fetched.popleft()
            taken = sum(map(len, records))
            found += records
            size += taken
            async with self._room:
                self._held -= taken
                self._turn += 1
                self._room.notify_all()
            self._begin_more()
        return b"".join(found) if found else None

    async def _fetch(self, number: int, part: BrokerRange, begin: int, end: int) -> list[bytes]:
        queue = MessageQueue(part.range.topic, part.broker, part.range.queue_id)
        found: list[bytes] = []
        at = begin
        while at < end:
            async with self._room:
                await self._room.wait_for(lambda: self._held < HELD_BYTES or self._turn == number)
            answer = await self._ask(queue, at, end - at)
            records, missing = take(answer, at, end)
            self._held += len(records)
            found.append(records)
            if _is_lost(answer, at):
                if not self._allow_loss:
                    low, high = answer.min_offset, answer.max_offset
                    detail = f"offset {at} does not exist: the queue has {low} up to {high}"
                    raise _lost(part, detail, self._skip_lost)
                if answer.next_offset <= at:
                    break
            elif missing and not self._allow_gaps and not await self._is_sparse(queue):
                raise left_out(part, missing)
            at = max(at, answer.next_offset)
        return found

    async def _is_sparse(self, queue: MessageQueue) -> bool:
        """Whether gaps are normal in a topic; they are not if the broker does not tell."""

        async def ask() -> bool:
            await self._session.route(queue.topic)
            answer = await self._session.ask(
                self._session.address_of(queue.broker_name),
                RequestCode.GET_TOPIC_CONFIG,
                TopicHeader(queue.topic),
            )
            return is_sparse(TopicConfig.decode(answer.content).attributes)

        if queue.topic not in self._sparse:
            request = f"asking for the attributes of topic {queue.topic}"
            try:
                found = await self._retry.ask(ask, request, broker=queue.broker_name)
            except RequestError:
                found = False
            self._sparse[queue.topic] = found
        return self._sparse[queue.topic]

    async def _ask(self, queue: MessageQueue, offset: int, count: int) -> PullResult:
        async def ask() -> PullResult:
            await self._session.route(queue.topic)
            wanted = by_tags(queue.topic, self._tags)
            try:
                answer = await self._puller.ask(queue, offset, wanted, count=min(count, SLICE))
            except (OSError, TimeoutError):
                self._session.forget_route(queue.topic)  # the broker may get another address
                raise
            if answer.next_offset <= offset and not _is_lost(answer, offset):
                raise no_progress(f"{queue.topic}/{name_of(queue)}", offset)
            return answer

        request = f"reading topic {queue.topic}"
        return await self._retry.ask(ask, request, queue.topic, broker=queue.broker_name)


def _is_lost(answer: PullResult, at: int) -> bool:
    """Whether a broker skipped messages that it should have."""
    return (
        answer.moved
        or answer.code == ResponseCode.PULL_NOT_FOUND
        or answer.min_offset > at
        or answer.status == _REMOVED
    )


class _Decoder:
    """Decodes records into batches."""

    def __init__(self, builder: BatchBuilder, permissive: bool) -> None:
        self._builder = builder
        self._permissive = permissive
        self._columns = Columns(ROWS_PER_BATCH)
        self._picks = memoryview(array("q", bytes(8 * self._columns.capacity)))

    def batches(
        self, part: BrokerRange, records: bytes, selector: RecordSelector
    ) -> Iterator[pa.RecordBatch]:
        """Yield the selected ones of consecutive records."""
        data, table = memoryview(records), self._columns.table
        at = 0
        while at < len(data):
            rows, at, number = scan(data, at, len(data), ANYWHERE, table, Check.RECORD)
            count = selector.picker.pick(data, table, 0, rows, self._picks)
            if count:
                yield self._builder.batch(data, self._columns, self._picks[:count], count)
            stop = Stop(number)
            if stop in CHECKSUM_STOPS and self._permissive:
                at += self._columns.column(col.SIZE)[rows]
            elif stop is not Stop.FULL and at < len(data):
                self._refuse(part, data, at, rows, stop)

    def _refuse(self, part: BrokerRange, data: memoryview, at: int, rows: int, stop: Stop) -> None:
        """Raise StoreDamagedError for the record after ``rows`` good ones."""
        offset = self._columns.column(col.QUEUE_OFFSET)[rows - 1] + 1 if rows else part.range.begin
        remedy = SKIP_DAMAGED if stop in CHECKSUM_STOPS else f"{SKIP_DAMAGED} from its files"
        raise StoreDamagedError(
            f"queue {part}",
            offset,
            None,
            f"at this message or soon after it: {describe_stop(data, at, len(data), stop)}",
            f"check the broker's store with 'firetrail fsck', or {remedy}",
        )
