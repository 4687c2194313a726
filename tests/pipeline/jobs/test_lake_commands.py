"""``firetrail pipeline archive``, ``restore`` and ``replay`` as commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.stores import records

from firetrail.cli.main import main

Put = Callable[..., None]


def test_archive_and_restore(
    spark: SparkSession, root: Path, tmp_path: Path, put: Put, capsys: pytest.CaptureFixture[str]
) -> None:
    put(30)
    lake, back = str(tmp_path / "lake"), tmp_path / "back"
    assert main(["pipeline", "archive", str(root), "--to", lake]) == 0
    out, error = capsys.readouterr()
    end = records(root)[-1].physical_offset + records(root)[-1].size
    assert out == (f"{lake}: 30 messages archived up to {end}; 30 messages in 1 file in total\n")
    assert error == ""
    put(1)
    assert main(["pipeline", "archive", str(root), "--to", lake, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["messages"], reported["total_messages"], reported["marked"]) == (1, 31, True)
    assert main(["pipeline", "restore", lake, "--into", str(back)]) == 0
    assert capsys.readouterr().out.startswith(f"{back}: 31 messages in 1 log file, from 0 to ")
    assert records(back) == records(root)
    assert main(["pipeline", "restore", lake, "--into", str(back)]) == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_replay_puts_selected_messages_into_another_store(
    spark: SparkSession, root: Path, tmp_path: Path, put: Put, capsys: pytest.CaptureFixture[str]
) -> None:
    put(30)
    target = tmp_path / "target"
    asked = ["pipeline", "replay", str(root), "--where", "topic = 'orders'"]
    assert main([*asked, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("10 messages (")
    assert main([*asked, "--to", str(target), "--topic", "T", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 10
    assert main([*asked, "--to", str(target), "--topic", "T"]) == 0
    assert capsys.readouterr().out == f"0 messages (0 B) copied to {target}\n"
    assert len(records(target)) == 10


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["archive", "nowhere", "--to", "lake"], "nowhere: no such folder"),
        (["restore", "nowhere", "--into", "back"], "nowhere: is not an archive"),
        (["replay", "nowhere", "--where", "true", "--to", "x"], "nowhere: no such folder"),
    ],
)
def test_errors_are_printed_and_exit_with_2(
    spark: SparkSession,
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", *arguments]) == 2
    assert (
        capsys.readouterr()
        .err.removeprefix("firetrail: error: ")
        .removeprefix(f"{tmp_path}/")
        .startswith(error)
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["replay", "x", "--where", "true"], "--to TARGET or --dry-run is required"),
        (["replay", "x", "--where", "true", "--to", "y", "--rate", "0"], "invalid rate value: '0'"),
        (["archive", "x"], "the following arguments are required: --to"),
        (["archive", "x", "--to", "y", "--format", "orc"], "invalid choice: 'orc'"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pipeline", *arguments])
    assert caught.value.code == 2
    assert error in capsys.readouterr().err
