"""No command takes a log that lost files for a short one: repairs refuse, and copies report it."""

from pathlib import Path

import pytest
from tests.helpers import crash_image, put_all, small_config, tree
from tests.stores import copy_of

from firetrail import Store
from firetrail.cli.main import main

COMMANDS = {
    "rebuild-derived": ["fsck", "{store}", "--repair", "rebuild-derived"],
    "rebuild-derived, dry": ["fsck", "{store}", "--repair", "rebuild-derived", "--dry-run"],
    "truncate-log": ["fsck", "{store}", "--repair", "truncate-log", "--yes"],
    "truncate-log, dry": ["fsck", "{store}", "--repair", "truncate-log", "--dry-run"],
    "salvage": ["salvage", "{store}", "--into", "{other}"],
    "rebuild": ["rebuild", "{store}", "--into", "{other}"],
}


def run(command: str, store: Path) -> int:
    other = store.with_name("other")
    return main([word.format(store=store, other=other) for word in COMMANDS[command]])


@pytest.fixture(params=["closed", "crashed", "java"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "java":
        return copy_of("v4-rolled", tmp_path)
    root = tmp_path / "store"
    with Store.open(root, small_config()) as store:
        put_all(store, [b"%d" % number for number in range(60)])
    if request.param == "closed":
        return root
    with Store.open(root, small_config()):
        return crash_image(root, tmp_path / "crashed")


@pytest.mark.parametrize("command", COMMANDS)
def test_without_any_log_file_nothing_is_changed(
    command: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()
    before = tree(root)
    assert run(command, root) != 0
    reported = capsys.readouterr().err
    assert "the log has no file, although it had messages up to" in reported
    assert "put the files of the log back" in reported
    assert tree(root) == before
    assert not root.with_name("other").exists()


@pytest.mark.parametrize("command", ["rebuild-derived", "rebuild-derived, dry", "rebuild"])
def test_without_the_last_log_files_nothing_is_rebuilt(
    command: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((root / "commitlog").iterdir())
    for path in files[len(files) // 2 :]:
        path.unlink()
    before = tree(root)
    assert run(command, root) != 0
    assert "the log ends here, although it had messages up to" in capsys.readouterr().err
    assert tree(root) == before


def test_a_backup_without_the_log_is_reported(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()
    assert main(["backup", str(root), str(tmp_path / "copy")]) == 1
    assert "log-end" in capsys.readouterr().out
