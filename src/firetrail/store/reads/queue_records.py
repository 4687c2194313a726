"""The messages of queues as records: found by the reader, then decoded."""

from collections.abc import Iterator, Sequence

from firetrail.errors import FormatError, StoreDamagedError
from firetrail.format.columns import Check
from firetrail.format.light import is_in_light_queue, is_light
from firetrail.format.record import Record, decode_message
from firetrail.storage.segment_queue import SegmentQueue
from firetrail.store.integrity.damaged_messages import READ_REMEDY
from firetrail.store.log.log_records import record_offset
from firetrail.store.reads.reader import Reader, tag_hashes, tag_names
from firetrail.store.results import GetResult


class QueueRecords:
    """Decodes the messages that a reader finds; damage is raised with its place."""

    def __init__(self, reader: Reader, log: SegmentQueue) -> None:
        self._reader = reader
        self._log = log

    def pages(
        self, topic: str, queue_id: int, offset: int, tags: str | Sequence[str] | None
    ) -> Iterator[tuple[Iterator[Record], int]]:
        """Yield the messages that a queue has now in pages, each with the offset after it.

        The queue offset in a message is that in its own queue, not that in a light queue.

        Args:
            topic: The topic of the queue.
            queue_id: The number of the queue.
            offset: The queue offset of the first message.
            tags: Only messages with these tags, compared exactly; None for all.
        """
        wanted = tag_hashes(tags)
        names = None if tags is None else tag_names(tags)
        position = offset
        while True:
            result = self._reader.get(topic, queue_id, position, tags=wanted, check=Check.NONE)
            messages = self._decoded_of(topic, queue_id, position, wanted, result)
            if names is not None:
                messages = (message for message in messages if message.tags in names)
            yield messages, result.next_offset
            if result.next_offset <= position or position >= result.max_offset:
                return
            position = result.next_offset

    def _decoded_of(
        self,
        topic: str,
        queue_id: int,
        position: int,
        wanted: frozenset[int] | None,
        result: GetResult,
    ) -> Iterator[Record]:
        """Yield the messages that a get found; raise StoreDamagedError at a damaged one."""
        for place, buffer in enumerate(result.buffers):
            try:
                message = decode_message(buffer)
            except FormatError as error:
                raise self._reader.damage(topic, queue_id, position, place, wanted) from error
            if is_light(topic) and not is_in_light_queue(message.raw_properties, topic):
                raise self._reader.damage(topic, queue_id, position, place, wanted)
            yield message

    def decoded(self, buffer: memoryview) -> Record:
        """Decode a message in the log; raise StoreDamagedError if its bytes have changed."""
        try:
            return decode_message(buffer)
        except FormatError as error:
            offset = record_offset(buffer)
            segment = self._log.find(offset)
            if segment is None:
                raise
            raise StoreDamagedError(
                str(segment.path),
                offset - segment.base + error.offset,
                offset,
                f"{error.field}: {error.detail}",
                READ_REMEDY,
            ) from error
