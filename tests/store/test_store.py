"""The store as programs use it, from the outside."""

import threading
from pathlib import Path

import pytest
from tests.helpers import START_MS, Machine, bodies, in_threads, put_all
from tests.store.conftest import OpenStore

from firetrail import Boundary, FlushMode, Message, PutStatus, Store, StoreConfig
from firetrail.errors import SegmentSizeError
from firetrail.format.names import segment_name


def test_messages_are_put_and_read_back(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        paid = store.put(Message("orders", b"1", tags="paid", keys=["o-1"]))
        store.put(Message("orders", b"2", tags="open", keys=["o-2"]))
        assert store.wait_dispatched()
        assert [bytes(message.body) for message in store.read("orders")] == [b"1", b"2"]
        assert [bytes(message.body) for message in store.read("orders", tags="open")] == [b"2"]
        (found,) = store.query("orders", "o-1")
        assert (bytes(found.body), found.tags, found.keys) == (b"1", "paid", ("o-1",))
        assert store.by_id(paid.message_id or "") == found
        assert store.offset_at("orders", 0, paid.store_time, Boundary.LOWER) == 0
    with Store.open(tmp_path / "data") as store:
        assert store.recovery.clean
        assert store.put(Message("orders", b"3")).queue_offset == 2


def test_topics_queues_and_offsets_are_listed(store: Store) -> None:
    put_all(store, [b"a"], topic="B", queue_id=2)
    put_all(store, [b"a", b"b"], topic="B", queue_id=10)
    put_all(store, [b"a"], topic="A")
    assert store.topics() == ["A", "B"]
    assert store.queues("B") == [2, 10]
    assert store.queues("missing") == []
    assert (store.min_offset("B", 10), store.max_offset("B", 10)) == (0, 2)
    assert store.log_range == (0, 4 * 93)
    assert store.refusal == ""
    assert store.dispatch_behind == 0
    assert isinstance(store.config, StoreConfig)


def test_a_refused_put_creates_no_topic(open_store: OpenStore, machine: Machine) -> None:
    store = open_store()
    machine.files.fill_disk("commitlog")
    assert store.try_put(Message("T", b"x")).status is PutStatus.CREATE_MAPPED_FILE_FAILED
    machine.files.heal()
    store.close()
    assert open_store().topics() == []


def test_bodies_of_all_sizes_are_read_back(open_store: OpenStore) -> None:
    """Bodies of every length around the ends of files, read back as they were."""
    store = open_store(log=2048, units=3, slots=2, entries=5)
    expected = [bytes([n % 251]) * (n * 13 % 1700) for n in range(300)]
    put_all(store, expected, keys=["k"])
    assert bodies(store) == expected
    store.close()
    again = open_store()
    assert bodies(again) == expected
    found = again.query("T", "k", max_count=64)
    assert [bytes(message.body) for message in found] == expected[:-65:-1]


@pytest.mark.parametrize("mode", list(FlushMode))
def test_producers_and_consumers_at_once(open_store: OpenStore, mode: FlushMode) -> None:
    store = open_store(flush=mode, log=1 << 14, units=50, slots=8, entries=100)
    each = 150 if mode is FlushMode.ASYNC else 60
    done = threading.Event()
    producing = [2]

    def produce(number: int) -> None:
        for count in range(each):
            store.put(Message("T", b"%d:%d" % (number, count), queue_id=number, keys=["k"]))
        producing[0] -= 1
        if not producing[0]:
            done.set()

    def consume(number: int) -> None:
        position = 0
        while position < each:
            result = store.get("T", number, position)
            for message in result.messages():
                assert bytes(message.body) == b"%d:%d" % (number, message.queue_offset)
                assert message.queue_offset == position
                position += 1

    def ask() -> None:
        while not done.is_set():
            found = store.query("T", "k")
            assert all(message.keys == ("k",) for message in found)
            store.offset_at("T", 0, START_MS)
            store.topics()

    in_threads(lambda: produce(0), lambda: produce(1), lambda: consume(0), lambda: consume(1), ask)
    assert len(store.query("T", "k", max_count=64)) == 64


def test_many_topics_opened_at_once(open_store: OpenStore) -> None:
    store = open_store(log=1 << 16)

    def produce(number: int) -> None:
        for count in range(40):
            store.put(Message(f"topic-{count}", b"%d" % number))

    in_threads(*[lambda n=n: produce(n) for n in range(4)])
    assert store.wait_dispatched()
    assert len(store.topics()) == 40
    for topic in store.topics():
        assert sorted(bodies(store, topic)) == [b"0", b"1", b"2", b"3"]


class TestForeignFiles:
    def test_foreign_files_are_left_alone(self, open_store: OpenStore, root: Path) -> None:
        store = open_store()
        put_all(store, [b"a"], keys=["k"])
        store.close()
        for folder in (
            "",
            "commitlog",
            "consumequeue",
            "consumequeue/T",
            "consumequeue/T/0",
            "index",
        ):
            (root / folder / "notes.txt").write_text("mine")
            (root / folder / "sub").mkdir()
        again = open_store()
        put_all(again, [b"b"], keys=["k"])
        assert bodies(again) == [b"a", b"b"]
        assert len(again.query("T", "k")) == 2
        assert again.topics() == ["T"]
        again.close()
        assert len(list(root.rglob("notes.txt"))) == 6

    def test_with_the_name_of_a_log_file(self, open_store: OpenStore, root: Path) -> None:
        store = open_store()
        put_all(store, [b"a"])
        store.close()
        (root / "commitlog" / segment_name(4096)).write_bytes(b"not a log file")
        with pytest.raises(SegmentSizeError, match=r"00000000000000004096: the file has 14 bytes"):
            open_store()

    def test_with_the_name_of_a_queue(self, open_store: OpenStore, root: Path) -> None:
        store = open_store()
        put_all(store, [b"a"])
        store.close()
        (root / "consumequeue" / "T" / "1").write_text("a file")
        again = open_store()
        assert again.queues("T") == [0]
        put_all(again, [b"b"])
        assert bodies(again) == [b"a", b"b"]


class TestClock:
    """Steps of the wall clock: small and large, back and ahead, also while the store is closed."""

    @pytest.mark.parametrize("step", [1_000, 3_600_000, 10 * 365 * 86_400_000])
    @pytest.mark.parametrize("sign", [-1, 1])
    @pytest.mark.parametrize("reopen", [True, False])
    def test_messages_are_all_there(
        self, open_store: OpenStore, machine: Machine, step: int, sign: int, reopen: bool
    ) -> None:
        store = open_store(slots=4, entries=8)
        put_all(store, [b"%d" % n for n in range(10)], keys=["k"])
        if reopen:
            store.close()
        machine.clock.set_wall(START_MS + sign * step)
        if reopen:
            store = open_store()
        put_all(store, [b"%d" % n for n in range(10, 20)], keys=["k"])
        assert bodies(store) == [b"%d" % n for n in range(20)]
        assert len(store.query("T", "k")) == 20
        store.close()
        machine.clock.set_wall(START_MS)
        again = open_store()
        assert again.recovery.clean
        assert bodies(again) == [b"%d" % n for n in range(20)]
        assert len(again.query("T", "k")) == 20
        assert again.delete_expired() == 0


@pytest.mark.parametrize("tags", [None, "even"])
def test_a_read_ends_at_the_end_that_the_queue_had(open_store: OpenStore, tags: str | None) -> None:
    """A loop that puts a message for each one that it reads must end."""
    store = open_store(log=1 << 20)
    for number in range(10):
        store.put(Message("T", b"%d" % number, tags="odd" if number % 2 else "even"))
    store.wait_dispatched()
    seen = []
    for message in store.read("T", tags=tags):
        seen.append(int(message.body))
        store.put(Message("T", b"100", tags="even"))
        store.wait_dispatched()
    assert seen == list(range(0, 10, 2 if tags else 1))
