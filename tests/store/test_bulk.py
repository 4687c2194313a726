"""Bulk appends: all or nothing, wherever the process is killed, and no number twice."""

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.helpers import small_config
from tests.stores import records

from firetrail import Message, Store
from firetrail.errors import DiskFullError, IllegalMessageError, StoreError, StoreLockedError
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.bulk import BulkAppend, committed_numbers
from firetrail.store.bulk_journal import Ticket
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.view import StoreView
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import Files, System

DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def batch(*bodies: bytes) -> bytes:
    return encode_batch(BatchItem(0, body, b"KEYS\x01k\x02") for body in bodies)


def append(
    root: Path,
    bodies: Sequence[bytes],
    ticket: Ticket | None = None,
    system: System | None = None,
    config: StoreConfig | None = None,
) -> int:
    """Append some bodies to two queues; how many messages became visible."""
    with BulkAppend(root, config or small_config(), ticket, system) as bulk:
        if bulk.done:
            return 0
        for queue_id in (0, 1):
            for at in range(queue_id, len(bodies), 6):
                bulk.add("T", queue_id, batch(*bodies[at : at + 6 : 2]))
        return bulk.commit().messages


def bodies_in(root: Path) -> list[bytes]:
    """Return the content of the log up to its end, which files of a killed append may follow."""
    with StoreView.open(root) as view:
        return sorted(r.body for r in records(root) if r.physical_offset < view.end)


def check(root: Path) -> None:
    with StoreView.open(root) as view:
        report = check_store(view, DELAYS)
        assert report.ok, report.problems
    with Store.open(root, small_config(), system=QUICK) as store:
        queued = [
            message.body
            for topic in store.topics()
            for queue_id in store.queues(topic)
            for message in store.read(topic, queue_id)
        ]
        assert sorted(queued) == bodies_in(root)


MANY = [b"%03d" % number + b"." * 200 for number in range(60)]


def test_a_bulk_append_creates_a_store(root: Path) -> None:
    assert append(root, MANY) == 60
    assert bodies_in(root) == MANY
    check(root)
    with Store.open(root) as store:
        assert [m.queue_offset for m in store.read("T", 1)] == list(range(30))
        assert len(store.query("T", "k", max_count=64)) == 60


@pytest.mark.parametrize("before", range(0, 24, 3))
def test_a_bulk_append_continues_an_existing_log(root: Path, before: int) -> None:
    """The log may end anywhere in a file."""
    with Store.open(root, small_config()) as store:
        for number in range(before):
            store.put(Message("T", b"old %02d" % number + b"." * 100, queue_id=1))
        end = store.log_range[1]
    with BulkAppend(root, small_config()) as bulk:
        bulk.add("T", 1, batch(*MANY[:20]))
        bulk.add("U", 0, batch(b"u"))
        done = bulk.commit()
    assert (done.messages, done.start) == (21, end)
    assert len(bodies_in(root)) == before + 21
    check(root)
    with Store.open(root) as store:
        assert store.max_offset("T", 1) == before + 20


def test_bulk_records_have_property_checksums(root: Path) -> None:
    assert append(root, MANY, config=small_config(property_crc=True)) == 60
    assert all(b"__CRC32#" in record.raw_properties for record in records(root))
    check(root)


def test_a_store_that_another_takes_right_after_the_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows exist, so the commit succeeded; the process that opened the store derives them."""

    def taken(*args: object, **more: object) -> Store:
        raise StoreLockedError("process 1 has the store open")

    with BulkAppend(root, small_config()) as bulk:
        bulk.add("T", 0, batch(b"one"))
        monkeypatch.setattr("firetrail.store.bulk.Store.open", taken)
        assert bulk.commit().messages == 1
    monkeypatch.undo()
    with Store.open(root, small_config()) as store:
        assert [message.body for message in store.read("T")] == [b"one"]


@pytest.mark.parametrize("failing", ["conclude", "derive"])
def test_a_failure_after_the_commit_is_not_reported_as_a_failed_commit(
    failing: str, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller that is told of a failure writes the messages again."""

    def full(*_: object) -> None:
        raise DiskFullError("no space for a queue")

    if failing == "derive":
        append(root, [b"first"])  # else the store does not exist, and is created by an opening
        monkeypatch.setattr(BulkAppend, "_derive", full)
    else:
        monkeypatch.setattr("firetrail.store.bulk.Journal.conclude", full)
    assert append(root, [b"x", b"y"], Ticket("w", 7)) == 2
    assert "2 messages are stored" in caplog.text
    monkeypatch.undo()
    assert append(root, [b"x", b"y"], Ticket("w", 7)) == 0
    assert sorted(bodies_in(root))[-2:] == [b"x", b"y"]


def test_nothing_is_appended_without_a_commit(root: Path) -> None:
    append(root, MANY[:10])
    with BulkAppend(root, small_config()) as bulk:
        bulk.add("T", 0, batch(*MANY))
    assert bodies_in(root) == MANY[:10] == sorted(record.body for record in records(root))
    assert append(root, MANY[10:20]) == 10
    check(root)


