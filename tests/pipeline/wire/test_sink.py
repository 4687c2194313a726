"""Writing to a broker from Spark: messages, their order, and ids of duplicates."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.streams import checkpoints_in, finish
from tests.pipeline.wire.talk import create, received

from firetrail.broker.background import BackgroundBroker
from firetrail.errors import ConfigError, IllegalMessageError, PipelineError
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.sink.sink_columns import parse_wire_options
from firetrail.pipeline.wire import sender as sending
from firetrail.pipeline.wire.sender import RowIds, Sender

ROWS = {"topic": ["T"] * 100, "body": [f"{n}" for n in range(100)]}


def push(
    broker: BackgroundBroker, rows: dict[str, Any], ids: RowIds | None = None, **given: str
) -> int:
    """Send one batch of rows as a task does."""
    options = parse_wire_options({"namesrv": broker.namesrv} | given)
    sender = Sender(options, ids)
    sender.send([pa.RecordBatch.from_pydict(rows)])
    return sender.messages


class TestTask:
    @pytest.fixture(autouse=True)
    def topic(self, broker: BackgroundBroker) -> None:
        create(broker.namesrv, "T", 4)

    def test_every_column(self, broker: BackgroundBroker) -> None:
        row = {
            "topic": ["T"],
            "body": [b"b"],
            "tags": ["tag"],
            "keys": [["k1", "k2"]],
            "properties": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
            "queue_id": [3],
        }
        push(broker, row)
        (message,) = received(broker.namesrv, "T", 1)
        assert (message.queue.queue_id, message.body, message.tags) == (3, b"b", "tag")
        assert message.keys == ("k1", "k2")
        given = {"KEYS": "k1 k2", "TAGS": "tag", "a": "b"}
        assert given.items() <= message.properties.items()
        assert "SINK_ROW" not in message.properties

    @pytest.mark.parametrize("size", [1, 100, 1 << 20])
    def test_rows_are_distributed_in_turn_and_keep_their_order(
        self, broker: BackgroundBroker, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Batches have a single message, a few messages, or all of them."""
        monkeypatch.setattr(sending, "CHUNK_BYTES", size)
        assert push(broker, ROWS) == 100
        found = received(broker.namesrv, "T", 100)
        for queue in range(4):
            bodies = [int(m.body) for m in found if m.queue.queue_id == queue]
            assert bodies == list(range(queue, 100, 4))

    def test_rows_may_use_only_some_queues(self, broker: BackgroundBroker) -> None:
        push(broker, ROWS, queues="2")
        found = received(broker.namesrv, "T", 100)
        assert {m.queue.queue_id for m in found} == {0, 1}
        with pytest.raises(ConfigError, match="topic T has 4"):
            push(broker, ROWS, queues="5")

    def test_batches_with_delayed_rows_are_encoded_row_by_row(
        self, broker: BackgroundBroker
    ) -> None:
        """The rows have keys in a string, delays between others, and some queue ids."""
        rows = {
            "topic": ["T"] * 4,
            "body": ["a", "b", "c", "d"],
            "keys": ["k1 k2", None, "k3", ""],
            "queue_id": [1, None, 1, 1],
            "delay_level": [0, 0, 1, None],
        }
        push(broker, rows, RowIds("w", 0, 0))
        found = received(broker.namesrv, "T", 3)
        assert [(m.queue.queue_id, m.body) for m in found] == [(1, b"a"), (1, b"b"), (1, b"d")]
        assert found[0].keys == ("k1", "k2")
        (waiting,) = received(broker.namesrv, "SCHEDULE_TOPIC_XXXX", 1)
        assert (waiting.body, waiting.properties["REAL_TOPIC"]) == (b"c", "T")
        assert len({m.properties["SINK_ROW"] for m in [*found, waiting]}) == 4

    def test_a_missing_topic_is_created(self, broker: BackgroundBroker) -> None:
        push(broker, ROWS | {"topic": ["made"] * 100})
        assert len(received(broker.namesrv, "made", 100)) == 100

    def test_messages_larger_than_a_batch_are_sent(
        self, broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are larger than the intended size of a batch."""
        monkeypatch.setattr(sending, "CHUNK_BYTES", 10_000)
        large = [b"x" * 40_000, b"y" * 30_000]
        push(broker, {"topic": ["T", "T"], "body": large, "queue_id": [0, 0]})
        assert [m.body for m in received(broker.namesrv, "T", 2)] == large

    @pytest.mark.parametrize(
        ("changed", "error"),
        [
            ({"queue_id": [4]}, "queue_id: 4: topic T has 0 to 3"),
            ({"queue_id": [-1]}, "queue_id: -1: topic T has 0 to 3"),
            ({"topic": [None]}, "topic: is null"),
            ({"body": [None]}, "body: is null"),
            ({"topic": ["a b"]}, "has a character other than"),
            ({"keys": [["a b"]]}, "a key must not contain a space"),
            ({"tags": ["a||b"]}, "tags: 'a||b' in row 0 of the partition"),
            ({"keys": [["a", None]]}, "keys: ['a', None] in row 0 of the partition"),
            ({"delay_level": [19]}, "if the brokers have more, set the level as the property"),
        ],
    )
    def test_rows_that_cannot_be_messages_are_refused(
        self, broker: BackgroundBroker, changed: dict[str, Any], error: str
    ) -> None:
        rows = {"topic": ["T"], "body": ["b"]} | changed
        types = {"topic": pa.string(), "body": pa.string()}
        arrays = {name: pa.array(column, types.get(name)) for name, column in rows.items()}
        with pytest.raises(IllegalMessageError) as caught:
            push(broker, arrays)
        assert error in str(caught.value)


class TestIds:
    def test_the_same_rows_have_the_same_ids(self, broker: BackgroundBroker) -> None:
        create(broker.namesrv, "T", 1)
        twice = {"topic": ["T"] * 3, "body": ["same", "same", "other"]}
        for _ in range(2):
            push(broker, twice, RowIds("w", 7, 1))
        push(broker, twice, RowIds("w", 8, 1))
        ids = [m.properties["SINK_ROW"] for m in received(broker.namesrv, "T", 9)]
        assert ids[:3] == ids[3:6]
        assert len(set(ids)) == 6, "equal rows differ, and epochs do"

    def test_other_rows_in_their_place_have_other_ids(self) -> None:
        def ids(*bodies: bytes) -> list[bytes]:
            made = RowIds("w", 7, 1)
            return [made.next("T", body, b"") for body in bodies]

        assert not set(ids(b"a", b"b")) & set(ids(b"b", b"a"))
        assert ids(b"a", b"b") == ids(b"a", b"b")


def test_options_of_spark_are_accepted() -> None:
    """Spark gives their names in lower case."""
    given = {"namesrv": "h:1", "checkpointlocation": "c", "queryname": "q"}
    assert parse_wire_options(given).writer_id is None


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="no such option; did you mean queryName"):
        parse_wire_options({"namesrv": "h:1", "queryNames": "q"})
    with pytest.raises(ConfigError, match="no such option; did you mean queues"):
        parse_wire_options({"namesrv": "h:1", "queue": "1"})
    with pytest.raises(ConfigError, match="no such option"):
        parse_wire_options({"namesrv": "h:1", "stagingPath": "x"})
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_wire_options({"namesrv": ""})


def write(frame: DataFrame, broker: BackgroundBroker, **options: str) -> None:
    with original_errors():
        writer = frame.write.format("rocketmq").option("namesrv", broker.namesrv)
        writer.options(**options).mode("append").save()


@pytest.mark.slow
def test_batches_and_streams_of_spark_are_sent(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path
) -> None:
    """A batch has several tasks; a stream copies from topic to topic, and repeats an epoch.

    Names of columns may be spelled in any case.
    """
    create(broker.namesrv, "T", 2)
    rows = spark.range(0, 300, 1, 3).selectExpr("'T' as Topic", "string(id) as BODY")
    write(rows, broker)
    assert sorted(int(m.body) for m in received(broker.namesrv, "T", 300)) == list(range(300))
    with pytest.raises(PipelineError, match="can only be appended to"), original_errors():
        rows.write.format("rocketmq").option("namesrv", broker.namesrv).mode("overwrite").save()

    create(broker.namesrv, "copy", 2)
    place = tmp_path / "copy"

    def follow() -> None:
        source = {"namesrv": broker.namesrv, "subscribe": "T", "startingOffsets": "earliest"}
        stream = spark.readStream.format("rocketmq").options(**source).load()
        copies = stream.selectExpr("'copy' as topic", "body", "queue_id")
        writer = copies.writeStream.format("rocketmq").option("namesrv", broker.namesrv)
        # Spark passes the name to the sink as an option, and the checkpoint is in tmp_path / name.
        writer = writer.queryName("copy").trigger(availableNow=True)
        with checkpoints_in(spark, tmp_path):
            finish(writer.start)

    follow()
    last = place / "commits" / "0"
    last.unlink()  # as if Spark had been killed before its own commit
    last.with_name(".0.crc").unlink()
    follow()
    found = received(broker.namesrv, "copy", 600)
    assert len(found) == 600, "the epoch was stored twice"
    by_id = {m.properties["SINK_ROW"]: int(m.body) for m in found}
    assert sorted(by_id.values()) == list(range(300)), "each once, by its id"
