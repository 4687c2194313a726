"""Brokers that are unavailable: source and sink wait, and finally report the cause."""

import asyncio
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.helpers import small_config
from tests.pipeline.wire.processes import BrokerProcess
from tests.pipeline.wire.talk import create, received, run, send

from firetrail import Message
from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Admin, Producer
from firetrail.errors import ConfigError, PipelineError
from firetrail.format.values.hosts import parse_host
from firetrail.pipeline.batch_plan import plan_batch
from firetrail.pipeline.failures import original_errors
from firetrail.pipeline.jobs.sql import sql
from firetrail.pipeline.sink.sink_columns import parse_wire_options
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.wire import broker_plan as planning
from firetrail.pipeline.wire import request_retry
from firetrail.pipeline.wire import sender as sending
from firetrail.pipeline.wire.broker_reader import read_wire
from firetrail.pipeline.wire.broker_splits import WireSplit
from firetrail.pipeline.wire.broker_stream import WireStreamReader
from firetrail.pipeline.wire.sender import RowIds, Sender
from firetrail.remoting.wire.codes import Permission

AWAY_S = 1.0
ROWS = 3000
GAVE_UP = r"gave up after \d+ attempts in \d+\.\d s \(option retryTimeoutMs\); last error: "


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with its name server, and a topic T of two queues."""
    with BrokerProcess(tmp_path) as started:
        create(started.namesrv, "T", 2)
        yield started


def sender_to(namesrv: str, ids: RowIds | None = None, **options: str) -> Sender:
    return Sender(parse_wire_options({"namesrv": namesrv} | options), ids)


def rows(first: int, end: int, topic: str = "T") -> pa.RecordBatch:
    numbers = range(first, end)
    return pa.RecordBatch.from_pydict(
        {"topic": [topic for _ in numbers], "body": [str(number) for number in numbers]}
    )


@contextmanager
def another_program() -> Iterator[str]:
    """A server that answers as the port for gRPC clients does; yield its address."""

    class Settings(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(bytes.fromhex("00001e040000000000000100001000"))
            while self.request.recv(4096):
                pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Settings) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def refusal(namesrv: str, topic: str = "T") -> str:
    """Return the sink's error for a broker that stays unavailable."""
    with pytest.raises(PipelineError, match=GAVE_UP) as caught:
        sender_to(namesrv, retryTimeoutMs="300").send([rows(0, 1, topic)])
    assert f"namesrv={namesrv}: " in str(caught.value)
    return str(caught.value)


