"""Tables of topics: typed rows, each message once, from stores, replicas and archives."""

import errno
import shutil
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession
from tests.helpers import Machine, small_config
from tests.pipeline.tables.formats import in_all_formats
from tests.pipeline.tables.topics import (
    columns_of,
    exists,
    files_of,
    ids,
    numbered,
    put,
    rows,
    spark_table,
    table,
)
from tests.stores import records

from firetrail import Message, Store
from firetrail.errors import (
    ConfigError,
    DataLostError,
    DiskFullError,
    LakeError,
    NotAStoreError,
    PipelineError,
    StoreDamagedError,
)
from firetrail.format.layout import COMPRESSED
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.lakes.hashed_file import HashedFile
from firetrail.pipeline.lakes.local_folder import LocalFolder
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.tables.runs import decoding_rounds, table_job
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.system import Files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


class TestRows:
    @in_all_formats
    def test_rows_have_the_columns_of_bodies_and_messages(self, root: Path, to: Path) -> None:
        put(root, {"id": 1, "price": 2.5, "tags": ["a"], "by": {"n": "x"}}, topic="orders")
        put(root, {"id": 9}, topic="others")
        done = table(root, to)
        assert (done.messages, done.rows, done.rejected, done.total_rows) == (1, 1, 0, 1)
        (row,) = rows(to)
        (record, _) = records(root)
        times = {name: row.pop(name).astimezone(UTC) for name in ("_born_time", "_store_time")}
        assert times["_store_time"] == datetime.fromtimestamp(record.store_time / 1000, UTC)
        assert times["_born_time"] == datetime.fromtimestamp(record.born_time / 1000, UTC)
        assert row.pop("_msg_id")
        assert dict(row.pop("_properties")) == {"TAGS": "t", "KEYS": "k0"}
        assert row == {
            **{"id": 1, "price": 2.5, "tags": ["a"], "by": {"n": "x"}},
            **{"_broker": "data", "_queue": 0, "_offset": 0, "_physical_offset": 0},
            **{"_keys": ["k0"], "_tags": "t"},
        }

    @in_all_formats
    def test_text_is_one_column(self, root: Path, to: Path) -> None:
        put(root, b"one", "zwölf".encode(), b"\xff")
        done = table(root, to, decoder="text")
        assert [row["value"] for row in rows(to)] == ["one", "zwölf"]
        assert (done.rows, done.rejected) == (2, 1)

    @in_all_formats
    def test_the_schema_can_be_given(self, root: Path, to: Path) -> None:
        put(root, {"id": 1, "price": "2.50"})
        table(root, to, schema="id int, price decimal(10,2)")
        schema = columns_of(to)
        assert (schema.field("id").type, schema.field("price").type) == (
            pa.int32(),
            pa.decimal128(10, 2),
        )

    @in_all_formats
    def test_message_columns_can_have_another_prefix_or_be_left_out(
        self, root: Path, tmp_path: Path
    ) -> None:
        put(root, {"id": 1, "m_tags": "own"})
        table(root, tmp_path / "a", prefix="m_")
        assert columns_of(tmp_path / "a").names[:4] == ["id", "m_tags_2", "m_broker", "m_queue"]
        table(root, tmp_path / "b", message_columns=False)
        assert columns_of(tmp_path / "b").names == ["id", "m_tags"]

    def test_odd_names_become_names_that_delta_allows(self, root: Path, to: Path) -> None:
        odd = {"a b": 1, "a_b": 2, "ü.`'\"": 3, "s": {"x=y": 4}, "_Tags": 5}
        put(root, odd)
        table(root, to)
        put(root, odd | {"A,B": 6})
        table(root, to)
        found = rows(to)
        own = {name for name in found[1] if not name.startswith("_") or name == "_Tags_2"}
        assert own == {"a_b", "a_b_2", "ü.`'\"", "s", "_Tags_2", "A_B_3"}
        assert (found[1]["a_b"], found[1]["a_b_2"], found[1]["A_B_3"]) == (1, 2, 6)
        assert found[1]["s"] == {"x_y": 4}

    @in_all_formats
    def test_compressed_bodies_are_decompressed(self, root: Path, to: Path) -> None:
        with Store.open(root) as store:
            store.put(Message("orders", zlib.compress(b'{"id": 7}'), sys_flag=COMPRESSED))
            store.put(Message("orders", b"not compressed", sys_flag=COMPRESSED))
        done = table(root, to)
        assert ids(to) == [7]
        assert done.rejected == 1
        (reject,) = rows(to.with_name("orders__rejected"))
        assert (reject["body"], "cannot be decompressed" in reject["reason"]) == (
            b"not compressed",
            True,
        )

    @in_all_formats
    def test_what_does_not_fit_is_kept_with_position_and_reason(self, root: Path, to: Path) -> None:
        put(root, *numbered(range(4)))
        table(root, to)
        put(root, {"id": 4}, b"{broken", {"id": "five"}, b"")
        done = table(root, to)
        assert (done.rows, done.rejected, done.total_rejected) == (1, 3, 3)
        assert done.first_reject.startswith("queue 1 of data, offset 2: ")
        found = rows(to.with_name("orders__rejected"))
        assert [row["body"] for row in found] == [b"{broken", b'{"id": "five"}', b""]
        assert [(row["_queue"], row["_offset"]) for row in found] == [(1, 2), (0, 3), (1, 3)]
        assert all(row["reason"] for row in found)

    @in_all_formats
    def test_strict_adds_nothing_if_a_message_does_not_fit(self, root: Path, to: Path) -> None:
        put(root, {"id": 0}, b"{broken")
        with pytest.raises(PipelineError, match=r"offset 0: .*--strict"):
            table(root, to, strict=True)
        assert not exists(to)
        assert table(root, to).rows == 1


