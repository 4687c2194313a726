"""Log files that another program removed are noticed; those that retention removed are not."""

import json
import logging
from pathlib import Path

import pytest
from tests.helpers import crash_image, put_all, small_config
from tests.store.checks import checked

from firetrail import Store
from firetrail.store.evidence.inventory import NOTE_INTERVAL_S
from firetrail.store.problems import ProblemKind

MESSAGES = 24


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with eight log files, and two groups."""
    root = tmp_path / "store"
    with Store.open(root, small_config(units=5)) as store:
        put_all(store, [b"%d" % n + b"." * 1000 for n in range(MESSAGES)])
    offsets = {"T@behind": {"0": 2}, "T@done": {"0": MESSAGES}}
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    return root


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def remove_first(root: Path, count: int) -> None:
    for path in log_files(root)[:count]:
        path.unlink()


def started(root: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of a start that are about the beginning of the log."""
    caplog.clear()
    with caplog.at_level(logging.WARNING), Store.open(root, small_config(units=5)):
        return [message for message in caplog.messages if "the log began" in message]


def noticed(root: Path) -> list[str]:
    report = checked(root)
    assert report.ok, report.problems
    return [found.detail for found in report.warnings if found.kind is ProblemKind.LOG_BEGIN]


def test_files_removed_from_a_closed_store(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not noticed(root)
    remove_first(root, 2)
    told = (
        "the log began at 0 when the store was last closed, but now begins at 8192: another "
        "program removed its first files; consumer groups skip messages: behind skips 4 messages; "
        "stop the broker and put the files back if they still exist"
    )
    assert noticed(root) == [told]
    assert started(root, caplog) == [f"{root}: {told}"]
    assert not noticed(root)  # the store was closed with what it has
    assert not started(root, caplog)


def test_files_removed_that_every_group_has_read(root: Path) -> None:
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable": {}}')
    remove_first(root, 1)
    (detail,) = noticed(root)
    assert "no consumer group had messages left in them" in detail


def test_files_removed_from_a_killed_store(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store.open(root, small_config(units=5)):
        killed = crash_image(root, root.parent / "killed")
    assert not noticed(killed)
    remove_first(killed, 3)
    (detail,) = noticed(killed)
    assert "the log began at 0 before the store was stopped, but now begins at 12288" in detail
    assert len(started(killed, caplog)) == 1


def test_retention_of_a_killed_store_is_not_foreign(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(root, small_config(units=5, delete_interval_ms=0, delete_batch_max=3)) as store:
        assert store.delete_expired(forced=True) > 2
        killed = crash_image(root, root.parent / "killed")
    assert int(log_files(killed)[0].name) > 0
    assert not noticed(killed)
    more = crash_image(killed, root.parent / "more")
    assert not started(killed, caplog)
    remove_first(more, 1)
    assert len(noticed(more)) == 1
    assert not noticed(root)  # closed after the deletion


def test_a_deletion_is_noted_before_the_file_is_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(root, small_config(units=5, delete_interval_ms=0, delete_batch_max=3)) as store:
        queue = store._engine.log.queue
        images: list[Path] = []
        retire = queue.retire_first

        def killed_before(grace_ms: int) -> object:
            images.append(crash_image(root, root.parent / f"killed{len(images)}"))
            return retire(grace_ms)

        monkeypatch.setattr(queue, "retire_first", killed_before)
        store.delete_expired(forced=True)
    for image in images:
        assert not noticed(image)
        remove_first(image, 1)
        assert not noticed(image)  # as if the store was killed right after the removal


def test_a_pending_list_knows_of_a_deletion_in_between(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list is made before retention deletes, and written afterwards."""
    with Store.open(root, small_config(units=5, delete_interval_ms=0, delete_batch_max=3)) as store:
        engine = store._engine
        inventory, log = engine.inventory, engine.log.queue
        monkeypatch.setattr(inventory, "_last_s", -NOTE_INTERVAL_S)
        inventory.note_new(engine.queues, engine.index, log, settled=0)
        store.delete_expired(forced=True)
        inventory.note_new(engine.queues, engine.index, log, settled=log.wrote_offset)
        killed = crash_image(root, root.parent / "killed")
    assert not noticed(killed)


def test_a_list_of_an_earlier_release_says_nothing_about_retention(root: Path) -> None:
    with Store.open(root, small_config(units=5)):
        killed = crash_image(root, root.parent / "killed")
    listed = json.loads((killed / "firetrail.inventory").read_text())
    del listed["retained_from"]
    (killed / "firetrail.inventory").write_text(json.dumps(listed))
    remove_first(killed, 1)
    assert not noticed(killed)
