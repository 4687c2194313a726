"""Following a broker: offsets per broker and queue, limits, new and lost messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from tests.pipeline.streams import finish
from tests.pipeline.wire import talk
from tests.pipeline.wire.talk import create, send

from firetrail import Message
from firetrail.broker.background import BackgroundBroker
from firetrail.client import Admin
from firetrail.errors import ConfigError, DataLostError
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.wire.broker_reader import read_wire
from firetrail.pipeline.wire.broker_stream import WireStreamReader
from firetrail.remoting.messages.admin.admin_bodies import ConsumeStats

ALL = ReadAllAvailable()


def numbered(first: int, end: int, topic: str = "T", queues: int = 2) -> list[Message]:
    return [Message(topic, b"%d" % n, queue_id=n % queues) for n in range(first, end)]


def reader_of(broker: BackgroundBroker, **options: str) -> WireStreamReader:
    parsed = parse_options({"namesrv": broker.namesrv} | options, stream=True)
    return WireStreamReader(parsed, ["body", "queue_id"])


def read(reader: WireStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = reader.partitions(start, end)
    batches = [b for part in parts for b in read_wire(part.value, ["body"])]
    return sorted(int(body.as_py()) for batch in batches for body in batch.column("body"))


def home(reader: WireStreamReader) -> str:
    queues: dict[str, int] = reader.reportLatestOffset()["T"]
    (name,) = {queue.rpartition("/")[0] for queue in queues}
    return name


def committed(broker: BackgroundBroker, group: str) -> list[int]:
    """Return the offsets of a group by queue, as ``lag`` and mqadmin see them."""

    async def work() -> ConsumeStats:
        async with Admin(broker.namesrv) as admin:
            return await admin.consume_stats(group)

    table = talk.run(work).offset_table
    assert {queue.topic for queue in table} == {"T"}
    return [table[queue].consumer_offset for queue in sorted(table)]


class TestOffsets:
    @pytest.fixture(autouse=True)
    def topic(self, broker: BackgroundBroker) -> None:
        create(broker.namesrv, "T", 2)
        send(broker.namesrv, numbered(0, 40))

    def test_a_new_stream_begins_at_the_end_or_at_given_offsets(
        self, broker: BackgroundBroker
    ) -> None:
        reader = reader_of(broker, subscribe="T")
        name = home(reader)
        assert reader.initialOffset() == {"T": {f"{name}/0": 20, f"{name}/1": 20}}
        earliest = reader_of(broker, subscribe="T", startingOffsets="earliest").initialOffset()
        assert earliest == {"T": {f"{name}/0": 0, f"{name}/1": 0}}
        given = '{"T": {"0": 5, "' + name + '/1": -1}}'
        offsets = reader_of(broker, subscribe="T", startingOffsets=given).initialOffset()
        assert offsets == {"T": {f"{name}/0": 5, f"{name}/1": 20}}
        later = reader_of(broker, subscribe="T", startingTimestamp="99999999999999")
        assert later.initialOffset() == reader.initialOffset()
        sooner = reader_of(broker, subscribe="T", startingTimestamp="1")
        assert sooner.initialOffset() == earliest
        times = '{"T": {"1": 99999999999999}}'
        mixed = reader_of(broker, subscribe="T", startingOffsetsByTimestamp=times)
        assert mixed.initialOffset() == {"T": {f"{name}/0": 0, f"{name}/1": 20}}
        with pytest.raises(ConfigError, match="no such topic"):
            reader_of(broker, subscribe="nix").initialOffset()

    def test_new_queues_and_messages_are_found(self, broker: BackgroundBroker) -> None:
        reader = reader_of(broker, subscribePattern="T|new")
        start = reader.initialOffset()
        assert reader.latestOffset(start, ALL) == start
        send(broker.namesrv, numbered(40, 50))
        create(broker.namesrv, "new", 1)
        send(broker.namesrv, numbered(50, 53, "new", 1))
        end = reader.latestOffset(start, ALL)
        assert end == reader.reportLatestOffset()
        assert read(reader, start, end) == list(range(40, 53))

    def test_only_assigned_queues_are_followed(self, broker: BackgroundBroker) -> None:
        name = home(reader_of(broker, subscribe="T"))
        both = reader_of(broker, subscribe="T", startingOffsets="earliest")
        start, end = both.initialOffset(), both.reportLatestOffset()
        for queue in (1, f"{name}/1"):
            assign = json.dumps({"T": [queue]})
            reader = reader_of(broker, assign=assign, startingOffsets="earliest")
            assert reader.initialOffset() == {"T": {f"{name}/1": 0}}
            assert reader.latestOffset(reader.initialOffset(), ALL) == {"T": {f"{name}/1": 20}}
            assert read(reader, start, end) == list(range(40)), "of a run that followed both"
        with pytest.raises(ConfigError, match="assign = 'T/7': no such queue"):
            reader_of(broker, assign='{"T": [7]}').initialOffset()

    def test_limits_advance_all_queues_evenly(self, broker: BackgroundBroker) -> None:
        reader = reader_of(broker, subscribe="T", startingOffsets="earliest")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(10))
        assert read(reader, start, end) == list(range(10))
        send(broker.namesrv, numbered(40, 41))
        following = reader.latestOffset(end, ReadMaxRows(1))
        assert read(reader, end, following) == [10, 11], "one of each queue at least"
        size = 40 * len(b"00") + 40 * 150
        some = reader.latestOffset(start, ReadMaxBytes(size // 4))
        assert 5 <= len(read(reader, start, some)) <= 15
        reader.prepareForTriggerAvailableNow()
        send(broker.namesrv, numbered(41, 45))
        assert read(reader, start, reader.latestOffset(start, ALL)) == list(range(41))

    def test_small_batches_wait(self, broker: BackgroundBroker) -> None:
        reader = reader_of(
            broker, subscribe="T", minOffsetsPerTrigger="5", startingOffsets="earliest"
        )
        limit = reader.getDefaultReadLimit()
        start = reader.latestOffset(reader.initialOffset(), limit)
        assert start == reader.reportLatestOffset()
        send(broker.namesrv, numbered(40, 44))
        assert reader.latestOffset(start, limit) == start
        send(broker.namesrv, numbered(44, 45))
        assert reader.latestOffset(start, limit) == reader.reportLatestOffset()

    def test_progress_becomes_offsets_of_a_group(self, broker: BackgroundBroker) -> None:
        given = {"subscribe": "T", "startingOffsets": "earliest", "retryTimeoutMs": "0"}
        reader = reader_of(broker, **given, commitGroup="spark")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(10))
        assert committed(broker, "spark") == [0, 0], "the first batch is not yet committed"
        everything = reader.latestOffset(end, ALL)
        assert committed(broker, "spark") == [5, 5]
        assert reader.latestOffset(everything, ALL) == everything
        assert committed(broker, "spark") == [20, 20]
        reader_of(broker, **given).latestOffset(start, ALL)
        assert committed(broker, "spark") == [20, 20]
        again = reader_of(broker, **given, commitGroup="spark")
        away = {"T": end["T"] | {"away/0": 7}}
        again.latestOffset(away, ALL)
        assert committed(broker, "spark") == [5, 5], "a new query may begin earlier"

    def test_lost_queues_and_messages_are_an_error(self, broker: BackgroundBroker) -> None:
        at_once = {"subscribe": "T", "retryTimeoutMs": "0"}
        reader = reader_of(broker, **at_once)
        lenient = reader_of(broker, **at_once, failOnDataLoss="false")
        name = home(reader)
        beyond = {"T": {f"{name}/0": 90, f"{name}/1": 20}}
        with pytest.raises(DataLostError, match="ends at 20, but was read up to 90"):
            reader.latestOffset(beyond, ALL)
        assert lenient.latestOffset(beyond, ALL)["T"][f"{name}/0"] == 20
        gone = {"T": {"other/0": 5}}
        with pytest.raises(DataLostError, match="queue T/other/0 no longer exists"):
            reader.partitions({}, gone)
        assert not lenient.partitions({}, gone)


@pytest.mark.slow
def test_a_spark_stream_waits_for_messages(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path
) -> None:
    create(broker.namesrv, "T", 2)
    send(broker.namesrv, numbered(0, 3))
    writer = follow(spark, broker, minOffsetsPerTrigger="10").writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start(str(tmp_path / "rows"), format="parquet")
    try:
        for count, expected in ((4, 3), (6, 13)):
            query.processAllAvailable()
            send(broker.namesrv, numbered(0, count))
            query.processAllAvailable()
            assert spark.read.parquet(str(tmp_path / "rows")).count() == expected
    finally:
        query.stop()


def follow(spark: SparkSession, broker: BackgroundBroker, **options: str) -> DataFrame:
    given = {"namesrv": broker.namesrv, "startingOffsets": "earliest", "subscribe": "T"} | options
    return spark.readStream.format("rocketmq").options(**given).load()


@pytest.mark.slow
def test_a_spark_stream_commits_its_last_batch(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path
) -> None:
    create(broker.namesrv, "T", 2)
    send(broker.namesrv, numbered(0, 60))
    run(follow(spark, broker, maxOffsetsPerTrigger="25", commitGroup="spark"), tmp_path)
    assert committed(broker, "spark") == [30, 30]


def run(frame: DataFrame, place: Path) -> None:
    writer = frame.writeStream.option("checkpointLocation", str(place / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    finish(lambda: writer.start(str(place / "rows"), format="parquet"))


@pytest.mark.slow
def test_a_spark_stream_continues_from_its_checkpoint(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path
) -> None:
    """A batch read has predicates; a stream is stopped and continues without duplicates."""
    create(broker.namesrv, "T", 2)
    send(broker.namesrv, numbered(0, 60))
    batch = spark.read.format("rocketmq").option("namesrv", broker.namesrv).load()
    assert batch.where("topic = 'T' and queue_id = 1").count() == 30
    assert batch.where("topic = 'T' and queue_offset >= 28").count() == 4
    run(follow(spark, broker, maxOffsetsPerTrigger="25"), tmp_path)
    send(broker.namesrv, numbered(60, 70))
    run(follow(spark, broker, maxOffsetsPerTrigger="25"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "rows")).selectExpr("int(string(body))").collect()
    assert sorted(row[0] for row in rows) == list(range(70))
