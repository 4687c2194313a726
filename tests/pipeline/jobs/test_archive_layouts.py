"""The files of an archive: their number, which topics share them, and reading by other tools."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline.oddlog import write_log
from tests.stores import records

from firetrail import Message, Store
from firetrail.errors import ConfigError, LakeError
from firetrail.pipeline.jobs.archive import compaction
from firetrail.pipeline.jobs.archive import parquet_files as archive_files
from firetrail.pipeline.jobs.archive.archive_job import archive
from firetrail.pipeline.jobs.archive.parquet_files import ArchivePart, PartitionFile, archive_part
from firetrail.pipeline.jobs.restore import restore
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_manifest import DataFile, LakeLayout
from firetrail.pipeline.lakes.lake_reader import archived_files
from firetrail.pipeline.source.plan.fingerprint import whole_fingerprint
from firetrail.store.inspect.view import StoreView

Put = Callable[..., None]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TOPICS = 2000


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with many topics of two messages each."""
    root = tmp_path_factory.mktemp("many")
    rows = [{"topic": b"topic-%04d" % (number % TOPICS)} for number in range(2 * TOPICS)]
    write_log(root, rows, size=1 << 20)
    return root


def with_delta(lake: Path) -> pa.Table:
    query = "select topic, physical_offset, body, day from t where topic = 'topic-0042'"
    return pa.table(QueryBuilder().register("t", DeltaTable(str(lake))).execute(query).read_all())


def with_iceberg(lake: Path) -> pa.Table:
    with SqlCatalog("firetrail", uri=f"sqlite:///{lake}/_firetrail/catalog.db") as catalog:
        scan = catalog.load_table("firetrail.messages").scan("topic = 'topic-0042'")
        return scan.to_arrow()


def with_arrow(lake: Path) -> pa.Table:
    found = ds.dataset(lake, partitioning="hive", exclude_invalid_files=True)
    return found.to_table(filter=ds.field("topic") == "topic-0042")


READ = {"parquet": with_arrow, "delta": with_delta, "iceberg": with_iceberg}


@pytest.mark.parametrize("kind", READ)
def test_many_small_topics_share_files(
    spark: SparkSession, many: Path, lake: Path, kind: str
) -> None:
    done = archive(spark, many, lake, format=kind)
    assert (done.messages, done.files) == (2 * TOPICS, 1)
    (file,) = archived_files(lake)
    assert (file.topic, file.last_topic) == ("topic-0000", "topic-1999")
    rows = sorted(READ[kind](lake).to_pylist(), key=lambda row: row["physical_offset"])
    assert [row["body"] for row in rows] == [b"body 42", b"body 2042"]
    assert {row["topic"] for row in rows} == {"topic-0042"}
    if kind == "parquet":
        frame = spark.read.parquet(str(lake))
        counts = frame.groupBy("topic", "day").count().collect()
        assert len(counts) == TOPICS and {row["count"] for row in counts} == {2}
        topics = pq.read_table(lake / file.path, partitioning=None).column("topic").to_pylist()
        assert topics == sorted(topics), "so that a reader skips what it does not want"


class TestFileSet:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive_files, "BATCH_BYTES", 20_000)
        monkeypatch.setattr(archive_files, "OWN_BYTES", 4_000)
        monkeypatch.setattr(archive_files, "ROW_GROUP_BYTES", 16_000)
        monkeypatch.setattr(archive_files, "WAITING_BYTES", 40_000)
        monkeypatch.setattr(archive_files, "FILES_OPEN_MAX", 4)

    def test_large_topics_have_files_of_their_own(self, root: Path, lake: Path) -> None:
        """One topic has half of the records, some topics have many, and hundreds have very few."""
        names = ["big", *(f"middle-{number}" for number in range(6))]
        weights = [300, 40, 40, 40, 40, 40, 40]
        rows = [name for name, weight in zip(names, weights, strict=True) for _ in range(weight)]
        rows += [f"small-{number}" for number in range(300)] * 2
        rows = [rows[number * 7919 % len(rows)] for number in range(len(rows))]
        write_log(root, [{"topic": topic.encode()} for topic in rows], size=1 << 20)
        files = archived(root, lake)
        found: Counter[tuple[str, int]] = Counter()
        for file in files:
            table = pq.read_table(lake / file.path, partitioning=None)
            offsets, topics = (table.column(n).to_pylist() for n in ("physical_offset", "topic"))
            found.update(zip(topics, offsets, strict=True))
            assert (file.start, file.last) == (min(offsets), max(offsets))
            assert (file.topic, file.last_topic) == (min(topics), max(topics))
            assert file.messages == len(topics)
            if file.topic == file.last_topic:
                assert offsets == sorted(offsets), "as in the log"
        assert found == Counter((r.topic, r.physical_offset) for r in records(root))
        total = sum(record.size for record in records(root))
        assert len(files) <= total // 4_000 + 1
        assert "big" in {file.topic for file in files if file.topic == file.last_topic}
        assert any(file.topic != file.last_topic for file in files)

    def test_small_topics_that_exceed_memory_become_row_groups_of_one_file(
        self, root: Path, lake: Path
    ) -> None:
        """No topic is large, but together they exceed the memory limit."""
        rows = [{"topic": b"t%03d" % (number * 31 % 200)} for number in range(2000)]
        write_log(root, rows, size=1 << 20)
        (file,) = archived(root, lake)
        with pq.ParquetFile(lake / file.path) as source:
            assert source.num_row_groups > 5
            for number in range(source.num_row_groups):
                topics = source.read_row_group(number, ["topic"]).column(0).to_pylist()
                assert topics == sorted(topics)
        assert file.messages == 2000


