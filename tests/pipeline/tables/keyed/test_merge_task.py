"""Buckets of tables with a key: the newest version of each key, in whatever order they come."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding import TableSchema
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.tables.files.table_columns import TableColumns
from firetrail.pipeline.tables.files.table_manifest import LOCK
from firetrail.pipeline.tables.keyed.bucket_rows import DELETE, BucketRows
from firetrail.pipeline.tables.keyed.keys import bucket_of, key_columns, key_texts
from firetrail.pipeline.tables.keyed.merge_task import MergeTask, merge_bucket

COLUMNS = TableColumns(TableSchema.from_ddl("id bigint, part string, v bigint"), "_")


class Version(NamedTuple):
    broker: str
    offset: int
    key: tuple[int, str]
    delete: bool

    @property
    def store_us(self) -> int:
        """Times that grow along each log, and that are often equal between brokers."""
        return self.offset // 2 * 1000


def rows_of(versions: Sequence[Version]) -> pa.Table:
    schema = COLUMNS.schema.append(pa.field(DELETE, pa.bool_()))
    found = [
        {
            **{"id": each.key[0], "part": each.key[1], "v": each.offset},
            **{"_broker": each.broker, "_physical_offset": each.offset},
            **{"_store_time": each.store_us, DELETE: each.delete},
        }
        for each in versions
    ]
    return pa.Table.from_pylist(found, schema)


class Bucket:
    """A bucket, to which merges are applied one after another."""

    def __init__(self, folder: Path) -> None:
        self.lake = open_folder(str(folder))
        self.files: list[str] = []
        self.deletes = ""
        self.inserted = self.deleted = 0

    def merge(self, versions: Sequence[Version]) -> None:
        task = MergeTask(
            self.lake,
            0,
            [BucketRows((rows_of(versions),))],
            self.files,
            self.deletes,
            COLUMNS,
            ["id", "part"],
            False,
            1,
            "token",
        )
        with self.lake.locked(LOCK, "token"):
            done = merge_bucket(task)
        self.lake.reveal([*(file.path for file in done.files), *filter(None, [done.deletes])])
        if done.written:
            self.files = [file.path for file in done.files]
        self.deletes = done.deletes
        self.inserted += done.inserted
        self.deleted += done.deleted

    def rows(self) -> dict[tuple[int, str], tuple[str, int]]:
        found = {}
        for path in self.files:
            for row in pq.read_table(self.lake.path(path), partitioning=None).to_pylist():
                key = row["id"], row["part"]
                assert key not in found
                found[key] = row["_broker"], row["_physical_offset"]
                assert row["v"] == row["_physical_offset"]
        return found


def model(versions: Sequence[Version]) -> dict[tuple[int, str], tuple[str, int]]:
    """Return the newest version of each key that is not deleted, all of them sorted at once."""
    newest = {
        each.key: each for each in sorted(versions, key=lambda v: (v.store_us, v.broker, v.offset))
    }
    return {key: (v.broker, v.offset) for key, v in newest.items() if not v.delete}


KEYS = st.tuples(st.integers(0, 2), st.sampled_from(["a", "", "1:a"]))
LOGS = st.lists(st.tuples(st.sampled_from("AB"), KEYS, st.booleans()), min_size=1, max_size=14).map(
    lambda each: [Version(broker, at, key, gone) for at, (broker, key, gone) in enumerate(each)]
)


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
    assert bucket.rows() == model(log)
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
