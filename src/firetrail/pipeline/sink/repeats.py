"""Numbered writes that the store already has: legal repetitions, and checkpoints that do not fit.

After a crash, Spark repeats the last micro-batch with the same input, and never an older one. An
older number, the last number with another count of rows, or the number of another query under the
same ``writeId`` means that the checkpoint does not continue what is in the store. The rows would be
lost if they were skipped.

If only the values of the rows are different, they are skipped with a warning: a query that is not
deterministic, for example one with ``uuid()``, repeats a micro-batch with other values.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from firetrail.errors import CheckpointError
from firetrail.format.batch import decode_batch
from firetrail.format.properties import PROPERTY_CRC, REAL_QID, decode_properties
from firetrail.format.record import decode_message
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.sink.sink_columns import SinkOptions
from firetrail.pipeline.sink.staged_rows import staged_batches
from firetrail.store.bulk import BulkAppend
from firetrail.store.bulk_journal import Commit, Ticket
from firetrail.text import counted

_DIGEST_BYTES = 16
_NOT_COMPARED = frozenset({PROPERTY_CRC, REAL_QID})
"""Properties that depend on the position of a row, which may be another one in a repetition."""


class RepeatedWrite:
    """A write whose number, or a later one, the store already has.

    Args:
        bulk: The append, which holds the lock of the store.
        ticket: The id and number of the write.
        options: The options of the sink.
        stream: Whether it is a micro-batch.
    """

    def __init__(
        self, bulk: BulkAppend, ticket: Ticket, options: SinkOptions, *, stream: bool
    ) -> None:
        self._bulk = bulk
        self._ticket = ticket
        self._options = options
        self._stream = stream

    def check(self, paths: Sequence[str], rows: int) -> None:
        """Return if the staged rows may be skipped; raise CheckpointError if they would be lost."""
        writer, number, source = self._ticket
        last_number = self._bulk.last_numbers[writer]
        if number < last_number:
            raise self._error(f"the store already has its epochs up to {last_number}")
        last = self._bulk.last_commit
        if last is None:  # written by a version that did not record it
            return
        if None not in (source, last.source) and source != last.source:
            raise self._error(f"query {last.source} has written an epoch with this number")
        if rows != last.messages:
            stored = f"the store already has it with {counted(last.messages, 'row')}"
            raise self._error(f"{stored}, this write has {counted(rows, 'row')}")
        if self._differs(paths, last):
            LOGGER.warning(
                "%s: %s is skipped because the store has it, but with other values; this is "
                "correct only if the query is not deterministic. %s",
                self._options.store,
                self._name(),
                self._remedy(),
            )

    def _differs(self, paths: Sequence[str], last: Commit) -> bool:
        """Return whether the stored rows are other ones; False if some have been deleted."""
        stored, count = 0, 0
        for record in self._bulk.committed_records(last):
            message = decode_message(record.content)
            stored += _digest(message.topic, message.body, message.raw_properties)
            count += 1
        return count == last.messages and stored % _MODULUS != _staged_digest(paths)

    def _error(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._options.store}: {self._name()} was not written: {reason}. {self._remedy()}"
        )

    def _name(self) -> str:
        writer, number, source = self._ticket
        if not self._stream:
            return f"the write with writeId {writer}"
        return f"epoch {number} of query {source}"

    def _remedy(self) -> str:
        if not self._stream:
            return "Use another writeId for other rows"
        checkpoint = self._options.checkpoint
        where = "The checkpoint" if checkpoint is None else f"The checkpoint {checkpoint}"
        named = self._options.writer_id
        another_id = "" if named is None else f" and a writeId other than {named}"
        return (
            f"{where} is an old copy, was emptied, or belongs to another query. To write all rows "
            f"of the source, start the query with a new checkpointLocation{another_id}"
        )


_MODULUS = 1 << 8 * _DIGEST_BYTES


def _staged_digest(paths: Iterable[str]) -> int:
    """Return the digest of staged rows, which does not depend on their order."""
    total = 0
    for topic, _, items in staged_batches(paths):
        total += sum(_digest(topic, item.body, item.properties) for item in decode_batch(items))
    return total % _MODULUS


def _digest(topic: str, body: bytes, raw_properties: bytes) -> int:
    properties = decode_properties(raw_properties)
    kept = sorted(item for item in properties.items() if item[0] not in _NOT_COMPARED)
    content = repr((topic, body, kept)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(content, digest_size=_DIGEST_BYTES).digest(), "big")
