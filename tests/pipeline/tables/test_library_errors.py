"""Errors of the libraries: every function raises LakeError, and every command says one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tables.topics import put, table

from firetrail import Message, Store
from firetrail.cli.main import main
from firetrail.errors import FiretrailError, LakeError
from firetrail.pipeline.tables.messages.open_sources import OpenSources
from firetrail.pipeline.tables.runs import table_job
from firetrail.pipeline.tables.runs.explanation import explain_table
from firetrail.pipeline.tables.runs.retry_job import retry_table
from firetrail.pipeline.tables.runs.table_status import table_status
from firetrail.pipeline.tables.runs.verification import verify_table


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: list[Callable[[Path], object]] = [half, lambda path: path.write_bytes(b"x"), Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("upsert", [None, "id"])
@pytest.mark.parametrize(
    ("suffix", "pattern"),
    [
        ("", "_delta_log/*.json"),
        ("", "data/*.parquet"),
        ("", "_firetrail/deletes/*.parquet"),
        ("__rejected", "_delta_log/*.json"),
        ("__rejected", "data/*.parquet"),
    ],
)
def test_functions_on_damaged_tables(
    tmp_path: Path, damage: Callable[[Path], Any], upsert: str | None, suffix: str, pattern: str
) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    put(root, {"id": 1}, b"{", {"id": 2})
    with Store.open(root) as store:
        store.put(Message("orders", b"", keys=["1"]))
    table(root, to, upsert=upsert)
    files = sorted((tmp_path / f"orders{suffix}").glob(pattern))
    if upsert is None and "deletes" in pattern:
        assert not files
        return
    damage(files[-1])
    put(root, {"id": 1, "v": 3}, {"id": 9})
    functions: list[Callable[[], object]] = [
        lambda: table_status(to),
        lambda: verify_table(root, to),
        lambda: explain_table(_no_spark, root, "orders", to),
        lambda: retry_table(_no_spark, to),
        lambda: table_job.table(_no_spark, root, "orders", to),
    ]
    failed = 0
    for function in functions:
        try:
            function()
        except (FiretrailError, OSError) as error:  # the errors that commands report
            failed += 1
            assert "\n" not in str(error)
            assert str(tmp_path / "orders") in str(error)
    if suffix == "" and damage is not Path.unlink:
        assert failed


def _no_spark() -> Any:
    raise AssertionError


def test_commands_on_a_table_with_a_damaged_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, to = tmp_path / "data", tmp_path / "orders"
    put(root, {"id": 1}, b"{")
    table(root, to)
    half(max((to / "_delta_log").glob("*.json")))
    for command in (
        ["table-status", str(to)],
        ["table-verify", str(root), "--to", str(to)],
        ["table-retry", str(to)],
        ["table", str(root), "orders", "--to", str(to)],
        ["table", str(root), "orders", "--to", str(to), "--explain"],
    ):
        assert main(["pipeline", *command]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"table {to}: ended with an error of a library (DeltaError: " in error
        assert error.endswith("; run it again, and report this if it ends so again\n")


def test_errors_of_the_program_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "data", {"id": 1})
    monkeypatch.setattr(OpenSources, "plan", lambda *args, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        table(tmp_path / "data", tmp_path / "orders")
    with pytest.raises(LakeError, match="has no table"):
        table_status(tmp_path / "other")