class TestSchema:
    @in_all_formats
    def test_new_columns_are_added(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        table(root, to)
        put(root, {"id": 1, "new": "x"})
        done = table(root, to)
        assert done.changes == ("new column new string",)
        assert [(row["id"], row["new"]) for row in rows(to)] == [(0, None), (1, "x")]

    @in_all_formats
    def test_a_type_that_changes_rewrites_the_files(self, root: Path, to: Path) -> None:
        put(root, {"id": 0, "by": {"a": 1}})
        table(root, to)
        put(root, {"id": 1, "by": {"a": 2, "b": "x"}}, {"id": 2, "new": 1})
        table(root, to)
        assert [row["by"] for row in rows(to)] == [
            {"a": 1, "b": None},
            {"a": 2, "b": "x"},
            None,
        ]
        put(root, {"id": 3})
        assert table(root, to).rows == 1
        assert ids(to) == [0, 1, 2, 3]

    @in_all_formats
    def test_tasks_that_see_different_columns_agree(
        self, spark: SparkSession, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decoding_rounds, "SAMPLE", 1)
        monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
        put(root, *({"id": number, f"c{number // 20}": number} for number in range(60)))
        done = spark_table(spark, root, to, split_bytes=4096)
        assert (done.rows, done.files > 1) == (60, True)
        assert [row["c1"] for row in rows(to)][19:22] == [None, 20, 21]

    @in_all_formats
    def test_a_topic_without_messages_has_a_table_later(self, root: Path, to: Path) -> None:
        put(root, {"id": 0}, topic="others")
        with pytest.raises(ConfigError, match="no such topic"):
            table(root, to)
        put(root, b"{")
        assert table(root, to).rejected == 1
        put(root, {"id": 1})
        table(root, to)
        assert ids(to) == [1]


class TestRuns:
    @in_all_formats
    def test_each_run_adds_what_is_new(self, root: Path, to: Path) -> None:
        for first in range(0, 30, 10):
            put(root, *numbered(range(first, first + 10)))
            done = table(root, to)
            assert (done.messages, done.total_rows) == (10, first + 10)
            again = table(root, to)
            assert (again.messages, again.files, again.total_rows) == (0, 0, first + 10)
        assert ids(to) == list(range(30))

    @in_all_formats
    def test_new_queues_are_picked_up(self, root: Path, to: Path) -> None:
        put(root, *numbered(range(4)), queues=1)
        table(root, to)
        put(root, *numbered(range(4, 10)), queues=5)
        table(root, to)
        assert ids(to) == list(range(10))

    def test_files_replicas_and_archives_continue_each_other(
        self, spark: SparkSession, root: Path, to: Path, tmp_path: Path
    ) -> None:
        lake, replica = tmp_path / "archive", tmp_path / "replica"
        put(root, *numbered(range(10)))
        archive(spark, root, lake)
        assert table(lake, to).rows == 10
        put(root, *numbered(range(10, 20)))
        assert table(root, to).rows == 10
        put(root, *numbered(range(20, 30)))
        archive(spark, root, lake)
        shutil.copytree(root, replica)
        assert table(lake, to).rows == 10
        assert table(replica, to).rows == 0
        put(root, *numbered(range(30, 33)))
        assert table([f"archive={lake}", f"archive={root}"], to).rows == 3
        assert ids(to) == list(range(33))

    def test_a_log_under_two_names_is_refused(
        self, spark: SparkSession, root: Path, to: Path, tmp_path: Path
    ) -> None:
        put(root, *numbered(range(3)))
        archive(spark, root, tmp_path / "archive")
        put(root, *numbered(range(3, 5)))
        for sources in ([f"a={root}", f"b={root}"], [tmp_path / "archive", root]):
            with pytest.raises(ConfigError, match="have the same log"):
                table(sources, to)
        assert table(f"a={root}", to).rows == 5
        for other in (root, tmp_path / "archive"):
            with pytest.raises(ConfigError, match="one name, as a=/"):
                table([f"a={root}", f"b={other}"], to)
        assert table(f"a={root}", to).total_rows == 5

    def test_an_archive_by_topic_is_read(
        self, spark: SparkSession, root: Path, to: Path, tmp_path: Path
    ) -> None:
        put(root, *numbered(range(6)))
        put(root, {"id": 100}, topic="others")
        archive(spark, root, tmp_path / "archive", layout="topic")
        table(tmp_path / "archive", to)
        assert ids(to) == list(range(6))

    @in_all_formats
    def test_several_brokers_are_one_table(self, tmp_path: Path, to: Path) -> None:
        for broker in "ab":
            put(tmp_path / broker, *numbered(range(3)))
        table([tmp_path / "a", tmp_path / "b"], to)
        assert [(row["_broker"], row["id"]) for row in rows(to)] == [
            (broker, number) for broker in "ab" for number in range(3)
        ]
        put(tmp_path / "b", {"id": 3})
        assert table(tmp_path / "b", to).rows == 1
        with pytest.raises(ConfigError, match=r"BROKER=.*the table has a, b"):
            put(tmp_path / "c", {"id": 0})
            table(tmp_path / "c", to)

    @in_all_formats
    def test_several_tasks_write_a_file_each(
        self, spark: SparkSession, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
        put(root, *numbered(range(200)))
        done = spark_table(spark, root, to, split_bytes=4096)
        assert (done.rows, done.files > 3) == (200, True)
        assert ids(to) == list(range(200))


class TestRefusals:
    def test_a_folder_with_other_files(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        to.mkdir(parents=True)
        (to / "notes.txt").touch()
        with pytest.raises(LakeError, match="no manifest of a table"):
            table(root, to)
        assert files_of(to) == ["notes.txt"]

    def test_an_error_of_a_library(
        self, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(root, {"id": 0})

        def invalid(*_: object) -> None:
            raise pa.ArrowInvalid("odd")

        with monkeypatch.context() as patch:
            patch.setattr(Publication, "settle", invalid)
            with pytest.raises(LakeError, match=rf"{to}: .* a library \(ArrowInvalid: odd\); run"):
                table(root, to)

    def test_a_url_as_the_table(self) -> None:
        with pytest.raises(LakeError, match=r"^s3://bucket/x: a table needs a local or mounted"):
            Publication("s3://user:secret@bucket/x")

    def test_an_archive_as_the_table(self, spark: SparkSession, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        archive(spark, root, to)
        with pytest.raises(LakeError, match="not the manifest of a table"):
            table(root, to)

    def test_the_table_of_another_topic(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        put(root, {"id": 0}, topic="others")
        table(root, to)
        with pytest.raises(LakeError, match="is the table of the topic orders, not others"):
            table(root, to, "others")

    def test_other_options_than_those_of_the_table(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        table(root, to)
        with pytest.raises(ConfigError, match=r"decoder.*made with 'json'"):
            table(root, to, decoder="text")
        with pytest.raises(ConfigError, match=r"schema.*id is bigint"):
            table(root, to, schema="id string")

    def test_a_table_that_somebody_else_changed(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        table(root, to)
        delta = DeltaTable(str(to))
        delta.optimize.compact()
        assert table(root, to).rows == 0  # only rearranged
        delta.delete("id = 0")
        put(root, {"id": 1})
        before = files_of(to)
        for _ in range(2):
            with pytest.raises(LakeError, match=r"version \d \(DELETE\) is not a commit of this"):
                table(root, to)
        assert files_of(to) == before

    def test_a_table_that_was_replaced(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        table(root, to)
        shutil.rmtree(to / "_delta_log")
        with pytest.raises(LakeError, match="the Delta table is missing"):
            table(root, to)
        DeltaTable.create(str(to), pa.schema([("id", pa.int64())]))
        with pytest.raises(LakeError, match="did not create"):
            table(root, to)

    def test_a_store_with_another_log(self, root: Path, to: Path) -> None:
        put(root, *numbered(range(4)))
        table(root, to)
        shutil.rmtree(root)
        put(root, {"id": 0})
        with pytest.raises(LakeError, match=r"has no queue 1 of orders, from which the table"):
            table(root, to)
        put(root, {"id": 0}, {"id": 1}, queues=3)
        with pytest.raises(LakeError, match=r"ends at offset 1, but the table has .* up to 2"):
            table(root, to)
        put(root, *numbered(range(8)))
        with pytest.raises(LakeError, match="is not the log that the table was made from"):
            table(root, to)
        assert len(rows(to)) == 4

    @pytest.mark.parametrize("archived", [False, True])
    def test_another_message_at_the_same_place_and_time(
        self, root: Path, to: Path, archived: bool, spark: SparkSession
    ) -> None:
        """The ids of embedded stores are places in the log."""

        def stored(body: bytes) -> str:
            with Store.open(root, small_config(), system=Machine().system) as store:
                store.put(Message("orders", body, queue_id=0))
            if not archived:
                return str(root)
            lake = root.with_name(f"lake-{body.hex()}")
            archive(spark, root, lake)
            return str(lake)

        table("a=" + stored(b'{"id": 1}'), to)
        shutil.rmtree(root)
        other = "a=" + stored(b'{"id": 2}')
        with pytest.raises(LakeError, match="is not the log that the table was made from"):
            table(other, to)

    def test_a_url_is_an_archive_and_a_local_one_the_same_as_its_path(
        self, root: Path, to: Path
    ) -> None:
        put(root, {"id": 0})
        assert table(root.as_uri(), to).rows == 1
        with pytest.raises(LakeError, match="memory://lake: is not an archive"):
            table("memory://lake", to)

    @in_all_formats
    def test_deleted_messages_that_were_not_read(self, root: Path, to: Path) -> None:
        put(root, *numbered(range(10)))
        table(root, to)
        put(root, *numbered(range(10, 400)))
        for path in sorted((root / "commitlog").iterdir())[:-1]:
            path.unlink()
        with pytest.raises(DataLostError, match=r"deleted before they were read.*--allow-gap"):
            table(root, to)
        done = table(root, to, allow_gap=True)
        assert done.lost > 0
        assert done.total_messages + done.lost == 400
        assert table(root, to).lost == 0

    def test_a_source_that_does_not_exist(self, tmp_path: Path, to: Path) -> None:
        with pytest.raises(NotAStoreError):
            table(tmp_path / "nowhere", to)
        assert not to.parent.exists()

    @in_all_formats
    def test_a_damaged_message(self, root: Path, to: Path) -> None:
        put(root, *numbered(range(3)))
        (log,) = sorted((root / "commitlog").iterdir())[:1]
        content = log.read_bytes()
        log.write_bytes(content.replace(b'"n1"', b'"nX"'))
        with pytest.raises(StoreDamagedError):
            table(root, to)
        assert not exists(to)

    @in_all_formats
    def test_a_full_disk(self, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(root, {"id": 0})
        table(root, to)
        put(root, {"id": 1})

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        for owner, name in ((LocalFolder, "_open_new"), (Files, "replace")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, full)
                with pytest.raises(DiskFullError, match="free some space"):
                    table(root, to)
            assert ids(to) == [0]
        table(root, to)
        assert ids(to) == [0, 1]

    @pytest.mark.parametrize("write", range(4))
    def test_a_disk_that_is_full_while_a_file_is_written(
        self, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch, write: int
    ) -> None:
        put(root, {"id": 0})
        left = iter(range(write))
        real = HashedFile.write

        def full(file: HashedFile, data: Any) -> int:
            if next(left, None) is None and not file._abandoned:
                raise DiskFullError("the disk is full")
            return real(file, data)

        with monkeypatch.context() as patch:
            patch.setattr(HashedFile, "write", full)
            with pytest.raises(DiskFullError):
                table(root, to, upsert="id")
        assert table(root, to, upsert="id").total_rows == 1

    def test_a_commit_that_fails(
        self, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(root, {"id": 0})

        def conflict(*_: object, **__: object) -> None:
            raise CommitFailedError("a concurrent transaction deleted data")

        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", conflict)
            with pytest.raises(LakeError, match=r"the commit failed \(a concurrent.*run the job"):
                table(root, to)
        table(root, to)
        assert ids(to) == [0]

    def test_a_lake_that_cannot_be_written(self, root: Path, tmp_path: Path) -> None:
        put(root, {"id": 0})
        (tmp_path / "file").touch()
        for place in (tmp_path / "file", tmp_path / "file" / "orders"):
            with pytest.raises(OSError, match=f"{place}/_firetrail"):
                table(root, place)

    @in_all_formats
    def test_two_runs_at_once(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        with (
            open_folder(str(to)).locked("_firetrail/lock", "other"),
            pytest.raises(LakeError, match="another job is writing to it"),
        ):
            table(root, to)
        assert table(root, to).rows == 1
