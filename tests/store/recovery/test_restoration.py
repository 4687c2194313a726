"""Missing queue and index files are noticed and rebuilt after an unclean stop as well."""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.world.simulation import scratch
from tests.helpers import crash_image, small_config
from tests.store.checks import checked
from tests.stores import copy_of, derived, list_topics, truncate

from firetrail import Message, StoreConfig
from firetrail.errors import FlushFailedError, StoreDamagedError
from firetrail.format.files import config_json
from firetrail.format.names import INVENTORY, LOCK_CONTENT, SCHEDULE_TOPIC
from firetrail.store.broker_store import BrokerStore
from firetrail.store.evidence import evidence, inventory
from firetrail.system import SYSTEM

FIRST = f"{0:020d}"
CONFIG = small_config(units=5, entries=20)
Loss = Callable[[Path], None]


def put_some(store: BrokerStore, count: int = 45) -> None:
    for number in range(count):
        store.embedded.put(
            Message(f"t{number % 3}", b"%d" % number, queue_id=number % 2, keys=[f"k{number}"])
        )


def settle(store: BrokerStore) -> int:
    """Have all of it in queues and index, on disk, and noted in the watermark; up to where."""
    assert store.embedded.wait_dispatched()
    return store.removal.settle()


def kill(store: BrokerStore, root: Path, listed: bool | None = None, name: str = "killed") -> Path:
    """A copy of an open store as ``kill -9`` would leave it; with a list of all files, or none."""
    settle(store)
    if listed:
        store._engine._note_files(store.log.max_offset)
    copy = crash_image(root, root.with_name(name))
    if listed is False:
        (copy / INVENTORY).unlink()
    return copy


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: the stores here are synced very often."""
    with scratch() as folder:
        yield folder


@pytest.fixture(params=["listed", "never closed"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store with several files of each kind that was killed."""
    root = tmp_path / "store"
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        put_some(store)
        return kill(store, root, request.param == "listed")


def reopened(root: Path) -> tuple[dict[str, bytes], list[bytes]]:
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        assert not store.embedded.recovery.clean
    assert checked(root).ok
    return derived(root)


def units_of(root: Path) -> dict[str, bytes]:
    """The units of every queue, whatever the length of its files."""
    queues: dict[str, bytes] = {}
    for name, content in derived(root)[0].items():
        queue = name.rpartition("/")[0]
        queues[queue] = queues.get(queue, b"") + content
    return {queue: units.rstrip(b"\0") for queue, units in queues.items()}


def lose(name: str) -> Loss:
    return lambda root: shutil.rmtree(root / name)


