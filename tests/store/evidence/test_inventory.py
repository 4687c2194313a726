"""Missing queue and index files are noticed when a store is opened, and derived again."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers import crash_image, small_config
from tests.store.checks import checked
from tests.stores import copy_of, derived, flip, list_topics, overwrite, records, truncate

from firetrail import Message, Store
from firetrail.errors import IllegalMessageError, StoreDamagedError
from firetrail.format.names import INVENTORY, LOCK_CONTENT, TRACE_TOPIC
from firetrail.store.broker_store import BrokerStore
from firetrail.store.evidence import evidence, inventory
from firetrail.store.problems import ProblemKind

pytestmark = pytest.mark.stepped_threads

FIRST = f"{0:020d}"
MESSAGES = 45


def put_some(store: Store, count: int = MESSAGES) -> None:
    for number in range(count):
        store.put(
            Message(f"t{number % 3}", b"%d" % number, queue_id=number % 2, keys=[f"k{number}"])
        )


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A store that Firetrail has closed, with several files of each kind."""
    with Store.open(tmp_path / "store", small_config(units=5, entries=20)) as store:
        put_some(store)
    return tmp_path / "store"


def reopened(root: Path) -> None:
    with Store.open(root) as store:
        assert store.recovery.clean


Loss = Callable[[Path], None]


def lose(name: str) -> Loss:
    return lambda root: shutil.rmtree(root / name)


def lose_file(name: str) -> Loss:
    return lambda root: (root / name).unlink()


def zero(name: str, at: int) -> Loss:
    return lambda root: overwrite(root / name, at, bytes(20))


def flipped_magic(log: Path) -> None:
    flip(log, 4)


def zeroed_page(log: Path) -> None:
    """Overwrite bytes so that they look like the end of the log."""
    second = int.from_bytes(log.read_bytes()[:4], "big")
    overwrite(log, second, bytes(500))


