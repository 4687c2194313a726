"""The offsets that a table has: put together from spans, whatever order tasks return them in."""

from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.pipeline.source.schema import TEXT_MAP
from firetrail.pipeline.tables.messages.broker_progress import (
    BrokerProgress,
    NewestMessage,
    QueueProgress,
    Span,
    SpanCollector,
    lost_between,
)


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    """Return rows with a queue and an offset, in the order of the log."""
    columns = {
        "queue_id": pa.array([queue for queue, _ in rows], pa.int32()),
        "queue_offset": pa.array([offset for _, offset in rows], pa.int64()),
        "physical_offset": pa.array([100 * at for at in range(len(rows))], pa.int64()),
        "msg_id": pa.array([f"m{at}" for at in range(len(rows))]),
        "body": pa.array([b""] * len(rows), pa.binary()),
        "properties": pa.array([[]] * len(rows), TEXT_MAP),
        "sys_flag": pa.array([0] * len(rows), pa.int32()),
        "born_time": pa.array([0] * len(rows), pa.timestamp("us", "UTC")),
        "store_time": pa.array([at * 1000 for at in range(len(rows))], pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 12))), st.randoms())
def test_spans_are_the_offsets_of_the_rows(rows: set[tuple[int, int]], random: Random) -> None:
    order = list(rows)
    random.shuffle(order)
    collected = SpanCollector()
    for first in range(0, len(order), 5):
        collected.add(batch(*order[first : first + 5]))
    spans = collected.spans()
    assert {(s.queue_id, offset) for s in spans for offset in range(s.begin, s.end)} == rows
    assert all(a.queue_id < b.queue_id or a.end < b.begin for a, b in pairwise(spans))


def test_the_newest_message_is_the_anchor() -> None:
    collected = SpanCollector()
    collected.add(batch((1, 7), (0, 3)))
    assert collected.anchor is not None and collected.anchor.digest
    assert collected.anchor._replace(digest="") == NewestMessage(0, 3, 100, "m1", 1)


def test_spans_extend_a_queue_and_gaps_are_counted() -> None:
    known = BrokerProgress({0: QueueProgress(2, 5)})
    after = known.extended([Span(1, 0, 2), Span(0, 9, 10), Span(0, 5, 7)], 50, None)
    assert after.queues == {0: QueueProgress(2, 10, 2), 1: QueueProgress(0, 2)}
    assert lost_between(known, after) == [Span(0, 5, 7)]
    assert BrokerProgress.of_json(after.as_json()) == after


def test_a_message_that_is_read_twice_is_an_error() -> None:
    known = BrokerProgress({0: QueueProgress(2, 5)})
    with pytest.raises(ValueError, match="offset 4 of queue 0"):
        known.extended([Span(0, 4, 6)], 0, None)
