"""Writing to a store from Spark: stored rows, refused rows, and no batch twice."""

import os
import shutil
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.helpers import small_config
from tests.pipeline.sink.direct import rows_of, stream_writer
from tests.pipeline.streams import checkpoints_in, finish

from firetrail import Message, Store
from firetrail.errors import (
    CheckpointError,
    ConfigError,
    FiretrailError,
    PipelineError,
    StoreLockedError,
)
from firetrail.pipeline import register
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.sink import sink_columns, staged_rows, store_writers
from firetrail.store.settings.store_config import StoreConfig


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def write(frame: DataFrame, root: Path, **options: Any) -> None:
    with original_errors():
        frame.write.format("rocketmq").options(**options).mode("append").save(str(root))


def messages(root: Path, topic: str, queue_id: int = 0) -> list[Any]:
    with Store.open(root) as store:
        return list(store.read(topic, queue_id))


class TestBatch:
    def test_every_column_is_written(self, spark: SparkSession, root: Path) -> None:
        frame = spark.sql(
            "select 'T' as topic, cast('b' as binary) as body, 'tag' as tags, "
            "array('k1', 'k2') as keys, map('a', 'b', 'c', 'd') as properties, "
            "3 as queue_id, cast(null as int) as delay_level"
        )
        write(frame, root)
        (message,) = messages(root, "T", 3)
        assert (message.body, message.tags, message.keys) == (b"b", "tag", ("k1", "k2"))
        assert message.properties == {"KEYS": "k1 k2", "TAGS": "tag", "a": "b", "c": "d"}
        with Store.open(root) as store:
            assert [found.body for found in store.query("T", "k2")] == [b"b"]

    def test_rows_that_were_read_are_changed_and_written_back(
        self, spark: SparkSession, root: Path, tmp_path: Path
    ) -> None:
        with Store.open(root) as store:
            store.put(Message("T", b"plain", tags="old", keys=["k"], properties={"a": "b"}))
            store.put(Message("T", zlib.compress(b"packed"), sys_flag=0x301, tags="old"))
        read = spark.read.format("rocketmq").option("decompress", "true").load(str(root))
        write(read.withColumn("tags", F.lit("new")), tmp_path / "copy")
        first, second = messages(tmp_path / "copy", "T")
        assert (first.body, first.tags, first.keys) == (b"plain", "new", ("k",))
        assert first.properties["a"] == "b"
        assert (second.body, second.tags, second.sys_flag & 0x701) == (b"packed", "new", 0)
        with pytest.raises(FiretrailError, match="is compressed according to its sys_flag"):
            write(spark.read.format("rocketmq").load(str(root)), tmp_path / "copy")

    def test_columns_may_be_spelled_in_any_case(self, spark: SparkSession, root: Path) -> None:
        frame = spark.sql(
            "select 'T' as Topic, 'b' as BODY, 'tag' as Tags, array('k') as KEYS, "
            "map('TAGS', 'other') as Properties, 2 as Queue_Id, 1 as Size"
        )
        write(frame, root)
        (message,) = messages(root, "T", 2)
        assert (message.body, message.tags, message.keys) == (b"b", "tag", ("k",))

    def test_keys_in_one_string_are_split(self, spark: SparkSession, root: Path) -> None:
        write(spark.sql("select 'T' as topic, 'b' as body, 'k1  k2' as keys"), root)
        (message,) = messages(root, "T")
        assert message.keys == ("k1", "k2")

    def test_rows_of_many_tasks_are_written_once(self, spark: SparkSession, root: Path) -> None:
        with Store.open(root, small_config(log=1 << 16)) as store:
            store.put(Message("T", b"first"))
        frame = spark.range(0, 600, 1, 3).selectExpr(
            "concat('T', id % 2) as topic", "cast(id as string) as body"
        )
        write(frame, root, queues="2")
        for topic in (0, 1):
            found = [[int(m.body) for m in messages(root, f"T{topic}", q)] for q in (0, 1)]
            assert all(queue == sorted(queue) for queue in found), "the order of the tasks"
            assert sorted(found[0] + found[1]) == list(range(topic, 600, 2))
        assert [m.body for m in messages(root, "T")] == [b"first"]
        assert [p.name for p in root.parent.iterdir()] == ["data"], "nothing staged is left"

    def test_delayed_rows_go_to_the_schedule_topic(self, spark: SparkSession, root: Path) -> None:
        write(spark.sql("select 'T' as topic, 'b' as body, 3 as delay_level"), root)
        (message,) = messages(root, "SCHEDULE_TOPIC_XXXX", 2)
        assert message.properties == {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "0"}

    def test_a_write_without_rows_changes_nothing(self, spark: SparkSession, root: Path) -> None:
        write(spark.sql("select 'T' as topic, 'b' as body where false"), root)
        with Store.open(root) as store:
            assert store.topics() == []
        assert [p.name for p in root.parent.iterdir()] == ["data"]

    def test_a_named_write_happens_once(self, spark: SparkSession, root: Path) -> None:
        frame = spark.sql("select 'T' as topic, 'b' as body")
        for _ in range(2):
            write(frame, root, writeId="monday")
        assert len(messages(root, "T")) == 1

    def test_the_settings_of_a_broker_apply(
        self, spark: SparkSession, root: Path, tmp_path: Path
    ) -> None:
        conf = tmp_path / "broker.conf"
        conf.write_text(
            "mappedFileSizeCommitLog=65536\nmaxMessageSize=1000\nbrokerIP1=10.0.0.7\n"
            f"messageDelayLevel={' '.join(f'{level}s' for level in range(1, 21))}\n"
        )
        rows = (
            "select 'T' as topic, 'b' as body, delay_level from values (0), (20) as (delay_level)"
        )
        write(spark.sql(rows), root, brokerConf=str(conf))
        assert len(messages(root, "SCHEDULE_TOPIC_XXXX", 19)) == 1
        (message,) = messages(root, "T")
        assert message.store_host.ip == "10.0.0.7"
        assert (root / "commitlog" / "00000000000000000000").stat().st_size == 65536
        with pytest.raises(PipelineError, match="body: 2000 bytes, at most 1000"):
            write(
                spark.sql("select 'T' as topic, repeat('b', 2000) as body"),
                root,
                brokerConf=str(conf),
            )