class TestRefused:
    def test_a_store_in_use(self, root: Path) -> None:
        with Store.open(root, small_config()), pytest.raises(StoreLockedError):
            append(root, MANY)

    def test_messages_that_cannot_be_stored_are_refused(self, root: Path) -> None:
        with BulkAppend(root, small_config()) as bulk:
            with pytest.raises(IllegalMessageError, match="topic: 'a b' has a character"):
                bulk.add("a b", 0, batch(b"x"))
            with pytest.raises(IllegalMessageError, match=r"a record of \d+ bytes, at most"):
                bulk.add("T", 0, batch(b"x" * 5000))

    def test_a_full_disk_is_an_error_and_changes_nothing(self, root: Path) -> None:
        append(root, MANY[:5])

        class Full(Files):
            def allocate(self, descriptor: int, offset: int, length: int) -> None:
                raise OSError(errno.ENOSPC, "full")

        with pytest.raises(DiskFullError):
            append(root, MANY, system=System(Full()))
        assert len(bodies_in(root)) == 5
        check(root)

    def test_a_damaged_journal_is_refused(self, root: Path) -> None:
        append(root, MANY[:5])
        (root / "firetrail.sink").write_text("{")
        with pytest.raises(StoreError, match="it is unknown which batches were committed"):
            append(root, MANY)


class TestNumbers:
    def test_no_number_is_committed_twice(self, root: Path) -> None:
        for number in (0, 1, 1, 0, 2):
            append(root, MANY[number * 10 : number * 10 + 10], Ticket("q", number))
        assert bodies_in(root) == MANY[:30]
        assert committed_numbers(root, small_config())["q"] == 2
        assert append(root, MANY[30:40], Ticket("other", 0)) == 10
        assert append(root, [], Ticket("q", 3)) == 0
        assert committed_numbers(root, small_config())["q"] == 3

    def test_a_killed_commit_whose_records_are_deleted(self, root: Path) -> None:
        """Retention has deleted the records that would show whether the commit happened."""
        append(root, MANY[:20], Ticket("q", 0))
        journal = root / "firetrail.sink"
        pending = (
            '{"writers": {"q": 0}, "pending": {"writer": "q", "number": 1, "head_at": 0, '
            '"head": "00", "record_at": 0, "record_size": 10, "record_sha256": ""}}'
        )
        with Store.open(root, small_config(delete_batch_max=9)) as store:
            assert store.delete_expired(forced=True)
        journal.write_text(pending)
        with pytest.raises(StoreError, match="whether batch 1 of q was committed"):
            append(root, MANY, Ticket("q", 1))


class Killed(BaseException):
    """Raised in place of the end of the process."""


class DyingFiles(Files):
    """Ends the process at the n-th operation that changes anything, before or after it.

    Nothing that the dying code still wants to do happens.
    """

    def __init__(self, left: int, after: bool) -> None:
        self.left = left
        self.after = after

    def _die(self) -> bool:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            raise Killed
        return self.left == 0


def _dying(name: str) -> object:
    def operation(self: DyingFiles, *args: object, **more: object) -> object:
        last = self._die()
        result = getattr(Files, name)(self, *args, **more)
        if last:
            raise Killed
        return result

    return operation


for _name in ("sync", "sync_folder", "rename", "give_name", "allocate", "remove", "write"):
    setattr(DyingFiles, _name, _dying(_name))


class Unsynced(Files):
    """Files that skip real syncs, because no power cut is simulated here."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


QUICK = System(Unsynced())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("before", [0, 7])
def test_a_bulk_append_that_is_killed_anywhere(
    root: Path, tmp_path: Path, before: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each, the store has all or nothing; with the same number again, all of it once."""
    append(root, [b"old %d" % number for number in range(before)], Ticket("q", 0), QUICK)
    start = tmp_path / "start"
    os.rename(root, start)
    outcomes: list[int] = []
    for left in range(1, 1000):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(start, root)
        files = DyingFiles(left, after)
        with suppress(Killed), monkeypatch.context() as patch:
            patch.setattr(BulkAppend, "_derive", die)  # which is an opening like any other
            append(root, MANY[:20], Ticket("q", 1), System(files))
        image = tmp_path / f"image{left}"
        shutil.copytree(root, image)  # as the killed process leaves it: its locks are gone
        outcomes.append(outcome(image, before))
        if files.left > 0:
            break
    assert len(outcomes) > 15
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {before, before + 20}


def die(bulk: BulkAppend) -> None:
    raise Killed


def outcome(image: Path, before: int) -> int:
    """Return how many messages the store has; after the same number again it has all."""
    again = image.with_name(f"{image.name}again")
    shutil.copytree(image, again)
    Store.open(image, small_config(), system=QUICK).close()
    found = len(bodies_in(image))
    for path in (image, again):  # whether the store was opened in between or not
        append(path, MANY[:20], Ticket("q", 1), QUICK)
        assert len(bodies_in(path)) == before + 20
        check(path)
    return found
