"""Iceberg tables: commits of others, conflicts, wider types, and maintenance."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField
from tests.pipeline.tables.topics import files_of, iceberg, ids, put, rows, table

from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.lakes.location import open_folder
from firetrail.pipeline.tables.files.folder_catalog import FolderCatalog
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.verification import verify_table

pytestmark = pytest.mark.parametrize("table_format", ["iceberg"], indirect=True)
NAME = ("folder", "table")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def opened(to: Path) -> Table:
    """Return a table as somebody else would open it to change it."""
    return FolderCatalog(open_folder(str(to))).load_table(NAME)


def merged(to: Path) -> None:
    """Merge the files of a table, as another process would."""
    publication = Publication(str(to))
    manifest = publication.require_manifest()
    publication._writer(manifest, "main").maintain(manifest.sequence, 1)


def test_a_commit_of_somebody_else(root: Path, to: Path) -> None:
    put(root, {"id": 0}, {"id": 1})
    table(root, to)
    opened(to).delete("id = 0")
    put(root, {"id": 2})
    before = files_of(to / "data")
    for _ in range(2):
        with pytest.raises(LakeError, match=r"version 2 \((delete|overwrite)\) is not a commit of"):
            table(root, to)
    assert files_of(to / "data") == before
    assert ids(to) == [1]  # as the other one left it


def test_columns_that_somebody_else_added(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    table(root, to)
    with opened(to).update_schema() as update:
        update.add_column("other", LongType())
    put(root, {"id": 1})
    with pytest.raises(LakeError, match="a change of the columns is not a commit of this job"):
        table(root, to)


def test_partitions_that_somebody_else_added(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    table(root, to)
    with opened(to).update_spec() as update:
        update.add_identity("_queue")
    put(root, {"id": 1})
    with pytest.raises(LakeError, match="a change of the partitions is not a commit of this job"):
        table(root, to)


def test_a_table_that_was_rolled_back(root: Path, to: Path) -> None:
    for number in range(2):
        put(root, {"id": number})
        table(root, to)
    first = opened(to).snapshots()[0]
    opened(to).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(LakeError, match="has version 1, but this job has written version 2"):
        table(root, to)
    opened(to).append(pa.table({"id": [5]}))
    _call_it_a_replacement(to)
    with pytest.raises(LakeError, match="has version 1, but this job has written version 2"):
        table(root, to)


def test_snapshots_that_somebody_else_expired(root: Path, to: Path) -> None:
    for number in range(3):
        put(root, {"id": number})
        table(root, to)
    for snapshot in opened(to).snapshots()[:2]:
        opened(to).maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    put(root, {"id": 3})
    assert table(root, to).total_rows == 4
    assert ids(to) == [0, 1, 2, 3]


def test_a_table_that_was_replaced(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    table(root, to)
    shutil.rmtree(to / "metadata")
    with pytest.raises(LakeError, match="the Iceberg table is missing"):
        table(root, to)
    other = Schema(NestedField(1, "id", LongType()))
    place = f"file://{to}"
    FolderCatalog(open_folder(str(to))).create_table(NAME, other, place, PartitionSpec())
    with pytest.raises(LakeError, match="did not create"):
        table(root, to)


def test_files_that_somebody_else_arranged(root: Path, to: Path) -> None:
    """Engines call that operation ``replace``, which PyIceberg does not offer."""
    put(root, {"id": 0})
    table(root, to)
    opened(to).append(pa.table({"id": [5]}))
    _call_it_a_replacement(to)
    put(root, {"id": 1})
    assert table(root, to).rows == 1


def _call_it_a_replacement(to: Path) -> None:
    newest = max((to / "metadata").glob("v*.json"), key=lambda path: int(path.name[1:-14]))
    content = json.loads(newest.read_text())
    content["snapshots"][-1]["summary"]["operation"] = "replace"
    newest.write_text(json.dumps(content))


class TestConflicts:
    @pytest.mark.parametrize("key", [None, "id"])
    def test_files_that_are_merged_while_a_run_commits(
        self, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
    ) -> None:
        for number in range(3):
            put(root, {"id": 1, "v": number}, {"id": number + 10, "v": number})
            table(root, to, upsert=key, buckets=1 if key else None)
        put(root, {"id": 1, "v": 7})
        real = FolderCatalog._create

        def late(*args: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(FolderCatalog, "_create", real)
                if not done:
                    done.append(1)
                    _arranged(to)
            real(*args)

        done: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(FolderCatalog, "_create", late)
            table(root, to)
        assert done
        assert len(rows(to)) == (4 if key else 7)
        assert verify_table(root, to).ok

    def test_conflicts_again_and_again(
        self, root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(root, {"id": 0})
        table(root, to)
        put(root, {"id": 1})
        real = FolderCatalog._create

        def late(*args: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(FolderCatalog, "_create", real)
                _arranged(to)
            real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(FolderCatalog, "_create", late)
            with pytest.raises(LakeError, match=r"the commit failed \(.*run the job again"):
                table(root, to)
        assert table(root, to).messages == 0
        assert ids(to) == [0, 1]


def _arranged(to: Path) -> None:
    """Commit a version with other properties."""
    with opened(to).transaction() as transaction:
        transaction.set_properties({"comment": str(opened(to).metadata_location)})


class TestTypes:
    @pytest.mark.parametrize(
        ("before", "after", "is_rewritten"),
        [
            (("v int", 1), ("v bigint", 1 << 40), False),
            (("v tinyint", 1), ("v smallint", 300), False),
            (("v float", 0.5), ("v double", 0.1), False),
            (("v decimal(4,2)", "1.50"), ("v decimal(9,2)", "12345.50"), False),
            (("v struct<a: int>", {"a": 1}), ("v struct<b: int>", {"a": 1, "b": 2}), False),
            (("v array<int>", [1]), ("v array<bigint>", [1 << 40]), False),
            (
                ("v map<string, struct<a: int>>", {"k": {"a": 1}}),
                ("v map<string, struct<b: date>>", {"k": {"a": 1, "b": "2026-01-01"}}),
                False,
            ),
            (("v int", 1), ("v decimal(12,2)", "1.50"), True),
            (("v decimal(4,2)", "1.50"), ("v decimal(9,4)", "1.2345"), True),
            (("v int", 1), ("v double", 0.5), True),
            (("v date", "2026-01-01"), ("v timestamp", "2026-01-01T10:00:00Z"), True),
        ],
    )
    def test_wider_types(
        self,
        root: Path,
        to: Path,
        before: tuple[str, Any],
        after: tuple[str, Any],
        is_rewritten: bool,
    ) -> None:
        """Files are written again only if Iceberg does not read them with the new type."""
        put(root, {"v": before[1]})
        assert table(root, to, schema=before[0]).rows == 1
        old = files_of(to / "data")
        put(root, {"v": after[1]})
        done = table(root, to, schema=after[0])
        assert (done.rows, done.rejected) == (1, 0)
        first, second = rows(to, "v")
        assert first["v"] is not None
        assert second["v"] is not None
        used = {Path(task.file.file_path).name for task in iceberg(to).scan().plan_files()}
        assert used.isdisjoint(old) is is_rewritten
        assert verify_table(root, to).ok

    def test_an_older_version_after_a_type_was_replaced(self, root: Path, to: Path) -> None:
        put(root, {"v": 1})
        table(root, to, schema="v int")
        put(root, {"v": "1.50"})
        table(root, to, schema="v decimal(12,2)")
        first = opened(to).snapshots()[0].snapshot_id
        old = opened(to).scan(snapshot_id=first).to_arrow()
        assert old.column("v").to_pylist() == [1]

    def test_a_key_whose_type_becomes_wider_rewrites_touched_buckets_only(
        self, root: Path, to: Path
    ) -> None:
        put(root, *({"id": number, "v": 0} for number in range(20)))
        table(root, to, upsert="id", buckets=4, schema="id int, v int")
        put(root, {"id": 1, "v": 1 << 40})
        done = table(root, to, schema="v bigint")
        assert (done.updated, done.files) == (1, 1)
        assert {row["id"]: row["v"] for row in rows(to)} == dict.fromkeys(range(20), 0) | {
            1: 1 << 40
        }

    def test_odd_names(self, root: Path, to: Path) -> None:
        odd = {"a b": 1, "a.b": 2, "a_b": 3, "ü`'\"{}=": 4, "s": {"x.y": 5, "x y": 6}, "_Tags": 7}
        put(root, odd)
        table(root, to)
        put(root, odd | {"select": 8})
        table(root, to)
        found = rows(to)[1]
        own = {
            name: value
            for name, value in found.items()
            if not name.startswith("_") or name == "_Tags_2"
        }
        assert own == {
            **{"a b": 1, "a_b": 2, "a_b_2": 3, "ü`'\"{}=": 4, "s": {"x_y": 5, "x y": 6}},
            **{"_Tags_2": 7, "select": 8},
        }
        with pytest.raises(ConfigError, match="must have no dot"):
            table(root, to.with_name("other"), prefix="m.")

    def test_new_columns_come_before_those_of_messages(self, root: Path, to: Path) -> None:
        for row in ({"id": 0}, {"id": 1, "v": {"a": 1}}, {"id": 2, "w": 1}):
            put(root, row)
            table(root, to)
        names = [field.name for field in iceberg(to).schema().fields]
        assert names[:4] == ["id", "v", "w", "_broker"]

    def test_files_have_the_ids_of_columns(self, root: Path, to: Path) -> None:
        """Engines find columns by them, without a mapping of names."""
        put(root, {"id": 0, "l": [{"a": 1}], "m": {"x": "y"}})
        table(root, to, schema="id int, l array<struct<a: int>>, m map<string, string>")
        assert iceberg(to).name_mapping() is None
        (task,) = iceberg(to).scan().plan_files()
        found = pa.parquet.read_schema(task.file.file_path.removeprefix("file://"))
        for name in ("id", "l", "m"):
            column = iceberg(to).schema().find_field(name)
            assert found.field(name).metadata[b"PARQUET:field_id"] == str(column.field_id).encode()


class TestPlaces:
    def test_files_can_be_read_by_other_users(self, root: Path, to: Path) -> None:
        mask = os.umask(0o22)
        try:
            put(root, {"id": 0})
            table(root, to)
        finally:
            os.umask(mask)
        files = [path for name in ("data", "metadata") for path in (to / name).iterdir()]
        assert {path.name: path.stat().st_mode & 0o777 for path in files} == dict.fromkeys(
            [path.name for path in files], 0o644
        )

    def test_a_path_with_odd_letters(self, root: Path, tmp_path: Path) -> None:
        to = tmp_path / "ä b;%20[c]" / "orders"
        for number in range(2):
            put(root, {"id": number})
            table(root, to)
        assert ids(to) == [0, 1]

    @pytest.mark.parametrize("letter", ["#", "?", "\n"])
    def test_a_path_that_pyiceberg_does_not_open(
        self, root: Path, tmp_path: Path, letter: str
    ) -> None:
        put(root, {"id": 0})
        with pytest.raises(ConfigError, match="opens no path with"):
            table(root, tmp_path / f"a{letter}b")

    def test_a_table_that_was_moved(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        table(root, to)
        shutil.move(to, to.with_name("moved"))
        with pytest.raises(LakeError, match=rf"is in file://{to}; move it back"):
            table(root, to.with_name("moved"))

    def test_a_table_in_a_table(self, root: Path, to: Path) -> None:
        put(root, {"id": 0})
        table(root, to)
        shutil.rmtree(to / "_firetrail")
        with pytest.raises(ConfigError, match="which is an Iceberg table"):
            table(root, to / "inner")


def test_the_newest_version_is_found_after_a_kill_before_the_hint(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        put(root, {"id": number})
        with monkeypatch.context() as patch:
            if number:
                patch.setattr(FolderCatalog, "publish", _killed)
                with pytest.raises(KeyboardInterrupt):
                    table(root, to)
            else:
                table(root, to)
    assert ids(to) == [0]
    assert table(root, to).messages == 0
    assert ids(to) == [0, 1]


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
