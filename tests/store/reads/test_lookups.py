"""Messages by place, by key and by time."""

from pathlib import Path

import pytest
from tests.helpers import START_MS, Machine, put_all
from tests.store.conftest import OpenStore
from tests.store.reads.stores import beheaded, numbered

from firetrail import Boundary, Message, Store
from firetrail.errors import FormatError, StoreDamagedError
from firetrail.format.values.hosts import Host
from firetrail.format.values.ids import encode_message_id
from firetrail.format.values.javahash import index_key_hash
from firetrail.store.settings.store_config import BrokerRole

pytestmark = pytest.mark.stepped_threads

SLAVE = {"role": BrokerRole.SLAVE}


class TestByPlace:
    def test_a_message_is_found_by_its_physical_offset(self, store: Store) -> None:
        offsets = put_all(store, numbered(50, 100))
        for number in (0, 30, 49):
            record = store.at(offsets[number])
            assert record is not None and record.queue_offset == number

    @pytest.mark.parametrize("offset", [-1, 1, 5, 4095, 4096, 10**9, 2**62])
    def test_an_offset_without_a_record_finds_nothing(self, store: Store, offset: int) -> None:
        put_all(store, [b"x"])
        assert store.at(offset) is None

    def test_the_end_mark_of_a_file_is_not_a_message(self, store: Store) -> None:
        put_all(store, numbered(2, 3000))
        size = store.get("T").size // 2
        assert store.log_range[1] == 4096 + size
        assert store.at(size) is None

    def test_a_message_is_found_by_its_id(self, store: Store) -> None:
        result = store.put(Message("T", b"x"))
        assert result.message_id is not None
        for message_id in (result.message_id, result.message_id.lower()):
            record = store.by_id(message_id)
            assert record is not None and bytes(record.body) == b"x"

    def test_an_id_of_another_broker_finds_nothing(self, store: Store) -> None:
        store.put(Message("T", b"x"))
        assert store.by_id(encode_message_id(Host("10.0.0.1", 10911), 0)) is None
        assert store.by_id(encode_message_id(store.config.store_host, 4000)) is None

    @pytest.mark.parametrize("message_id", ["", "xyz", "0" * 31, "0" * 33, "g" * 32])
    def test_an_invalid_id_is_refused(self, store: Store, message_id: str) -> None:
        with pytest.raises(FormatError):
            store.by_id(message_id)

    def test_a_damaged_message_is_named(self, store: Store) -> None:
        offsets = put_all(store, [b"good", b"bad!", b"fine"], keys=["k"])
        mapping = store._engine.log.queue.segments[0].mapping
        at = mapping.find(b"bad!")
        mapping[at] ^= 1
        reads = store.read("T")
        assert next(reads).body == b"good"
        for look in (
            lambda: next(reads),
            lambda: store.at(offsets[1]),
            lambda: store.query("T", "k"),
        ):
            with pytest.raises(StoreDamagedError, match=r"body CRC.*firetrail fsck") as caught:
                look()
            assert caught.value.physical_offset == offsets[1]
            assert caught.value.file.endswith("commitlog/00000000000000000000")
        assert store.at(offsets[2]).body == b"fine"  # type: ignore[union-attr]

    def test_buffers_are_slices_of_the_mapping(self, store: Store) -> None:
        put_all(store, [b"abc"])
        (buffer,) = store.get("T").buffers
        assert buffer.obj is store._engine.log.queue.segments[0].mapping


