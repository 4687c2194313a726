"""The queue offsets of a broker's answers: messages beyond a slice, and offsets without a message.

A Firetrail broker leaves damaged messages out, and only a gap in the offsets shows it. A pull
without a filter has a message for every offset of a queue, except for two kinds of topics of
RocketMQ: compacted ones, and those whose records are whole batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from firetrail.client.consumers.pull_client import PullResult
from firetrail.errors import StoreDamagedError
from firetrail.format.layout import RECORD_HEAD, RECORD_SIZE_MIN
from firetrail.pipeline.source.damage_text import SKIP_DAMAGED
from firetrail.pipeline.wire.broker_splits import BrokerRange

_SPARSE = (("cleanup.policy", "COMPACTION"), ("queue.type", "BatchCQ"))
"""Attributes of topics whose messages do not have consecutive offsets."""
_SIZE = Struct(">i").unpack_from
_QUEUE_OFFSET = Struct(">q").unpack_from


class SlicePart(NamedTuple):
    """The part of an answer that belongs to a slice."""

    records: bytes
    missing: tuple[int, ...]
    """The offsets that the answer passes over although the queue has them."""


def take(answer: PullResult, begin: int, end: int) -> SlicePart:
    """Return the part of an answer to a pull at ``begin`` that is before ``end``.

    A broker that passes over messages fills the answer with later ones, which another slice has.
    Records whose size is impossible are left to the decoder, which reports them.
    """
    kept, offsets, at = [], [], 0
    for offset, size in _records(answer.records):
        if offset < end:
            kept.append(answer.records[at : at + size])
        offsets.append(offset)
        at += size
    rest = answer.records[at:]
    records = answer.records if len(kept) == len(offsets) else b"".join([*kept, rest])
    expected = range(max(begin, answer.min_offset), min(answer.next_offset, answer.max_offset, end))
    missing = () if rest else tuple(sorted({*expected}.difference(offsets)))
    return SlicePart(records, missing)


def _records(records: bytes) -> Iterator[tuple[int, int]]:
    """Yield queue offset and size of each record, up to one that cannot be a record."""
    at = 0
    while at + RECORD_SIZE_MIN <= len(records):
        size = _SIZE(records, at)[0]
        if not RECORD_SIZE_MIN <= size <= len(records) - at:
            return
        yield _QUEUE_OFFSET(records, at + RECORD_HEAD.offsets["queue_offset"])[0], size
        at += size


def is_sparse(attributes: Mapping[str, str] | None) -> bool:
    """Whether the messages of a topic with these attributes do not have consecutive offsets."""
    return any((attributes or {}).get(name) == value for name, value in _SPARSE)


def left_out(part: BrokerRange, missing: Sequence[int]) -> StoreDamagedError:
    """Return the error for messages that a broker has, but did not return."""
    which = "message" if len(missing) == 1 else "messages"
    offsets = ", ".join(map(str, missing))
    return StoreDamagedError(
        f"queue {part}",
        missing[0],
        None,
        f"the broker {part.broker} left out the {which} {offsets}, which a broker does if the "
        f"{which} cannot be read from its store",
        f"check the broker's log, and its store with 'firetrail fsck', or {SKIP_DAMAGED}",
    )
