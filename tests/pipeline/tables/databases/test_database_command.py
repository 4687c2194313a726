"""The commands of tables for databases: their output and exit codes."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.pipeline.tables.databases.topics_of_tables import (
    canal,
    database,
    ids,
    no_spark,
    order,
    send,
    tagged,
)

from firetrail.cli.main import main
from firetrail.pipeline.tables.databases import database_job
from firetrail.pipeline.tables.databases.database_result import DatabaseResult
from firetrail.pipeline.tables.runs.table_rounds import follow_table


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def run(root: Path, to: Path, *options: str) -> int:
    return main(["pipeline", "table", str(root), "cdc", "--to", str(to), *options])


CANAL = ("--database", "envelope", "--decoder", "canal", "--upsert", "pk")


def test_output_and_exit_codes(root: Path, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    send(root, canal("shop.a", order(1)), canal("shop.b", order(2)), queues=1)
    assert run(root, to, *CANAL, "--explain") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{to}: a new database, key pk\n")
    assert out.endswith(
        "2 rows to add to 2 tables, 0 to reject, 0 to skip; 0 files of 0 B to write again\n"
    )
    assert run(root, to, *CANAL) == 0
    assert capsys.readouterr().out.splitlines() == [
        "shop/a: new column id bigint",
        "shop/a: new column total decimal(12,2)",
        "shop/b: new column id bigint",
        "shop/b: new column total decimal(12,2)",
        "table   messages  added  replaced  deleted  rejected  rows",
        "shop/a         1      1         0        0         0     1",
        "shop/b         1      1         0        0         0     1",
        f"{to}: 2 rows of 2 messages added; 2 rows in 2 tables",
    ]
    send(root, b"{", canal("shop.a", order(1, "x")), queues=1)
    assert run(root, to, "--database", "envelope") == 1
    out, error = capsys.readouterr()
    assert out.splitlines()[1] == "shop/a         1      0         0        0         1     1"
    assert f"2 messages rejected, 1 of no table ({to}__rejected); the first: queue 0" in error
    assert run(root, to, "--database", "envelope", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["messages"], found["total_rows"], found["tables"]) == (0, 2, [])
    assert run(root, to, "--database", "envelope", "--explain", "--json") == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 0


def test_status_verification_and_retry(
    root: Path, to: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(root, *tagged("a", {"id": 1}), *tagged("b", {"id": 2}), b"{}", queues=1)
    database(root, to, by="tag")
    assert main(["pipeline", "table-status", str(to)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{to}: topic cdc, json, by tag"
    assert lines[2].split()[:4] == ["a", "1", "1", "0"]
    assert lines[4].startswith("2 tables: 2 rows of 3 messages, 1 rejected (1 of no table), 0 sk")
    assert main(["pipeline", "table-status", str(to), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tables"]) == 2
    verify = ["pipeline", "table-verify", str(root), "--to", str(to)]
    assert main(verify) == 0
    assert capsys.readouterr().out.endswith(
        "ok: 3 messages, 2 rows in 2 tables, 1 rejected; 0 missing, 0 repeated, 0 unexpected\n"
    )
    send(root, *tagged("a", {"id": 1.5}), queues=1)
    database(root, to)
    assert main(["pipeline", "table-retry", str(to / "a"), "--schema", "id decimal(20,1)"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a: column id is bigint, becomes decimal(20,1)",
        "table  retried  added  replaced  deleted  rejected",
        "a            1      1         0        0         0",
        f"{to}: 1 rejected message, 1 row added, 0 replaced, 0 deleted; 0 messages still "
        "rejected, 0 of no table",
    ]
    assert main(["pipeline", "table-retry", str(to), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["unassigned"] == 1
    DeltaTable(str(to / "b")).delete()
    assert main([*verify, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["missing"] == 1
    assert main(verify) == 1
    assert capsys.readouterr().out.startswith("b: missing: queue 0 of data, offset 1\n")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--include", "a"), "include = 'a': needs --database"),
        (("--database", "tag", "--schema", "id int"), "is for a table alone"),
        (("--database", "tags"), "must be envelope (of CDC events), tag, or column:NAME"),
    ],
)
def test_options_that_are_wrong(
    root: Path, to: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], reason: str
) -> None:
    send(root, *tagged("a", {"id": 1}))
    assert run(root, to, *options) == 2
    assert reason in capsys.readouterr().err


def test_rounds_add_what_is_new(root: Path, to: Path) -> None:
    send(root, *tagged("t0", {"id": 0}))
    seen: list[int] = []

    def on_round(done: DatabaseResult) -> None:
        seen.append(done.total_rows)
        if done.total_rows < 3:
            send(root, *tagged(f"t{done.total_rows}", {"id": done.total_rows}))

    follow_table(
        no_spark,
        root,
        "cdc",
        to,
        every_s=0,
        rounds=5,
        on_round=on_round,
        run=database_job.database,
        by="tag",
    )
    assert seen == [1, 2, 3]
    assert ids(to / "t2") == [2]
