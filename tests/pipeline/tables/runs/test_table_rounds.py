"""Rounds over the network: brokers that are restarted, name servers that are away, errors."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.clone import ROOT
from tests.helpers import PATIENCE_S
from tests.pipeline.tables.live import first_broker, recreate, second_broker, send
from tests.pipeline.tables.topics import ids, numbered, table
from tests.pipeline.wire.processes import BrokerProcess
from tests.pipeline.wire.talk import create

from firetrail.errors import LakeError, OutageError
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.tables.runs.table_result import TableResult
from firetrail.pipeline.tables.runs.table_rounds import follow_table
from firetrail.pipeline.tables.runs.verification import verify_table

AT_ONCE = {"retryTimeoutMs": "0"}
SOON_S = 0.01


class EnoughError(Exception):
    """Ends the rounds."""


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with its name server, in a process of its own."""
    with BrokerProcess(tmp_path) as started:
        create(started.namesrv, "orders", 2)
        yield started


def no_spark() -> SparkSession:
    raise AssertionError


class FirstWarning(logging.Handler):
    """Calls a function at the first warning with a text."""

    def __init__(self, text: str, then: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._text = text
        self._then: Callable[[], None] | None = then

    def emit(self, record: logging.LogRecord) -> None:
        if self._then is not None and self._text in record.getMessage():
            then, self._then = self._then, None
            then()


@pytest.fixture
def at_warning() -> Iterator[Callable[[str, Callable[[], None]], None]]:
    """Register a function to be called at the first warning with a text."""
    handlers = []

    def register(text: str, then: Callable[[], None]) -> None:
        handlers.append(FirstWarning(text, then))
        LOGGER.addHandler(handlers[-1])

    yield register
    for handler in handlers:
        LOGGER.removeHandler(handler)


@pytest.mark.slow
def test_rounds_wait_for_a_broker_and_its_name_server(
    process: BrokerProcess, to: Path, at_warning: Callable[[str, Callable[[], None]], None]
) -> None:
    source = f"namesrv={process.namesrv}"
    send(process.namesrv, *numbered(range(4)))
    totals: list[int] = []

    def on_round(done: TableResult) -> None:
        totals.append(done.total_rows)
        if done.total_rows == 4:
            process.kill()
        elif done.total_rows == 7:
            raise EnoughError

    def restart() -> None:
        process.start()
        send(process.namesrv, *numbered(range(4, 7)))

    at_warning("; trying again", restart)
    with pytest.raises(EnoughError):
        follow_table(
            no_spark,
            source,
            "orders",
            to,
            every_s=SOON_S,
            on_round=on_round,
            source_options=AT_ONCE,
        )
    assert totals[0] == 4
    assert sorted(ids(to)) == list(range(7))
    assert verify_table(source, to).ok


@pytest.mark.slow
def test_a_run_waits_for_a_broker(
    process: BrokerProcess, to: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(process.namesrv, *numbered(range(4)))
    with process.away(1.0):
        assert table(f"namesrv={process.namesrv}", to).rows == 4
    assert "retrying for up to 120 s" in caplog.text


def test_rounds_go_on_with_the_other_broker(tmp_path: Path, to: Path) -> None:
    with first_broker(tmp_path / "a") as broker:
        namesrv = broker.namesrv
        totals: list[int] = []

        def on_round(done: TableResult) -> None:
            totals.append(done.total_rows)

        def follow(rounds: int) -> None:
            follow_table(
                no_spark,
                f"namesrv={namesrv}",
                "orders",
                to,
                every_s=0,
                rounds=rounds,
                on_round=on_round,
            )

        with second_broker(tmp_path / "b", namesrv):
            create(namesrv, "orders", 2)
            send(namesrv, *numbered(range(2)), broker="broker-b")
            follow(2)
            send(namesrv, *numbered(range(2, 4)), broker="broker-b")
        send(namesrv, *numbered(range(4, 6)))
        follow(2)
        with second_broker(tmp_path / "b", namesrv):
            follow(2)
            assert verify_table(f"namesrv={namesrv}", to).ok
    assert totals == [2, 4, 6]


def test_what_cannot_heal_ends_the_rounds(tmp_path: Path, to: Path) -> None:
    with pytest.raises(OutageError, match="the name server cannot be reached"):
        follow_table(no_spark, "namesrv=127.0.0.1:1", "orders", to, source_options=AT_ONCE)
    with first_broker(tmp_path / "a") as broker:
        send(broker.namesrv, *numbered(range(4)))

        def on_round(_: TableResult) -> None:
            recreate(broker.namesrv)

        with pytest.raises(LakeError, match="its log or its topic was replaced"):
            follow_table(
                no_spark, f"namesrv={broker.namesrv}", "orders", to, every_s=0, on_round=on_round
            )


@pytest.mark.slow
def test_the_command_says_what_it_waits_for(process: BrokerProcess, to: Path) -> None:
    send(process.namesrv, *numbered(range(3)))
    source = f"namesrv={process.namesrv}"
    command = [sys.executable, "-m", "firetrail", "pipeline", "table", source, "orders"]
    running = subprocess.Popen(
        [*command, "--to", str(to), "--follow", "--json"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        assert running.stderr is not None
        assert json.loads(running.stdout.readline())["total_rows"] == 3
        process.kill()
        said = running.stderr.readline()
        assert said.startswith(f"firetrail: {source}: ")
        assert said.endswith("; retrying for up to 120 s\n")
        process.start()
        send(process.namesrv, *numbered(range(3, 5)))
        total = 3
        while total < 5:
            total = json.loads(running.stdout.readline())["total_rows"]
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 143
    assert sorted(ids(to)) == list(range(5))