class TestByKey:
    def found(self, store: Store, key: str, **options: int) -> list[bytes]:
        return [bytes(m.body) for m in store.query("T", key, **options)]

    def test_the_newest_message_comes_first(self, store: Store) -> None:
        for number in range(5):
            store.put(Message("T", b"%d" % number, keys=["all", f"k{number % 2}"]))
        assert store.wait_dispatched()
        assert self.found(store, "all") == [b"4", b"3", b"2", b"1", b"0"]
        assert self.found(store, "k1") == [b"3", b"1"]
        assert self.found(store, "k2") == []
        assert store.query("other", "all") == []

    def test_a_message_is_found_by_its_unique_key(self, store: Store) -> None:
        put_all(store, [b"x"], properties={"UNIQ_KEY": "id-1"}, keys=["k"])
        assert self.found(store, "id-1") == self.found(store, "k") == [b"x"]

    def test_several_entries_of_one_message_count_once(self, store: Store) -> None:
        put_all(store, [b"x"], keys=["k", "k"], properties={"UNIQ_KEY": "k"})
        assert self.found(store, "k") == [b"x"]

    def test_keys_of_equal_hash_are_distinguished(self, store: Store) -> None:
        assert index_key_hash("T", "Aa") == index_key_hash("T", "BB")
        put_all(store, [b"first"], keys=["Aa"])
        put_all(store, [b"second"], keys=["BB"])
        assert self.found(store, "Aa") == [b"first"]
        assert self.found(store, "BB") == [b"second"]

    def test_a_collision_does_not_use_up_the_number_asked_for(self, store: Store) -> None:
        put_all(store, [b"wanted"], keys=["Aa"])
        put_all(store, numbered(40), keys=["BB"])
        assert self.found(store, "Aa", max_count=1) == [b"wanted"]

    def test_a_query_compares_a_limited_number_of_messages(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody may store any number of messages with keys of the same hash."""
        put_all(store, [b"wanted"], keys=["Aa"])
        put_all(store, numbered(40), keys=["BB"])
        monkeypatch.setattr("firetrail.store.reads.reader.CANDIDATES_MAX", 40)
        assert self.found(store, "Aa", max_count=1) == []
        monkeypatch.setattr("firetrail.store.reads.reader.CANDIDATES_MAX", 41)
        assert self.found(store, "Aa", max_count=1) == [b"wanted"]

    def test_topic_and_key_are_not_confused(self, store: Store) -> None:
        """ "A#b" + "c" and "A" + "b#c" are one string to the index; only one is a legal topic."""
        put_all(store, [b"x"], topic="A", keys=["b#c"])
        assert store.query("A#b", "c") == []
        assert len(store.query("A", "b#c")) == 1

    def test_the_number_of_results_is_limited(self, open_store: OpenStore) -> None:
        store = open_store(default_query_count=3, max_query_count=5)
        put_all(store, numbered(9), keys=["k"])
        assert len(store.query("T", "k")) == 3
        assert len(store.query("T", "k", max_count=4)) == 4
        assert len(store.query("T", "k", max_count=100)) == 5

    def test_a_query_spans_many_files(self, open_store: OpenStore, root: Path) -> None:
        store = open_store(slots=4, entries=8, max_query_count=100)
        put_all(store, numbered(50), keys=["k", "other"])
        assert len(list((root / "index").iterdir())) > 10
        assert self.found(store, "k", max_count=100) == list(reversed(numbered(50)))

    @pytest.mark.parametrize(
        ("begin", "end", "expected"),
        [
            (0, START_MS - 1, []),
            (0, START_MS, [0]),
            (START_MS, START_MS + 2500, [1, 0]),
            (START_MS + 1, START_MS + 2500, [1]),
            (START_MS + 2500, START_MS + 2500, [1]),
            (START_MS + 2501, START_MS + 4999, []),
            (START_MS + 2499, START_MS + 5000, [2, 1]),
            (START_MS + 5001, START_MS + 10**9, []),
        ],
    )
    @pytest.mark.parametrize("entries", [64, 2])  # one file, or one for each message
    def test_times_are_compared_to_the_millisecond(
        self,
        open_store: OpenStore,
        machine: Machine,
        begin: int,
        end: int,
        expected: list[int],
        entries: int,
    ) -> None:
        store = open_store(entries=entries, slots=2)
        for number in range(3):
            put_all(store, [b"%d" % number], keys=["k"])
            machine.clock.advance(2500)
        assert self.found(store, "k", begin=begin, end=end) == [b"%d" % n for n in expected]

    def test_after_the_log_was_beheaded(self, open_store: OpenStore) -> None:
        store = beheaded(open_store)
        found = [m.queue_offset for m in store.query("T", "k", max_count=64)]
        assert found == list(range(99, store.min_offset("T") - 1, -1))[:64]

    def test_a_store_without_an_index_finds_nothing(
        self, open_store: OpenStore, root: Path
    ) -> None:
        store = open_store(index_enabled=False)
        put_all(store, [b"x"], keys=["k"])
        assert store.query("T", "k") == []
        assert not (root / "index").exists()


class TestByTime:
    TIMES = (100, 200, 200, 200, 300, 400, 400, 700)

    @pytest.fixture
    def timed(self, store: Store, machine: Machine) -> Store:
        """Twelve units in two files: TIMES, the last of them five times."""
        for time in (*self.TIMES, 700, 700, 700, 700):
            machine.clock.set_wall(START_MS + time)
            store.put(Message("T", b"%d" % time))
        assert store.wait_dispatched()
        return store

    @pytest.mark.parametrize(
        ("time", "lower", "upper", "nearest"),
        [
            (0, 0, 0, 0),  # before the first
            (100, 0, 0, 0),
            (101, 1, 0, 0),
            (150, 1, 0, 0),  # as near to both: the earlier one
            (151, 1, 0, 1),
            (200, 1, 3, 1),  # equal times: the first, the last, any
            (201, 4, 3, 3),
            (300, 4, 4, 4),
            (550, 7, 6, 6),
            (551, 7, 6, 7),
            (700, 7, 11, 7),
            (701, 12, 11, 11),  # beyond the last
            (10**6, 12, 11, 11),
        ],
    )
    def test_boundaries_select_messages(
        self, timed: Store, time: int, lower: int, upper: int, nearest: int
    ) -> None:
        found = [
            timed.offset_at("T", 0, START_MS + time, boundary)
            for boundary in (Boundary.LOWER, Boundary.UPPER, Boundary.NEAREST)
        ]
        if time == 200:
            assert found[2] in (1, 2, 3)
        assert found == [lower, upper, nearest]

    def test_lower_is_the_default(self, timed: Store) -> None:
        assert timed.offset_at("T", 0, START_MS + 101) == 1

    @pytest.mark.parametrize("boundary", list(Boundary))
    def test_a_missing_queue_has_the_offset_0(self, store: Store, boundary: Boundary) -> None:
        assert store.offset_at("T", 0, START_MS, boundary) == 0

    @pytest.mark.parametrize("boundary", list(Boundary))
    def test_an_empty_queue_has_the_offset_0(self, store: Store, boundary: Boundary) -> None:
        store._engine.queues.open("T", 0)
        assert store.offset_at("T", 0, START_MS, boundary) == 0

    @pytest.mark.parametrize("boundary", list(Boundary))
    def test_a_time_before_the_deleted_messages(
        self, open_store: OpenStore, boundary: Boundary
    ) -> None:
        store = beheaded(open_store)
        assert store.offset_at("T", 0, START_MS - 1000, boundary) == store.min_offset("T")

    def test_the_store_time_of_an_offset_is_found(self, timed: Store) -> None:
        reader = timed._engine.reader
        assert reader.store_time("T", 0, 4) == START_MS + 300
        assert reader.store_time("T", 0, 12) is None
        assert reader.store_time("T", 9, 0) is None


class TestMissing:
    def test_the_offsets_of_a_missing_queue_are_0(self, store: Store) -> None:
        assert (store.min_offset("T"), store.max_offset("T")) == (0, 0)
        assert (store.topics(), store.queues("T")) == ([], [])
        assert list(store.read("T")) == []

    def test_read_from_outside_the_queue(self, open_store: OpenStore) -> None:
        store = beheaded(open_store)
        assert next(store.read("T", offset=0)).queue_offset == store.min_offset("T")
        assert list(store.read("T", offset=1000)) == []
        assert [m.queue_offset for m in store.read("T", offset=98)] == [98, 99]
