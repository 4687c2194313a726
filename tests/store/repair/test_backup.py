"""Backups: of a store in use, of a closed one, and what is refused."""

import errno
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.helpers import FaultyFiles, crash_image, tree

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import NotAStoreError, StoreError
from firetrail.storage.copies import copy_file
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.repair.backup import back_up
from firetrail.system import Files, System

CONFIG = StoreConfig().for_files(
    commit_log_file_size=64 << 10, consume_queue_file_size=4000, index_slots=100, index_entries=400
)


def filled(root: Path, count: int = 300) -> None:
    with Store.open(root, CONFIG) as store:
        for number in range(count):
            store.put(Message("T", b"%06d" % number, keys=[f"k{number}"], queue_id=number % 3))
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{}")


def written(root: Path) -> set[bytes]:
    with Store.open(root) as store:
        return {message.body for queue in store.queues("T") for message in store.read("T", queue)}


def test_a_backup_while_a_writer_runs(tmp_path: Path) -> None:
    """Each of several backups is a good store with all messages acknowledged before it."""
    root = tmp_path / "store"
    acknowledged: list[bytes] = []
    over = threading.Event()

    def write(store: Store) -> None:
        number = 0
        while not over.is_set():
            body = b"%06d" % number
            store.put(Message("T", body * 20, keys=[f"k{number}"], queue_id=number % 3))
            acknowledged.append(body * 20)
            number += 1
            if number % 2000 == 0:
                store.delete_expired(forced=True)  # files go while they are copied

    with Store.open(root, CONFIG) as store:
        store.put(Message("T", b"first"))
        writer = threading.Thread(target=write, args=(store,))
        writer.start()
        try:
            for number in range(4):
                while len(acknowledged) < 1500 * number:
                    time.sleep(0.001)
                before = list(acknowledged)
                first = store.log_range[0]
                target = tmp_path / f"copy-{number}"
                copied = back_up(System(), root, target, CONFIG)
                assert copied.live and copied.files
                with StoreView.open(target) as view:
                    assert view.state is StoreState.CLOSED
                assert main(["fsck", str(target)]) == 0
                found = written(target)
                begin = store.log_range[0]
                lost = [body for body in before if body not in found]
                # Only messages that retention has deleted since are missing.
                assert not lost or begin > first
                assert set(before[-100:]) <= found
        finally:
            over.set()
            writer.join()


@pytest.mark.parametrize("folder", ["consumequeue/T/0", "commitlog"])
def test_files_that_retention_deletes_during_the_copy(folder: str, tmp_path: Path) -> None:
    """The first is copied, then both are deleted: a copy of the first alone would leave a gap."""
    root = tmp_path / "store"
    filled(root, 2000)
    first, second, *others = sorted((root / folder).iterdir())
    assert others
    files = FaultyFiles()

    def delete() -> None:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)

    files.on("open", delete, second.name)
    back_up(System(files), root, tmp_path / "copy", CONFIG)
    left = sorted(path.name for path in (tmp_path / "copy" / folder).iterdir())
    assert left == [path.name for path in others]


def test_a_closed_store_is_copied_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "store"
    filled(root)
    (root / "repair-20260101T000000000Z").mkdir()
    (root / "timerwheel").write_bytes(b"of Java")
    before = tree(root)
    copied = back_up(System(), root, tmp_path / "copy", CONFIG)
    assert not copied.live
    copy = tree(tmp_path / "copy")
    assert copy == {name: content for name, content in before.items() if name != "lock"}
    assert tree(root) == before
    assert len(written(tmp_path / "copy")) == 300


def test_a_crashed_store_stays_one(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", CONFIG) as store:
        store.put(Message("T", b"x"))
        image = crash_image(tmp_path / "store", tmp_path / "image")
    assert not back_up(System(), image, tmp_path / "copy", CONFIG).live
    with StoreView.open(tmp_path / "copy") as view:
        assert view.state is StoreState.CRASHED
    assert written(tmp_path / "copy") == {b"x"}


def test_holes_stay_holes(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", StoreConfig()) as store:  # files of 1 GiB
        store.put(Message("T", b"x"))
        back_up(System(), tmp_path / "store", tmp_path / "copy", StoreConfig())
    (log,) = (tmp_path / "copy" / "commitlog").iterdir()
    assert log.stat().st_size == 1 << 30
    assert log.stat().st_blocks * 512 < 64 << 20


def test_a_folder_that_the_store_creates_during_the_copy(tmp_path: Path) -> None:
    class Creating(Files):
        def open(self, path: Path, **options: bool) -> int:
            if path == tmp_path / "store" / "consumequeue":
                path.mkdir()
            return super().open(path, **options)

    Store.open(tmp_path / "store", CONFIG).close()
    shutil.rmtree(tmp_path / "store" / "consumequeue", ignore_errors=True)
    back_up(System(Creating()), tmp_path / "store", tmp_path / "copy", CONFIG)
    assert written(tmp_path / "copy") == set()


def test_targets_that_are_not_empty_or_outside_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    filled(root, 3)
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    with pytest.raises(StoreError, match="not an empty folder; choose a new or empty one"):
        back_up(System(), root, full, CONFIG)
    with pytest.raises(StoreError, match="inside the store"):
        back_up(System(), root, root / "copy", CONFIG)
    with pytest.raises(NotAStoreError):
        back_up(System(), tmp_path, tmp_path / "copy", CONFIG)


@pytest.mark.parametrize("operation", ["sync", "copy_range"])
def test_a_copy_that_fails_is_not_there(operation: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    filled(root, 3)
    files = FaultyFiles()
    files.fail(operation, errno.ENOSPC, skip=3)
    with pytest.raises(OSError):
        back_up(System(files), root, tmp_path / "copy", CONFIG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_files_are_copied_sparsely_without_help_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(40 << 20)
        file.seek(20 << 20)
        file.write(os.urandom(1 << 20))

    def refused(*range: object) -> int:
        raise OSError(errno.EXDEV, "across file systems")

    for number in range(2):
        target = tmp_path / f"target-{number}"
        assert copy_file(Files(), source, target) >= 1 << 20
        assert target.read_bytes() == source.read_bytes()
        assert target.stat().st_blocks <= source.stat().st_blocks + 64
        monkeypatch.setattr(os, "copy_file_range", refused)


def test_the_backup_command_copies_and_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "store")
    assert main(["backup", str(tmp_path / "store"), str(tmp_path / "copy")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'copy'}: ") and "the store was not in use" in first
    assert second.startswith(f"{tmp_path / 'copy'} (closed): ok: 300 messages")
    assert main(["backup", str(tmp_path / "store"), str(tmp_path / "copy")]) == 2
    assert "not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["tar", "cp", "rsync"])
def test_other_tools_copy_a_closed_store(tool: str, tmp_path: Path) -> None:
    """Check what the guide says about copies with other tools."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    root, copy = tmp_path / "store", tmp_path / "copy"
    with Store.open(root, StoreConfig()) as store:  # files of 1 GiB
        store.put(Message("T", b"x"))
    commands = {
        "tar": ["tar -cSf store.tar store", "mkdir copy", "tar -xSf store.tar -C copy --strip 1"],
        "cp": ["cp -a --sparse=always --reflink=auto store copy"],
        "rsync": ["rsync -aS store/ copy/"],
    }[tool]
    for command in commands:
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    used = sum(path.stat().st_blocks * 512 for path in copy.rglob("*"))
    assert used < 128 << 20
    assert written(copy) == {b"x"}
