"""``fsck`` finds files of the broker that a start could not decode."""

import json
from pathlib import Path

import pytest
from tests.helpers import small_config

from firetrail import Store
from firetrail.broker.state.config_check import TABLES, unreadable_files
from firetrail.cli.main import main
from firetrail.errors import StoreError
from firetrail.settings.config_file import ConfigFile
from firetrail.system import System

OFFSETS = "consumerOffset.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with every file of the broker, each with its backup."""
    root = tmp_path / "store"
    with Store.open(root, small_config()):
        for name, kind in TABLES.items():
            file = ConfigFile(System(), root, name)
            file.save(kind().to_json())
            file.save(kind().to_json())
    assert main(["fsck", str(root)]) == 0
    return root


def found(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The files that fsck reports, and what it says about them."""
    capsys.readouterr()
    assert main(["fsck", str(root), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert {problem["kind"] for problem in reported["problems"]} == {"config-unreadable"}
    assert reported["advice"] == "restore the files of the broker from a copy"
    return {problem["file"]: problem["detail"] for problem in reported["problems"]}


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    changed = {
        "empty": b"",
        "garbage": b"\x00\xff{",
        "checksum": content.replace(b"{", b'{"a":1,', 1),
    }
    path.write_bytes(changed[how])


@pytest.mark.parametrize("how", ["empty", "garbage", "checksum"])
@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_file_with_a_good_backup_is_reported(
    name: str, how: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(root / "config" / name, how)
    (detail,) = found(root, capsys).values()
    assert f"a broker uses {name}.bak instead, which may lack the last change" in detail
    ConfigFile(System(), root, name).load(TABLES[name])  # as it says


def test_a_damaged_file_with_a_damaged_backup_prevents_a_start(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (OFFSETS, f"{OFFSETS}.bak"):
        damage(root / "config" / name, "empty")
    reported = found(root, capsys)
    assert list(reported) == [f"config/{OFFSETS}"]
    assert (
        "a broker refuses to start; restore a good copy, or remove both"
        in reported[f"config/{OFFSETS}"]
    )
    with pytest.raises(StoreError):
        ConfigFile(System(), root, OFFSETS).load(TABLES[OFFSETS])


def test_a_damaged_file_without_a_backup_prevents_a_start(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "config" / "topics.json.bak").unlink()
    damage(root / "config" / "topics.json", "garbage")
    assert "a broker refuses to start" in found(root, capsys)["config/topics.json"]


def test_a_file_that_cannot_be_read_is_reported(root: Path) -> None:
    path = root / "config" / OFFSETS
    path.unlink()
    path.mkdir()
    (problem,) = unreadable_files(System(), root)
    assert problem.detail == "cannot be read: Is a directory"


def test_a_missing_file_is_reported_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "config" / OFFSETS).unlink()
    capsys.readouterr()
    assert main(["fsck", str(root), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert [problem["kind"] for problem in reported["problems"]] == ["file-missing"]


def test_a_store_without_a_broker(tmp_path: Path) -> None:
    with Store.open(tmp_path, small_config()):
        pass
    assert unreadable_files(System(), tmp_path) == []
