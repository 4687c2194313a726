"""Credentials and TLS in Spark: no secret reaches options, plans, event logs or checkpoints."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.helpers import small_config
from tests.pipeline.streams import finish
from tests.tls.authority import Authority

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import ConfigError, OutageError, PipelineError
from firetrail.pipeline.sink.sink_columns import parse_wire_options
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.table_job import table
from firetrail.pipeline.tables.runs.verification import verify_table
from firetrail.pipeline.wire.broker_queues import Cluster

CANARY = "canary-secret"


@pytest.fixture(scope="module")
def tls_broker(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackgroundBroker]:
    """A broker that accepts only TLS."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = authority.issue()
    file = folder / "tls.properties"
    file.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={certificate}\ntls.server.keyPath={key}\n"
    )
    config = BrokerConfig(tls_config_file=str(file))
    with BackgroundBroker(folder / "store", config, small_config(log=1 << 16)) as broker:
        yield broker


@pytest.fixture
def options(tls_broker: BackgroundBroker, authority: Authority, tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "access"
    file.write_text(f"accessKey=alice\nsecretKey={CANARY}\ntlsCa={authority.trust}\n")
    file.chmod(0o600)
    return {"namesrv": tls_broker.namesrv, "credentialsFile": str(file)}


def test_a_certificate_that_is_not_trusted_is_not_retried(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRETRAIL_TLS", "on")
    with pytest.raises(PipelineError, match=r"connecting to the cluster failed: .*verify failed"):
        Cluster(parse_options({"namesrv": options["namesrv"]})).__enter__()


@pytest.mark.parametrize("parse", [parse_options, parse_wire_options])
def test_a_secret_is_not_an_option(parse: Any) -> None:
    with pytest.raises(ConfigError, match=r"secretKey = '\(hidden\)'.*credentialsFile") as caught:
        parse({"namesrv": "x:1", "secretKey": CANARY})
    assert CANARY not in str(caught.value)
    assert CANARY.encode() not in pickle.dumps(caught.value)


@contextmanager
def event_log(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Write Spark's log of all events inside the block to a folder.

    ``spark.eventLog.enabled`` counts only when an application starts, so this adds the listener
    that the setting would add. What precedes the block, such as the environment, is not in the log.
    """
    context, jvm = spark.sparkContext._jsc.sc(), spark._jvm
    assert jvm is not None
    conf = context.conf().clone().set("spark.eventLog.compress", "false")
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        context.applicationId(), jvm.scala.Option.empty(), jvm.java.net.URI(folder.as_uri()), conf
    )
    listener.start()
    context.addSparkListener(listener)
    try:
        yield
    finally:
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(listener)
        listener.stop()


def shown_by_web_interface(spark: SparkSession) -> list[str]:
    """Return what the pages "Environment" and "SQL" of Spark's web interface are made from."""
    java = spark.sparkContext._jsc.sc()
    environment = java.statusStore().environmentInfo()
    properties = [
        environment.sparkProperties(),
        environment.systemProperties(),
        environment.hadoopProperties(),
        environment.metricsProperties(),
        environment.classpathEntries(),
    ]
    executions = spark._jsparkSession.sharedState().statusStore().executionsList().takeRight(20)
    latest = [executions.apply(n) for n in range(executions.size())]
    plans = [f"{each.details()} {each.physicalPlanDescription()}" for each in latest]
    assert any("rocketmq" in plan for plan in plans)
    return [*(each.mkString("\n") for each in properties), *plans]


def stream_from_brokers(
    spark: SparkSession, options: dict[str, str], checkpoint: Path, out: Path
) -> None:
    """Write two messages to the brokers, and copy them from there to a folder."""
    rows = spark.createDataFrame([("T", "one"), ("T", "two")], "topic string, body string")
    rows.write.format("rocketmq").options(**options).mode("append").save()
    messages = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest")
    frame = messages.load().selectExpr("cast(body as string) as body")
    query = frame.writeStream.format("json").option("checkpointLocation", str(checkpoint))
    finish(lambda: query.trigger(availableNow=True).start(str(out)))
    assert sorted(row.body for row in spark.read.json(str(out)).collect()) == ["one", "two"]


def test_no_secret_is_shown_by_spark(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    """Neither plans, event log, web interface and settings show one, nor does a checkpoint."""
    checkpoint, events = tmp_path / "checkpoint", tmp_path / "events"
    events.mkdir()
    with event_log(spark, events):
        stream_from_brokers(spark, options, checkpoint, tmp_path / "out")
    plan = spark.read.format("rocketmq").options(**options).load()
    files = [
        path.read_text("latin-1")
        for folder in (checkpoint, events)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    assert any("SparkListenerSQLExecutionStart" in text for text in files), "events are logged"
    texts = [
        plan._jdf.queryExecution().toString(),
        str(spark.sparkContext.getConf().getAll()),
        *shown_by_web_interface(spark),
        *files,
    ]
    assert not [text for text in texts if CANARY in text]


def test_a_table_is_read_with_the_credentials_of_a_file(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver and the tasks read the file; neither the table nor Spark's log has the secret."""
    rows = spark.createDataFrame(
        [("bills", '{"id": 1}'), ("bills", '{"id": 2}')], "topic string, body string"
    )
    rows.write.format("rocketmq").options(**options).mode("append").save()
    source, lake, events = f"namesrv={options['namesrv']}", tmp_path / "lake", tmp_path / "events"
    events.mkdir()
    with pytest.raises(OutageError):
        table(spark, source, "bills", lake / "bills", source_options={"retryTimeoutMs": "0"})
    monkeypatch.setattr(table_job, "INLINE_BYTES", 0)
    given = {"credentialsFile": options["credentialsFile"]}
    with event_log(spark, events):
        done = table(spark, source, "bills", lake / "bills", source_options=given)
    assert done.rows == 2
    assert verify_table(source, lake / "bills", source_options=given).ok
    files = [path for folder in (lake, events) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