class TestSink:
    @pytest.mark.slow
    def test_a_write_waits_for_a_broker(self, process: BrokerProcess) -> None:
        with process.away(AWAY_S):
            sender_to(process.namesrv).send([rows(0, 10)])
        assert sorted(int(m.body) for m in received(process.namesrv, "T", 10)) == list(range(10))

    @pytest.mark.slow
    def test_killed_in_the_middle_of_a_write(
        self, process: BrokerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker is killed during a write; duplicates are recognized by their ids."""
        monkeypatch.setattr(sending, "CHUNK_BYTES", 4096)
        underway = threading.Event()

        def restart() -> None:
            underway.wait()
            process.kill()
            process.start()

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(0, 100)
            underway.set()
            for first in range(100, ROWS, 100):
                yield rows(first, first + 100)
            killer.join()
            yield rows(ROWS, ROWS + 100)

        killer = threading.Thread(target=restart)
        killer.start()
        sender_to(process.namesrv, RowIds("w", 0, 0)).send(batches())
        killer.join()
        found = received(process.namesrv, "T", ROWS + 100)
        by_id = {m.properties["SINK_ROW"]: int(m.body) for m in found}
        assert sorted(by_id.values()) == list(range(ROWS + 100)), "nothing lost, each once by id"

    @pytest.mark.slow
    def test_a_spark_write_waits_for_a_broker(
        self, spark: SparkSession, process: BrokerProcess
    ) -> None:
        frame = spark.range(0, 100, 1, 2).selectExpr("'T' as topic", "string(id) as body")
        writer = frame.write.format("rocketmq").option("namesrv", process.namesrv).mode("append")
        with process.away(AWAY_S), original_errors():
            writer.save()
        assert len(received(process.namesrv, "T", 100)) == 100
        process.kill()
        what = "the name server cannot be reached"
        with pytest.raises(PipelineError, match=what), original_errors():
            writer.option("retryTimeoutMs", "100").save()

    def test_a_broker_that_stays_away_is_an_error(self, tmp_path: Path) -> None:
        down = BrokerProcess(tmp_path).namesrv
        assert (
            f"namesrv={down}: connecting to the cluster failed: the name server cannot be reached"
            in refusal(down)
        )

    def test_a_query_says_what_it_waits_for_and_gives_up(
        self,
        spark: SparkSession,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(planning, "REACHED_MS", 1000)
        down = BrokerProcess(tmp_path).namesrv
        with pytest.raises(PipelineError) as caught:
            sql(spark, f"namesrv={down}", "select count(*) from messages")
        assert re.fullmatch(
            rf"namesrv={down}: asking the name server failed: the name server cannot be reached "
            r"\(.*\); check its address and that it is running; gave up after \d+ attempts in "
            r"\d+\.\d s \(limit of a query: 1 s\); last error: .*",
            str(caught.value),
        )
        assert f"namesrv={down}: asking the name server: " in caplog.text
        assert "retrying for up to 1 s" in caplog.text

    def test_the_port_of_another_program_is_not_retried(
        self, spark: SparkSession, caplog: pytest.LogCaptureFixture
    ) -> None:
        with another_program() as address:
            with pytest.raises(PipelineError) as caught:
                sql(spark, f"namesrv={address}", "select count(*) from messages")
            with pytest.raises(PipelineError, match=r"listing the topics failed: .* is not a"):
                plan_batch(parse_options({"namesrv": address}))
        assert re.fullmatch(
            rf"namesrv={address}: asking the name server failed: {address}: .* the answer is not a "
            r"RocketMQ command .*; check that the address is that of a name server or broker",
            str(caught.value),
        )
        assert "retrying" not in caplog.text

    def test_the_retry_timeout_must_be_a_number(self) -> None:
        with pytest.raises(ConfigError, match="must be a whole number of ms, at least 0"):
            parse_wire_options({"namesrv": "h:1", "retryTimeoutMs": "2m"})
        with pytest.raises(ConfigError, match="must be a whole number of ms, at least 0"):
            parse_options({"namesrv": "h:1", "retryTimeoutMs": "-1"})
        with pytest.raises(ConfigError, match="give only one of the two"):
            parse_options({"path": "data", "retryTimeoutMs": "1"})
        assert parse_wire_options({"namesrv": "h:1"}).retry_ms == 120_000


class TestCauses:
    """The causes that errors name if the name server is available."""

    @pytest.fixture
    def strict(self, tmp_path: Path) -> Iterator[str]:
        """The name server of a broker that does not create topics automatically."""
        config = BrokerConfig(auto_create_topics=False)
        with BackgroundBroker(tmp_path / "a", config, small_config()) as broker:
            yield broker.namesrv

    def test_a_topic_that_no_broker_creates(
        self, strict: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = "none of the registered brokers (broker-a) has the topic nix; create it"
        assert text in refusal(strict, "nix")
        monkeypatch.setattr(request_retry, "UNKNOWN_TOPIC_S", 0.1)
        with pytest.raises(PipelineError, match=re.escape(text)):
            sender_to(strict).send([rows(0, 1, "nix")])  # without waiting for two minutes

    def test_a_topic_that_is_not_writable(self, broker: BackgroundBroker) -> None:
        async def make() -> None:
            async with Admin(broker.namesrv) as admin:
                await admin.create_topic("R", 1, perm=Permission.READ)

        run(make)
        assert "no queue of the topic R may be written" in refusal(broker.namesrv, "R")

    def test_a_broker_that_cannot_be_reached(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker registers another address than the one that it listens on."""
        monkeypatch.setattr(sending, "Producer", partial(Producer, timeout_s=0.5))
        elsewhere = small_config().replace(store_host=parse_host("127.0.0.9:10911"))
        with BackgroundBroker(tmp_path, store=elsewhere) as broker:
            text = refusal(broker.namesrv.replace("127.0.0.9", "127.0.0.1"))
        assert "broker broker-a at 127.0.0.9:" in text
        assert "cannot be reached" in text

    @pytest.mark.slow
    def test_a_broker_that_the_name_server_has_forgotten(self, tmp_path: Path, strict: str) -> None:
        """The broker is killed but not its name server: writes wait for it, and errors name it."""
        (tmp_path / "b").mkdir()
        conf = "brokerName=broker-b\nbrokerClusterName=b\nautoCreateTopicEnable=false\n"
        with BrokerProcess(tmp_path / "b", strict, conf) as process:
            run(lambda: create_in_cluster_b(strict, "only-b"))

            def batches() -> Iterator[pa.RecordBatch]:
                yield rows(0, 10, "only-b")
                process.kill()
                yield rows(10, 20, "only-b")

            with pytest.raises(PipelineError, match=GAVE_UP) as caught:
                sender_to(strict, retryTimeoutMs="300").send(batches())
            assert "broker broker-b is not registered with the name server" in str(caught.value)
            with process.away(AWAY_S):
                sender_to(strict).send([rows(10, 20, "only-b")])
            assert len(received(strict, "only-b", 20)) == 20


async def create_in_cluster_b(namesrv: str, topic: str) -> None:
    async with Admin(namesrv) as admin:
        while "broker-b" not in await admin.masters():
            await asyncio.sleep(0.01)
        await admin.create_topic(topic, 1, cluster="b")


class TestSource:
    @pytest.mark.slow
    def test_a_batch_read_waits_for_a_broker(self, process: BrokerProcess) -> None:
        send(process.namesrv, [Message("T", b"%d" % n, queue_id=n % 2) for n in range(100)])
        options = parse_options({"namesrv": process.namesrv, "subscribe": "T"})
        with process.away(AWAY_S):
            splits = plan_batch(options).splits
        with process.away(AWAY_S):
            found = [row for split in splits for row in bodies(split)]
        assert sorted(found) == list(range(100))

    @pytest.mark.slow
    def test_a_stream_waits_for_a_broker(self, process: BrokerProcess) -> None:
        send(process.namesrv, [Message("T", b"%d" % n, queue_id=n % 2) for n in range(100)])
        given = {"namesrv": process.namesrv, "subscribe": "T", "startingOffsets": "earliest"}
        reader = WireStreamReader(parse_options(given, stream=True), ["body"])
        start = reader.initialOffset()
        with process.away(AWAY_S):
            end = reader.latestOffset(start, ReadAllAvailable())
        with process.away(AWAY_S):
            parts = reader.partitions(start, end)
        found = [row for part in parts for row in bodies(part.value)]
        assert sorted(found) == list(range(100))

    def test_a_broker_that_stays_away_is_an_error(self, tmp_path: Path) -> None:
        down = BrokerProcess(tmp_path).namesrv
        with pytest.raises(PipelineError, match=f"name server cannot be reached .*{GAVE_UP}"):
            plan_batch(parse_options({"namesrv": down, "retryTimeoutMs": "300"}))


def bodies(split: object) -> list[int]:
    assert isinstance(split, WireSplit)
    return [int(body.as_py()) for batch in read_wire(split) for body in batch.column("body")]