class TestRefused:
    @pytest.mark.parametrize(
        ("query", "error"),
        [
            ("select 'T' as topic", "column = 'body': is missing; the frame has only topic"),
            ("select 'T' as topic, 1 as body", "column body = 'int': must be binary or string"),
            ("select 'T' as topic, 'b' as body, 1 as tag", "did you mean tags?"),
            ("select 'T' as topic, 1 as Body", "column Body = 'int': must be binary or string"),
            (
                "select 'T' as topic, 'b' as body, 'U' as Topic",
                "column = 'Topic': the frame has topic, too, and case does not count: drop one",
            ),
            ("select 'a b' as topic, 'b' as body", "topic: 'a b' has a character other than"),
            ("select 'T' as topic, cast(null as string) as body", "body: is null"),
            ("select 'T' as topic, 'b' as body, -1 as queue_id", "queue_id: -1 is not in 0.."),
            (
                "select 'T' as topic, 'b' as body, array('a b') as keys",
                "a key must not contain a space",
            ),
            ("select 'T' as topic, 'b' as body, map('a', '') as properties", "its value is empty"),
            ("select 'T' as topic, 'b' as body, 'a||b' as tags", "tags: 'a||b' in row 0"),
            (
                "select 'T' as topic, 'b' as body, array('a', cast(null as string)) as keys",
                "keys: ['a', None] in row 0 of the partition: a key cannot be null",
            ),
            (
                "select 'T' as topic, 'b' as body, 19 as delay_level",
                "the levels are 1 to 18, and 0 or null for no delay; if the broker has more, name "
                "its file with messageDelayLevel in the option brokerConf",
            ),
        ],
    )
    def test_rows_that_cannot_be_messages_are_refused(
        self, spark: SparkSession, root: Path, query: str, error: str
    ) -> None:
        good = "select 'T' as topic, 'good' as body"
        write(spark.sql(good), root)
        with pytest.raises(FiretrailError) as caught:
            write(spark.sql(query), root)
        assert error in str(caught.value)
        assert len(messages(root, "T")) == 1, "all or nothing"
        assert [p.name for p in root.parent.iterdir()] == ["data"]

    def test_writes_from_several_threads(self, spark: SparkSession, root: Path) -> None:
        """Their commits wait for each other."""

        def one(number: int) -> None:
            register(spark)
            write(spark.sql(f"select 'T' as topic, 'b{number}' as body"), root)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(one, range(3)))
        assert sorted(message.body for message in messages(root, "T")) == [b"b0", b"b1", b"b2"]

    def test_a_store_in_use(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_writers, "LOCK_WAIT_S", 0.2)
        options = sink_columns.parse_options({"path": str(root)}, stream=False)
        writer = store_writers.BatchWriter(options, tmp_path / "staged")
        staged = writer.write(iter([rows_of(b"b")]))
        with (
            Store.open(root, small_config()) as store,
            pytest.raises(StoreLockedError, match=r"open already\. The sink waited 0\.2 s\. If"),
        ):
            writer.commit([staged])
        del store
        writer.commit([staged])
        assert len(messages(root, "T")) == 1

    def test_overwriting_is_refused(self, spark: SparkSession, root: Path) -> None:
        frame = spark.sql("select 'T' as topic, 'b' as body")
        with pytest.raises(PipelineError, match="can only be appended to"), original_errors():
            frame.write.format("rocketmq").mode("overwrite").save(str(root))

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"path": "x", "queue": "3"}, "no such option; did you mean queues?"),
            ({"path": "x", "queryNames": "q"}, "no such option; did you mean queryName?"),
            ({"path": "x", "queues": "0"}, "must be a whole number from 1 to 1024"),
            ({}, "name the folder of the store"),
            ({"path": "s3://b/x"}, "can only write to a local folder"),
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, str], error: str) -> None:
        with pytest.raises(ConfigError) as caught:
            sink_columns.parse_options(options, stream=False)
        assert error in str(caught.value)

    @pytest.mark.parametrize("stream", [False, True])
    def test_options_of_spark_are_accepted(self, stream: bool) -> None:
        """Spark gives their names in lower case."""
        given = {"path": "x", "checkpointlocation": "c", "queryname": "q"}
        options = sink_columns.parse_options(given, stream=stream)
        assert options.writer_id is None

    def test_a_stream_without_a_path(self) -> None:
        """Spark passes no path for toTable, either."""
        with pytest.raises(ConfigError, match=r"folder of the store: \.start\(path\)$"):
            sink_columns.parse_options({"checkpointLocation": "c"}, stream=True)