LOSSES = {
    "topic": lose("consumequeue/t1"),
    "queue": lose("consumequeue/t1/0"),
    "first file": lose_file(f"consumequeue/t1/0/{FIRST}"),
    "last file": lose_file(f"consumequeue/t1/0/{100:020d}"),
    "last unit": zero(f"consumequeue/t1/0/{100:020d}", 20),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_queues_are_derived_again(
    closed: Path, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = derived(closed)
    LOSSES[loss](closed)
    assert derived(closed) != before
    reopened(closed)
    assert derived(closed) == before
    count = "2 queues are" if loss == "topic" else "1 queue is"
    assert f"{count} missing files or units and will be rebuilt from the log: t1/0" in caplog.text
    report = checked(closed)
    assert report.ok and not report.warnings
    with Store.open(closed) as store:
        assert store.put(Message("t1", b"next")).queue_offset == 7


def test_a_complete_store_logs_nothing(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = derived(closed)
    for _ in range(2):
        reopened(closed)
    assert derived(closed) == before
    assert not caplog.records


def test_the_index_is_derived_again(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = derived(closed)
    sorted((closed / "index").iterdir())[0].unlink()
    reopened(closed)
    assert derived(closed) == before
    assert "rebuilding the index from the log" in caplog.text
    assert checked(closed).ok


def test_a_topic_that_was_removed_is_not_missed(closed: Path) -> None:
    with Store.open(closed) as opened:
        broker_store = BrokerStore(opened._engine)
        assert broker_store.embedded.wait_dispatched()
        assert broker_store.removal.remove("t1", broker_store.removal.settle())
    with Store.open(closed) as store:
        assert store.topics() == ["t0", "t2"]
        store.put(Message("t1", b"anew"))
        assert [message.body for message in store.read("t1")] == [b"anew"]
    shutil.rmtree(closed / "consumequeue" / "t1")
    with Store.open(closed) as store:
        assert [message.body for message in store.read("t1")] == [b"anew"]


def test_queues_that_are_not_used_are_remembered(closed: Path) -> None:
    before = derived(closed)
    reopened(closed)
    with Store.open(closed) as store:
        store.put(Message("other", b"x"))
    shutil.rmtree(closed / "consumequeue" / "t1")
    reopened(closed)
    assert {name: derived(closed)[0][name] for name in before[0]} == before[0]


def test_a_rebuild_that_was_interrupted_begins_again(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = derived(closed)
    shutil.rmtree(closed / "consumequeue" / "t1")
    sorted((closed / "index").iterdir())[0].unlink()

    def fail(self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("firetrail.store.queues.queue_table.QueueTable.flush", fail)
        with pytest.raises(KeyboardInterrupt):
            Store.open(closed)
    noted = json.loads((closed / "firetrail.inventory").read_bytes())
    assert sorted(noted["rebuilding"]) == [["t1", 0], ["t1", 1]] and noted["rebuilding_index"]
    overwrite(closed / f"consumequeue/t1/0/{FIRST}", 20, bytes(20))  # as a power cut leaves it
    reopened(closed)
    assert derived(closed) == before


@pytest.mark.parametrize("spoil", [flipped_magic, zeroed_page])
def test_a_log_that_cannot_be_followed(closed: Path, spoil: Loss) -> None:
    """Then nothing is changed: the remaining queue files point to messages after the damage."""
    (closed / "consumequeue" / "t1" / "0" / FIRST).unlink()
    spoil(closed / "commitlog" / FIRST)
    before, noted = derived(closed), (closed / "firetrail.inventory").read_bytes()
    with pytest.raises(StoreDamagedError, match="are missing and cannot be rebuilt"):
        Store.open(closed)
    assert derived(closed) == before
    assert (closed / "firetrail.inventory").read_bytes() == noted


@pytest.mark.parametrize("spoil", [lambda path: truncate(path, 30), lambda path: path.unlink()])
def test_without_a_readable_list(closed: Path, spoil: Callable[[Path], None]) -> None:
    spoil(closed / "firetrail.inventory")
    before = derived(closed)
    shutil.rmtree(closed / "consumequeue" / "t1")  # its records are among the newest
    reopened(closed)
    assert derived(closed) == before


class TestStoresOfJava:
    @pytest.mark.parametrize("name", ["v4-clean", "v5-clean"])
    def test_a_missing_queue_is_rebuilt(
        self, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        root = copy_of(name, tmp_path)
        before = derived(root)[0]
        shutil.rmtree(root / "consumequeue" / "T1" / "0")
        reopened(root)
        assert derived(root)[0] == before
        assert (
            "1 queue is missing files or units and will be rebuilt from the log: T1/0"
            in caplog.text
        )

    def test_a_topic_that_the_broker_does_not_know_is_not_missed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The broker deleted it: its queues are not derived again from the whole log."""
        root = copy_of("v5-clean", tmp_path)
        list_topics(root, "T6")
        shutil.rmtree(root / "consumequeue" / "T1")
        Store.open(root).close()
        assert "rebuilt from the log" not in caplog.text

    @pytest.mark.parametrize("name", ["v4-clean", "v5-clean"])
    def test_the_last_messages_of_a_topic_that_java_deleted_do_not_come_back(
        self, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They follow all messages in the queues, and Java itself derives them again."""
        root = copy_of(name, tmp_path)
        newest = records(root)[-1].topic
        others = {path.name for path in (root / "consumequeue").iterdir()} - {newest}
        list_topics(root, *others)
        shutil.rmtree(root / "consumequeue" / newest)
        with Store.open(root) as store:
            assert newest not in store.topics()
            store.put(Message(newest, b"new life"))
            assert [message.body for message in store.read(newest)] == [b"new life"]
        assert f"does not list their topics, which were deleted: {newest}" in caplog.text
        assert checked(root).ok

    def test_a_deleted_trace_topic_does_not_come_back(self, tmp_path: Path) -> None:
        """It is named like an internal topic, but brokers list it, and administrators delete it."""
        with Store.open(tmp_path, small_config()) as store:
            for topic in ("T", TRACE_TOPIC):
                store.put(Message(topic, b"x"))
        (tmp_path / INVENTORY).unlink()
        list_topics(tmp_path, "T")
        shutil.rmtree(tmp_path / "consumequeue" / TRACE_TOPIC)
        with Store.open(tmp_path) as store:
            assert store.topics() == ["T"]

    @pytest.mark.parametrize("changed_ms", [0, 1])
    def test_a_list_of_topics_older_than_the_messages_proves_nothing(
        self, changed_ms: int, tmp_path: Path
    ) -> None:
        root = copy_of("v5-clean", tmp_path)
        before = derived(root)[0]
        list_topics(root, changed_ms=changed_ms)
        shutil.rmtree(root / "consumequeue" / records(root)[-1].topic)
        reopened(root)
        assert derived(root)[0] == before

    @pytest.mark.parametrize("killed", [False, True])
    def test_queues_of_batches_get_no_others_beside_them(
        self, killed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A Java broker that gets the folder back would not start with them."""
        root = copy_of("v5-clean", tmp_path)
        (root / "batchconsumequeue").mkdir()
        (root / "consumequeue" / "T1").rename(root / "batchconsumequeue" / "T1")
        if killed:
            (root / "abort").write_bytes(b"")
        with Store.open(root) as store:
            assert "T1" not in store.topics() and "T6" in store.topics()
            store.put(Message("T6", b"new"))
            assert [message.body for message in store.read("T6")][-1] == b"new"
            with pytest.raises(IllegalMessageError, match="T1 has batch queues, which only"):
                store.put(Message("T1", b"refused"))
        assert not (root / "consumequeue" / "T1").exists()
        assert "rebuilt from the log" not in caplog.text

    def test_a_topic_deleted_by_java_does_not_come_back(
        self, closed: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Firetrail's list is older than what Java has done to the store since."""
        list_topics(closed, "t0", "t2")
        shutil.rmtree(closed / "consumequeue" / "t1")
        (closed / "lock").write_bytes(LOCK_CONTENT)  # as a Java broker leaves it
        with Store.open(closed) as store:
            assert store.topics() == ["t0", "t2"]
        assert "rebuilt from the log" not in caplog.text
        reopened(closed)
        assert "rebuilt from the log" not in caplog.text

    def test_queue_files_expired_by_java_are_not_missed(self, closed: Path) -> None:
        """A queue none of whose messages is left in the log keeps its numbers."""
        with Store.open(closed) as store:
            end = store.max_offset("t1", 0)
            for number in range(200):
                store.put(Message("t0", b"%d" % number))
        commit_log = sorted((closed / "commitlog").iterdir())
        for expired in commit_log[:-1]:
            expired.unlink()
        (closed / f"consumequeue/t1/0/{FIRST}").unlink()
        (closed / "lock").write_bytes(LOCK_CONTENT)
        with Store.open(closed) as store:
            assert store.max_offset("t1", 0) == end > 0

    def test_only_a_sample_of_the_log_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(evidence, "SAMPLED_FILES", 1)
        monkeypatch.setattr(evidence, "SAMPLED_BYTES", 200)
        root = copy_of("v5-clean", tmp_path)
        shutil.rmtree(root / "consumequeue" / "T6")
        with Store.open(root) as store:
            assert "T6" not in store.topics()


def test_a_full_disk_removes_the_inventory(
    closed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with Store.open(closed) as store:
        store.put(Message("t0", b"x"))
        monkeypatch.setattr(inventory, "write_inventory", full)
    assert not (closed / "firetrail.inventory").exists()
    assert "no space for" in caplog.text
    reopened(closed)


class TestFilesOfTheBroker:
    def test_a_new_file_is_listed_in_the_next_round(self, tmp_path: Path) -> None:
        """A broker that is killed within seconds of its first start knows which files it had."""
        root = tmp_path / "store"
        with Store.open(root, small_config()) as store:
            store._engine.housekeeper.round()
            (root / "config").mkdir()
            (root / "config" / "topics.json").write_text("{}")
            store._engine.housekeeper.round()
            killed = crash_image(root, tmp_path / "killed")
        shutil.rmtree(killed / "config")
        (problem,) = checked(killed).problems
        assert (problem.file, problem.kind) == ("config/topics.json", ProblemKind.FILE_MISSING)
        with Store.open(killed, small_config()) as store:
            assert store._engine.missing_config == ["topics.json"]

    def test_a_list_is_not_written_again_without_a_new_file(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        with Store.open(root, small_config()) as store:
            (root / "config").mkdir()
            (root / "config" / "topics.json").write_text("{}")
            store._engine.housekeeper.round()
            before = (root / "firetrail.inventory").stat().st_ino  # replaced by each write
            (root / "config" / "other.json").write_text("{}")
            store._engine.housekeeper.round()
            assert (root / "firetrail.inventory").stat().st_ino == before