LOSSES: dict[str, Loss] = {
    "topic": lose("consumequeue/t1"),
    "queue": lose("consumequeue/t1/0"),
    "all queues": lose("consumequeue"),
    "first file": lambda root: (root / f"consumequeue/t1/0/{FIRST}").unlink(),
    "last file": lambda root: (root / f"consumequeue/t1/0/{100:020d}").unlink(),
    "short first file": lambda root: truncate(root / f"consumequeue/t1/0/{FIRST}", 40),
    "short last file": lambda root: truncate(root / f"consumequeue/t1/0/{100:020d}", 40),
    "index": lose("index"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_queues_are_rebuilt(killed: Path, loss: str, caplog: pytest.LogCaptureFixture) -> None:
    before = derived(killed)
    LOSSES[loss](killed)
    assert reopened(killed) == before
    assert "rebuilt from the log" in caplog.text
    with BrokerStore.open(killed, StoreConfig(), system=SYSTEM) as store:
        assert store.embedded.put(Message("t1", b"next")).queue_offset == 7


@pytest.mark.parametrize("number", [0, 1, 2])
def test_missing_or_short_index_files_are_rebuilt(tmp_path: Path, number: int) -> None:
    """Test each file, missing or short, in a closed and in a killed store."""
    root = tmp_path / "store"
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        put_some(store)
        copy = kill(store, root, listed=True)
    for spoil in (Path.unlink, lambda path: truncate(path, 100)):
        for spoiled in (root, copy):
            before = derived(spoiled)
            spoil(sorted((spoiled / "index").iterdir())[number])
            with BrokerStore.open(spoiled, CONFIG, system=SYSTEM) as store:
                assert (
                    store.embedded.recovery.restored_index
                    and not store.embedded.recovery.restored_queues
                )
            assert derived(spoiled) == before
        shutil.rmtree(copy)
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            copy = kill(store, root)


@pytest.mark.parametrize("name", [FIRST, f"{100:020d}"])
def test_a_short_queue_file_of_a_closed_store_is_restored(tmp_path: Path, name: str) -> None:
    root = tmp_path / "store"
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        put_some(store)
    before = derived(root)
    truncate(root / f"consumequeue/t1/0/{name}", 40)
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        assert store.embedded.recovery.clean and store.embedded.recovery.restored_queues == 1
    assert derived(root) == before


def test_a_complete_store_gives_no_warning(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = derived(killed)
    assert reopened(killed) == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_retention_is_not_mistaken_for_a_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The list is older than what was removed since."""
    root = tmp_path / "store"
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        put_some(store)
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        put_some(store, 150)
        settle(store)
        assert store.embedded.delete_expired(forced=True)
        copy = kill(store, root)
    assert not (copy / f"consumequeue/t1/0/{FIRST}").exists()
    before = derived(copy)
    assert reopened(copy) == before
    assert "rebuilt from the log" not in caplog.text
    with BrokerStore.open(copy, CONFIG, system=SYSTEM) as store:
        expected = [message.body for message in store.embedded.read("t1", 0)]
        again = kill(store, copy, name="again")
    sorted((again / "consumequeue/t1/0").iterdir())[0].unlink()
    with BrokerStore.open(again, CONFIG, system=SYSTEM) as store:
        assert [message.body for message in store.embedded.read("t1", 0)] == expected
        assert store.embedded.recovery.restored_queues == 1


class TestNumbers:
    """A queue does not count from 0 again, and no position of a group is lost with its queue."""

    def test_a_queue_without_messages_in_the_log(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            for number in range(7):
                store.embedded.put(Message("old", b"%d" % number))
            put_some(store, 150)
            settle(store)
            assert store.embedded.delete_expired(forced=True)
            copy = kill(store, root, listed=True)
        shutil.rmtree(copy / "consumequeue/old")
        with BrokerStore.open(copy, CONFIG, system=SYSTEM) as store:
            assert store.queues.max_offset("old", 0) == 7
            assert store.embedded.put(Message("old", b"next")).queue_offset == 7

    @pytest.mark.parametrize(
        ("topic", "file", "table"),
        [
            ("t1", "consumerOffset.json", {"t1@group": {0: 5}}),
            ("t1", "consumerOffset.json.bak", {"t1@group": {0: 5}}),
            (SCHEDULE_TOPIC, "delayOffset.json", {1: 1}),
        ],
    )
    def test_a_position_shows_that_a_queue_is_missing(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        topic: str,
        file: str,
        table: dict[object, object],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Though no record that is looked at is of the queue."""
        monkeypatch.setattr(evidence, "SAMPLED_FILES", 1)
        monkeypatch.setattr(evidence, "SAMPLED_ROWS", 1)
        monkeypatch.setattr(evidence, "SAMPLED_BYTES", 200)
        root = tmp_path / "store"
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            put_some(store, 3)
            put_some(store)
            store.embedded.put(Message("t0", b"later", delay_level=1))
            store.embedded.put(Message("last", bytes(300)))
            copy = kill(store, root, listed=False)
        before = derived(copy)[0]
        shutil.rmtree(copy / "consumequeue" / topic / "0")
        (copy / "config").mkdir()
        (copy / "config" / file).write_text(config_json.dumps({"offsetTable": table}))
        assert reopened(copy)[0] == before
        assert f"a group or delay level is beyond the end of {topic}/0" in caplog.text

    def test_a_position_beyond_the_log_itself(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        root = tmp_path / "store"
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            put_some(store)
            copy = kill(store, root, listed=True)
        (copy / "config").mkdir()
        table = {"offsetTable": {"t1@group": {0: 99}, "unknown@group": {0: 3}}}
        (copy / "config/consumerOffset.json").write_text(config_json.dumps(table))
        before = derived(copy)
        assert reopened(copy) == before
        assert "searching the log for the messages" in caplog.text
        assert "rebuilt from the log" not in caplog.text

    def test_a_log_that_lacks_messages_of_the_queue(self, tmp_path: Path) -> None:
        """Then nothing is changed: the remaining units point to messages."""
        root = tmp_path / "store"
        with (
            pytest.raises(FlushFailedError),
            BrokerStore.open(root, CONFIG, system=SYSTEM) as store,
        ):
            put_some(store, 12)
            settle(store)
            store._engine.queues.open("t1", 0).next_offset = 5
            store.embedded.put(Message("t1", b"behind a gap"))
        before = derived(root)
        with pytest.raises(StoreDamagedError, match="t1/0 has 2 units, but its next message"):
            BrokerStore.open(root, CONFIG, system=SYSTEM)
        assert derived(root) == before


class TestRemovedTopics:
    """Deleted topics do not come back, whichever stop follows."""

    def remove(self, store: BrokerStore, topic: str) -> None:
        assert store.removal.remove(topic, settle(store))

    def test_a_topic_that_was_listed(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            put_some(store)
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            self.remove(store, "t1")
            copy = kill(store, root)
        assert "t1" not in json.loads((copy / INVENTORY).read_bytes())["queues"]
        with BrokerStore.open(copy, CONFIG, system=SYSTEM) as store:
            assert (
                store.queues.topics() == ["t0", "t2"]
                and not store.embedded.recovery.restored_queues
            )
            again = kill(store, copy, name="again")
        shutil.rmtree(again / "consumequeue/t2")
        with BrokerStore.open(again, CONFIG, system=SYSTEM) as store:
            assert (
                store.queues.topics() == ["t0", "t2"]
                and store.embedded.recovery.restored_queues == 2
            )

    def test_a_topic_removed_in_this_session_stays_removed(self, tmp_path: Path) -> None:
        """No list has it, but its records are among those that are looked at."""
        root = tmp_path / "store"
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            put_some(store)
            self.remove(store, "t1")
            copy = kill(store, root)
        with BrokerStore.open(copy, CONFIG, system=SYSTEM) as store:
            assert (
                store.queues.topics() == ["t0", "t2"]
                and not store.embedded.recovery.restored_queues
            )

    def test_a_recreated_topic_is_restored_with_all_queues_missing(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            put_some(store)
            self.remove(store, "t1")
            store.embedded.put(Message("t1", b"anew"))
            copy = kill(store, root)
        shutil.rmtree(copy / "consumequeue")
        with BrokerStore.open(copy, CONFIG, system=SYSTEM) as store:
            assert store.queues.topics() == ["t0", "t1", "t2"]
            assert [message.body for message in store.embedded.read("t1")] == [b"anew"]


class TestStoresOfJava:
    @pytest.mark.parametrize("name", ["v4-clean", "v5-clean"])
    @pytest.mark.parametrize("loss", ["consumequeue/T1", "consumequeue/T1/0", "consumequeue"])
    def test_lost_queues_of_a_killed_java_store_are_rebuilt(
        self, name: str, loss: str, tmp_path: Path
    ) -> None:
        root = copy_of(name, tmp_path)
        before = units_of(root)
        (root / "abort").write_bytes(b"")
        shutil.rmtree(root / loss)
        with BrokerStore.open(root, StoreConfig(), system=SYSTEM) as store:
            assert not store.embedded.recovery.clean
        assert units_of(root) == before

    def test_a_list_from_before_java_does_not_count(self, tmp_path: Path) -> None:
        """The list does not count after the next kill either."""
        root = tmp_path / "store"
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            put_some(store)
        list_topics(root, "t0", "t2")
        shutil.rmtree(root / "consumequeue/t1")  # as the Java broker deletes a topic
        (root / "lock").write_bytes(LOCK_CONTENT)
        with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
            copy = kill(store, root)
        with BrokerStore.open(copy, CONFIG, system=SYSTEM) as store:
            assert store.queues.topics() == ["t0", "t2"]


def test_new_queues_are_listed_while_the_store_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "NOTE_INTERVAL_S", 0.0)
    root = tmp_path / "store"
    (root / "config").mkdir(parents=True)
    (root / "config/topics.json").write_text("{}")

    def noted() -> list[str]:
        return sorted(json.loads((root / INVENTORY).read_bytes())["queues"])

    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        assert noted() == []
        put_some(store, 6)
        settle(store)
        store._engine.housekeeper.round()
        assert noted() == ["t0", "t1", "t2"]
        content = json.loads((root / INVENTORY).read_bytes())
        assert content["config"] == ["topics.json"] and len(content["index_files"]) == 1
        assert content["durable_offset"] == store.log.max_offset
        before = os.stat(root / INVENTORY).st_ino
        put_some(store, 6)
        settle(store)
        store._engine.housekeeper.round()
        assert os.stat(root / INVENTORY).st_ino == before  # nothing is new


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[]", b"{}", b'{"version":2}', b""])
def test_a_list_that_cannot_be_read(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        put_some(store)
    (root / INVENTORY).write_bytes(content)
    with BrokerStore.open(root, CONFIG, system=SYSTEM) as store:
        assert not store.embedded.recovery.restored_queues
    lines = [record.getMessage() for record in caplog.records if record.name == inventory.__name__]
    if content == b"{}":  # as of another release
        assert lines == []
    else:
        assert len(lines) == 1 and "Error" not in lines[0]
        assert f"{root / INVENTORY} cannot be read (it is damaged) and is ignored" in lines[0]