def whole_log(root: Path, lake: Lake) -> ArchivePart:
    with StoreView.open(root) as view:
        return ArchivePart(
            str(root), whole_fingerprint(view), 0, view.end, lake, "x", LakeLayout.DAY, False
        )


def archived(root: Path, lake: Path) -> list[DataFile]:
    """Return the files that one task writes for a log."""
    folder = Lake(str(lake))
    with folder.locked("x"):
        files = archive_part(whole_log(root, folder)).files
    folder.reveal(files)
    return files


def test_a_late_attempt_at_a_part_leaves_the_files_of_the_first_alone(
    root: Path, lake: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark starts a second attempt if it speculates, and kills it when the first has ended."""

    def killed(*_: object) -> None:
        raise InterruptedError

    put(9)
    folder = Lake(str(lake))
    with folder.locked("x"):
        (first,) = archive_part(whole_log(root, folder)).files
        with monkeypatch.context() as patch, pytest.raises(InterruptedError):
            patch.setattr(PartitionFile, "write", killed)
            archive_part(whole_log(root, folder))
        folder.reveal([first])
    assert hashlib.sha256((lake / first.path).read_bytes()).hexdigest() == first.sha256
    assert pq.read_table(lake / first.path, partitioning=None).num_rows == 9


def test_topics_of_different_runs_are_merged(
    spark: SparkSession, root: Path, lake: Path, tmp_path: Path
) -> None:
    """Each run finds one message of another topic."""
    for number in range(compaction.FEW + 1):
        with Store.open(root, small_config()) as store:
            store.put(Message(f"topic-{number}", b"%d" % number))
        done = archive(spark, root, lake, compaction=True)
    assert (done.compacted, done.total_files) == (5, 1)
    (file,) = archived_files(lake)
    assert (file.topic, file.last_topic, file.messages) == ("topic-0", "topic-4", 5)
    restore(spark, lake, tmp_path / "back")
    assert records(tmp_path / "back") == records(root)


def test_a_lake_with_folders_per_topic_keeps_its_layout(
    spark: SparkSession, root: Path, lake: Path, put: Put, tmp_path: Path
) -> None:
    """Its manifest has the format of earlier versions, which can continue it."""
    put(9)
    archive(spark, root, lake, layout="topic")
    put(9)
    assert archive(spark, root, lake).files == 3
    manifest = json.loads((lake / "_firetrail" / "manifest.json").read_text())
    assert manifest["firetrail_archive"] == 1
    assert "layout" not in manifest and "last_topic" not in manifest["files"][0]
    with pytest.raises(LakeError, match="the layout topic, not day; continue without"):
        archive(spark, root, lake, layout="day")
    with pytest.raises(ConfigError, match="must be one of day, topic"):
        archive(spark, root, lake, layout="week")
    restore(spark, lake, tmp_path / "back")
    assert records(tmp_path / "back") == records(root)


def test_bodies_have_a_dictionary(root: Path, lake: Path) -> None:
    """Repeated bodies are stored once per row group."""
    again = b'{"state": "on"}' * 20
    write_log(root, [{"body": again} for _ in range(500)], size=1 << 20)
    (file,) = archived(root, lake)
    with pq.ParquetFile(lake / file.path) as source:
        group = source.metadata.row_group(0)
        names = [group.column(number).path_in_schema for number in range(group.num_columns)]
        body = group.column(names.index("body"))
        assert "RLE_DICTIONARY" in body.encodings
        assert body.total_uncompressed_size < 2 * len(again)
