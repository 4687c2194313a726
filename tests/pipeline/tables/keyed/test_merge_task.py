"""Buckets of tables with a key: the newest version of each key, in whatever order they come."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipeline.tables.keyed.buckets import Bucket, Version

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding import TableSchema
from firetrail.pipeline.tables.keyed.keys import bucket_of, key_columns, key_texts


def model(versions: Sequence[Version]) -> dict[tuple[int, str], tuple[str, int]]:
    """Return the newest version of each key that is not deleted, all of them sorted at once."""
    newest = {
        each.key: each for each in sorted(versions, key=lambda v: (v.store_us, v.broker, v.offset))
    }
    return {key: (v.broker, v.offset) for key, v in newest.items() if not v.delete}


def found(bucket: Bucket) -> dict[tuple[int, str], tuple[str, int]]:
    rows = bucket.rows()
    newest = {(row["id"], row["part"]): (row["_broker"], row["_physical_offset"]) for row in rows}
    assert len(newest) == len(rows)
    return newest


KEYS = st.tuples(st.integers(0, 2), st.sampled_from(["a", "", "1:a"]))
LOGS = st.lists(st.tuples(st.sampled_from("AB"), KEYS, st.booleans()), min_size=1, max_size=14).map(
    lambda each: [
        Version(broker, at, key, gone, at // 2 * 1000)
        for at, (broker, key, gone) in enumerate(each)
    ]
)
"""Versions whose times grow along each log, and are often equal between brokers."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_result_depends_on_the_messages_alone(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Messages are merged in any order, several times, and in merges of any size."""
    log = data.draw(LOGS)
    order = data.draw(st.permutations(log + data.draw(st.lists(st.sampled_from(log), max_size=4))))
    bucket = Bucket(tmp_path_factory.mktemp("bucket"))
    while order:
        count = data.draw(st.integers(1, len(order)))
        bucket.merge(order[:count])
        order = order[count:]
    assert found(bucket) == model(log)
    assert bucket.inserted - bucket.deleted == len(model(log))
    files, deletes = bucket.files, bucket.deletes
    bucket.merge(log)
    assert (bucket.files, bucket.deletes) == (files, deletes)  # nothing was written


def test_keys_of_several_columns_are_not_mixed_up() -> None:
    one, other = pa.array(["1:a", "a"]), pa.array(["b", "1:b"])
    first, second = key_texts([one, other])
    assert first != second
    assert key_texts([pa.array([1, None])]) == ["1", None]
    assert key_texts([pa.array(["x", None]), pa.array([None, 1])]) == [None, None]
    assert {bucket_of(str(number), 4) for number in range(50)} == {0, 1, 2, 3}
    assert bucket_of("id-1", 16) == 12  # never changes: tables depend on it


@pytest.mark.parametrize("kind", ["double", "array<int>", "struct<a: int>"])
def test_types_that_can_be_no_key(kind: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a key"):
        key_columns(["ID"], TableSchema.from_ddl(f"id {kind}"))


def test_a_key_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no such column; they have id"):
        key_columns(["ids"], TableSchema.from_ddl("id int"))
