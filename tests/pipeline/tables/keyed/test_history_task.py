"""Buckets with history: all versions of each key, in whatever order they come."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipeline.tables.keyed.buckets import Bucket, Version

Row = tuple[tuple[int, str], str, int, int, int | None, bool]
"""Key, broker, offset, begin and end of the validity, and whether it is the current row."""


def model(log: Sequence[Version]) -> list[Row]:
    """Return the rows, for each of which all versions are searched for the next one."""

    def time(version: Version) -> int:
        """The latest time up to a version, which a clock that is set back does not change."""
        same = (v for v in log if (v.key, v.broker) == (version.key, version.broker))
        return max(each.store_us for each in same if each.offset <= version.offset)

    def place(version: Version) -> tuple[int, str, int]:
        return time(version), version.broker, version.offset

    rows = []
    for each in log:
        later = [v for v in log if v.key == each.key and place(v) > place(each)]
        end = min(map(time, later), default=None)
        if not each.delete:
            rows.append((each.key, each.broker, each.offset, time(each), end, end is None))
    return sorted(rows, key=lambda row: row[:3])


def found(bucket: Bucket) -> list[Row]:
    rows = [
        (
            (row["id"], row["part"]),
            row["_broker"],
            row["_physical_offset"],
            *(row[name] for name in ("_valid_from", "_valid_to", "_is_current")),
        )
        for row in bucket.rows()
    ]
    return sorted(rows, key=lambda row: row[:3])


KEYS = st.tuples(st.integers(0, 1), st.sampled_from(["a", ""]))
TIMES = st.integers(0, 4).map(lambda number: number * 1000)
"""Times that are often equal, and often fall along a log."""
LOGS = st.lists(
    st.tuples(st.sampled_from("ABC"), KEYS, st.booleans(), TIMES), min_size=1, max_size=14
).map(
    lambda each: [
        Version(broker, at, key, gone, time) for at, (broker, key, gone, time) in enumerate(each)
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_result_depends_on_the_messages_alone(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Messages are merged in any order, several times, and in merges of any size."""
    log = data.draw(LOGS)
    order = data.draw(st.permutations(log + data.draw(st.lists(st.sampled_from(log), max_size=4))))
    bucket = Bucket(tmp_path_factory.mktemp("bucket"), history=True)
    merged: dict[Version, None] = {}
    while order:
        count = data.draw(st.integers(1, len(order)))
        bucket.merge(order[:count])
        merged |= dict.fromkeys(order[:count])
        assert found(bucket) == model(list(merged))
        order = order[count:]
    assert (bucket.inserted, bucket.deleted) == (len(model(log)), 0)
    files, deletes = bucket.files, bucket.deletes
    bucket.merge(log)
    assert (bucket.files, bucket.deletes) == (files, deletes)  # nothing was written


def test_the_last_change_of_a_key_in_a_message_counts(tmp_path: Path) -> None:
    one, other = (0, "a"), (1, "a")
    events = [(one, False), (one, True), (other, True), (other, False)]
    bucket = Bucket(tmp_path, history=True)
    bucket.merge([Version("A", 5, key, gone, 7) for key, gone in events])
    assert found(bucket) == [(other, "A", 5, 7, None, True)]


def test_only_rows_whose_validity_changes_are_counted(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, history=True)
    key = (0, "")
    bucket.merge([Version("A", at, key, False, at) for at in (1, 5, 9)])
    assert (bucket.inserted, bucket.updated) == (3, 0)
    bucket.merge([Version("B", 2, key, False, 6)])
    assert (bucket.inserted, bucket.updated) == (4, 1)
    files = bucket.files
    bucket.merge([Version("B", 1, key, True, 0)])
    assert bucket.files == files  # a delete before all rows changes none of them
    bucket.merge([Version("B", 9, key, True, 10)])
    assert (bucket.inserted, bucket.updated) == (4, 2)
    assert [row[2:] for row in found(bucket)] == [
        (1, 1, 5, False),
        (5, 5, 6, False),
        (9, 9, 10, False),
        (2, 6, 9, False),
    ]