class TestStream:
    def start(
        self, spark: SparkSession, source: Path, root: Path, files: int = 1, **options: str
    ) -> None:
        stream = (
            spark.readStream.schema("topic string, body string")
            .option("maxFilesPerTrigger", files)
            .json(str(source))
        )
        writer = (
            stream.writeStream.format("rocketmq")
            .queryName("checkpoint")  # Spark passes it to the sink as an option
            .outputMode("append")
            .options(**options)
            .trigger(availableNow=True)
        )
        finish(lambda: writer.start(str(root)))

    def test_a_restarted_query_continues(
        self, spark: SparkSession, root: Path, tmp_path: Path
    ) -> None:
        """Its checkpoint is given by the option or by Spark's setting for all queries."""
        source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
        source.mkdir()
        for number in range(4):
            (source / f"{number}.json").write_text(f'{{"topic": "T", "body": "{number}"}}\n')
            if number in (1, 3):
                self.start(spark, source, root, checkpointLocation=str(checkpoint))
        assert sorted(m.body for m in messages(root, "T")) == [b"0", b"1", b"2", b"3"]
        # As if Spark had been killed after the sink's commit and before its own.
        last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        for name in (f"{last}", f".{last}.crc"):
            (checkpoint / "commits" / name).unlink()
        with checkpoints_in(spark, tmp_path):
            self.start(spark, source, root)
            assert len(messages(root, "T")) == 4
            assert [p.name for p in sorted(tmp_path.iterdir())] == ["checkpoint", "data", "in"]
            shutil.rmtree(checkpoint)
            self.start(spark, source, root)
        assert len(messages(root, "T")) == 8, "a query that starts over writes all rows again"

    def test_a_restored_older_checkpoint_is_refused(
        self, spark: SparkSession, root: Path, tmp_path: Path
    ) -> None:
        """Otherwise the sink would skip new rows, as if they were the epoch that it has."""
        source, checkpoint, backup = (tmp_path / name for name in ("in", "checkpoint", "backup"))
        source.mkdir()
        for number in range(3):
            if number == 1:
                shutil.copytree(checkpoint, backup)
            if number == 2:
                shutil.rmtree(checkpoint)
                backup.rename(checkpoint)
            (source / f"{number}.json").write_text(f'{{"topic": "T", "body": "{number}"}}\n')
            if number < 2:
                self.start(spark, source, root, checkpointLocation=str(checkpoint))
        with pytest.raises(CheckpointError) as caught, original_errors():
            self.start(spark, source, root, files=9, checkpointLocation=str(checkpoint))
        assert "with 1 row, this write has 2 rows" in str(caught.value)
        assert f"The checkpoint {checkpoint} is an old copy" in str(caught.value)
        assert [m.body for m in messages(root, "T")] == [b"0", b"1"]
        assert [p.name for p in sorted(tmp_path.iterdir())] == ["checkpoint", "data", "in"]

    def test_the_staged_rows_of_an_aborted_batch_are_removed(
        self, root: Path, tmp_path: Path
    ) -> None:
        writer = stream_writer(root, tmp_path)
        writer.abort([writer.write(iter([rows_of(b"x")]))], 3)
        assert not (tmp_path / "staged").exists()

    def test_abandoned_staged_files_are_removed(self, root: Path) -> None:
        import pyarrow as pa

        options = sink_columns.parse_options({"path": str(root)}, stream=False)
        for name, age in (("old", store_writers.ABANDONED_S + 60), ("new", 60)):
            folder = options.staging / name
            folder.mkdir(parents=True)
            os.utime(folder, (time.time() - age,) * 2)
        writer = store_writers.BatchWriter(options, options.staging / "mine")
        batch = pa.RecordBatch.from_pydict({"topic": ["T"], "body": [b"x"]})
        writer.commit([writer.write(iter([batch]))])
        assert [path.name for path in options.staging.iterdir()] == ["new"]


def test_large_chunks_are_cut(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr(staged_rows, "CHUNK_BYTES", 1000)
    options = sink_columns.parse_options({"path": str(root)}, stream=False)
    stager = staged_rows.RowStager(options, tmp_path / "staged")
    batch = pa.RecordBatch.from_pydict({"topic": ["T"] * 50, "body": [b"x" * 100] * 50})
    path = stager.stage([batch])
    assert path is not None
    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as chunks:
        assert [chunk.column("messages")[0].as_py() for chunk in chunks] == [8] * 6 + [2]
    assert StoreConfig() == options.config
