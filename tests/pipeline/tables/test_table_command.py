"""``firetrail pipeline table``: its output, its exit codes, and rounds without end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.clone import ROOT
from tests.helpers import PATIENCE_S
from tests.pipeline.tables.topics import files_of, ids, numbered, put, table

from firetrail.cli.main import main
from firetrail.cli.spark_jobs import spark_options
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.tables.runs import publication
from firetrail.pipeline.tables.runs.table_result import TableResult
from firetrail.pipeline.tables.runs.table_rounds import follow_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


def run(root: Path, to: Path, *options: str) -> int:
    return main(["pipeline", "table", str(root), "orders", "--to", str(to), *options])


def test_output_and_exit_codes(root: Path, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, {"id": 1}, {"id": 2})
    assert run(root, to, "--upsert", "id") == 0
    assert capsys.readouterr().out == (
        f"new column id bigint\n{to}: 2 rows of 2 messages added; 2 rows in total\n"
    )
    put(root, {"id": 1, "new": "x"}, b"{broken")
    assert run(root, to) == 1
    out, error = capsys.readouterr()
    assert out == (
        f"new column new string\n{to}: 0 rows of 2 messages added, 1 replaced, 0 deleted; "
        "2 rows in total\n"
    )
    assert error.startswith(
        f"firetrail: 1 message rejected, see {to}__rejected; the first: queue 1"
    )
    assert run(root, to, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["messages"], found["total_rows"], found["key"]) == (0, 2, ["id"])
    assert run(root, to, "--decoder", "nonsense") == 2
    assert "which cannot be changed" in capsys.readouterr().err


def test_warnings_that_last_are_shown_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with spark_options.warnings_shown():
        for broker in ("broker-1", "broker-2", "broker-1"):
            LOGGER.warning("%s: not registered", broker)
        LOGGER.info("not for users")
        monkeypatch.setattr(spark_options, "QUIET_S", 0.0)
        LOGGER.warning("broker-1: not registered")
    LOGGER.warning("later")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("firetrail: ")]
    assert said == [f"firetrail: broker-{number}: not registered" for number in (1, 2, 1)]


def test_rounds_add_what_is_new(root: Path, to: Path) -> None:
    put(root, {"id": 0})
    seen: list[int] = []

    def on_round(done: TableResult) -> None:
        seen.append(done.total_rows)
        if done.total_rows < 4:
            put(root, {"id": done.total_rows})

    follow_table(_no_spark, root, "orders", to, every_s=0, rounds=6, on_round=on_round)
    assert seen == [1, 2, 3, 4]
    assert ids(to) == [0, 1, 2, 3]


def _no_spark() -> SparkSession:
    raise AssertionError


def test_small_files_are_merged_and_replaced_ones_removed(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "MAINTAINED_EVERY", 4)
    for number in range(9):
        put(root, {"id": number}, b"{broken")
        table(root, to, keep_hours=0)
    assert ids(to) == list(range(9))
    for place in (to, to.with_name("orders__rejected")):
        assert len(DeltaTable(str(place)).file_uris()) == 2
        assert len(files_of(place / "data")) == 1
    assert table(root, to).messages == 0


def test_replaced_buckets_are_removed(
    root: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "KEYED_MAINTAINED_EVERY", 3)
    for number in range(6):
        put(root, *({"id": key, "v": number} for key in range(4)))
        table(root, to, upsert="id", buckets=1, keep_hours=0)
    assert len(files_of(to / "data")) == 1
    assert len(ids(to)) == 4


@pytest.mark.slow
def test_a_followed_topic_until_sigterm(root: Path, to: Path) -> None:
    put(root, *numbered(range(3)))
    command = [sys.executable, "-m", "firetrail", "pipeline", "table", str(root), "orders"]
    process = subprocess.Popen(
        [*command, "--to", str(to), "--follow", "--json"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["total_rows"] == 3
        put(root, *numbered(range(3, 5)))
        assert json.loads(process.stdout.readline())["total_rows"] == 5
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 143
    assert ids(to) == list(range(5))


def test_status_and_verification(root: Path, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, {"id": 1}, {"id": 2}, b"{broken")
    table(root, to, upsert="id")
    assert main(["pipeline", "table-status", str(to)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"{to}: topic orders, json, key id"
    assert shown[1].startswith("2 rows of 3 messages, 1 rejected, 0 skipped; 2 files of ")
    assert shown[3].split()[:3] == ["data", "3", "0"]
    assert shown[3].endswith("0:2 1:1")
    assert main(["pipeline", "table-status", str(to), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["brokers"][0]["offsets"] == {"0": 2, "1": 1}
    verify = ["pipeline", "table-verify", str(root), "--to", str(to)]
    assert main(verify) == 0
    assert "ok: 3 messages, 2 rows, 1 rejected; 0 missing" in capsys.readouterr().out
    DeltaTable(str(to)).delete("id = 1")
    assert main([*verify, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["missing"] == 1
    assert main(verify) == 1
    assert capsys.readouterr().out.startswith("missing: queue 0 of data, offset 0\n")
    assert main(["pipeline", "table-status", str(root)]) == 2
