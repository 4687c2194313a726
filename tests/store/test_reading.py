"""Reads: every status and next offset of the Java store's table; caps, tags, ids, keys, times."""

from pathlib import Path

import pytest
from tests.helpers import START_MS, Machine, bodies, put_all
from tests.store.conftest import OpenStore

from firetrail import Boundary, GetStatus, Message, Store
from firetrail.errors import FormatError
from firetrail.format.hosts import Host
from firetrail.format.ids import encode_message_id
from firetrail.format.javahash import index_key_hash, java_hash
from firetrail.store.config import BrokerRole
from firetrail.store.reading import tag_hashes

SLAVE = {"role": BrokerRole.SLAVE}


def answer(store: Store, offset: int, *, queue: int = 0, count: int = 32) -> tuple[str, int]:
    result = store.get("T", queue, offset, count)
    return result.status.name, result.next_offset


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + b"." * size for number in range(count)]


class TestStatuses:
    """The rows of reference/store.md 8.1, in its order."""

    @pytest.mark.parametrize("offset", [0, 5])
    def test_no_such_queue(self, store: Store, offset: int) -> None:
        put_all(store, [b"x"])
        assert answer(store, offset, queue=1) == ("NO_MATCHED_LOGIC_QUEUE", 0)
        assert store.get("other").status is GetStatus.NO_MATCHED_LOGIC_QUEUE

    @pytest.mark.parametrize("offset", [0, 5])
    def test_a_queue_without_messages(self, store: Store, offset: int) -> None:
        store._engine.queues.open("T", 0)
        assert answer(store, offset) == ("NO_MESSAGE_IN_QUEUE", 0)

    @pytest.mark.parametrize("offset", [-1, 0, 11])
    def test_before_the_first(self, open_store: OpenStore, offset: int) -> None:
        store = beheaded(open_store)
        low = store.min_offset("T")
        assert low > 11
        assert answer(store, offset) == ("OFFSET_TOO_SMALL", low)

    def test_at_the_end(self, store: Store) -> None:
        put_all(store, numbered(3))
        assert answer(store, 3) == ("OFFSET_OVERFLOW_ONE", 3)

    @pytest.mark.parametrize("offset", [4, 1000, 2**60])
    def test_behind_the_end(self, store: Store, offset: int) -> None:
        put_all(store, numbered(3))
        assert answer(store, offset) == ("OFFSET_OVERFLOW_BADLY", 3)

    def test_a_gap_in_the_queue_files(self, store: Store) -> None:
        put_all(store, numbered(25))
        queue = store._engine.queues.open("T", 0)
        assert queue.min_offset(0) == 0
        find = queue.files.find
        queue.files.find = lambda at: None if at < 200 else find(at)  # type: ignore[method-assign]
        assert answer(store, 4) == ("OFFSET_FOUND_NULL", 10)

    def test_found(self, store: Store) -> None:
        put_all(store, numbered(9))
        result = store.get("T", 0, 2, 3)
        assert (result.status, result.next_offset) == (GetStatus.FOUND, 5)
        assert (result.min_offset, result.max_offset) == (0, 9)
        assert [bytes(m.body) for m in result.messages()] == [b"2", b"3", b"4"]
        assert (len(result), result.count) == (3, 3)
        assert result.size == sum(len(buffer) for buffer in result.buffers)
        assert not result.suggest_slave

    def test_no_match(self, store: Store) -> None:
        put_all(store, numbered(5), tags="A")
        result = store.get("T", 0, 1, tags="B")
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 5)
        assert result.buffers == []

    def test_the_record_is_gone(self, open_store: OpenStore) -> None:
        """The log was cut by another hand; the queue does not know yet."""
        store = open_store(units=1000)
        put_all(store, numbered(60, 200))
        log = store._engine.log.queue
        queue = store._engine.queues.open("T", 0)
        assert queue.min_offset(log.min_offset) == 0
        log.retire_first(0)
        known = (log.min_offset, 0)
        queue._min = known  # as read just before the file went
        first = next(m.queue_offset for m in store.read("T", offset=20))
        result = store.get("T", 0, 0, 5)
        assert result.status is GetStatus.FOUND, "it goes on behind what is missing"
        assert result.next_offset > 5
        assert first == 20
        # With nothing left behind it either, that is all there is to say.
        while len(log.segments) > 1:
            log.retire_first(0)
        queue._min = (log.min_offset, 0)
        part = store._engine.reader
        part._config = store.config.replace(max_filter_bytes=20 * 5)
        assert answer(store, 0, count=5) == ("MESSAGE_WAS_REMOVING", 5)

    @pytest.mark.parametrize(
        ("offset", "queue", "status"),
        [
            (7, 1, "NO_MATCHED_LOGIC_QUEUE"),
            (-3, 0, "OFFSET_TOO_SMALL"),
            (1000, 0, "OFFSET_OVERFLOW_BADLY"),
            (3, 0, "OFFSET_OVERFLOW_ONE"),
        ],
    )
    def test_a_slave_leaves_the_reader_where_it_is(
        self, open_store: OpenStore, offset: int, queue: int, status: str
    ) -> None:
        store = open_store()
        put_all(store, numbered(3))
        store.close()
        assert answer(open_store(**SLAVE), offset, queue=queue) == (status, offset)

    def test_a_slave_that_checks_offsets(self, open_store: OpenStore) -> None:
        store = open_store()
        put_all(store, numbered(3))
        store.close()
        slave = open_store(**SLAVE, offset_check_in_slave=True)
        assert answer(slave, 1000) == ("OFFSET_OVERFLOW_BADLY", 3)


def beheaded(open_store: OpenStore) -> Store:
    """A store whose oldest files were deleted."""
    store = open_store(flush_interval_ms=1, flush_least_pages=0)
    put_all(store, numbered(100, 100), keys=["k"])
    store.flush()
    assert store.delete_expired(forced=True) > 0
    return store


class TestCaps:
    def test_count(self, store: Store) -> None:
        put_all(store, numbered(9))
        assert [answer(store, 0, count=n)[1] for n in (1, 2, 8)] == [1, 2, 8]

    def test_the_first_message_always_comes(self, open_store: OpenStore) -> None:
        store = open_store(max_transfer_bytes_in_memory=1, max_transfer_bytes_on_disk=1)
        put_all(store, numbered(3, 500))
        assert answer(store, 0) == ("FOUND", 1)
        assert answer(store, 1, count=0) == ("FOUND", 2)

    def test_bytes_in_memory(self, open_store: OpenStore) -> None:
        store = open_store(max_transfer_bytes_in_memory=1000, log=1 << 16)
        put_all(store, numbered(9, 200))
        result = store.get("T")
        assert result.size <= 1000 < result.size + len(result.buffers[0])

    def test_count_in_memory(self, open_store: OpenStore) -> None:
        store = open_store(max_transfer_count_in_memory=4)
        put_all(store, numbered(9))
        assert answer(store, 0, count=100) == ("FOUND", 4)

    def test_on_disk_is_what_does_not_fit_into_memory(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        config = {
            "log": 1 << 16,
            "units": 100,
            "max_transfer_count_on_disk": 2,
            "in_memory_ratio": 0.5,
        }
        store = open_store(**config)
        put_all(store, numbered(20, 100))
        end = store.log_range[1]
        size = store.get("T").size // 20
        assert store.get("T").next_offset == 20
        store.close()
        machine = Machine(memory_bytes=2 * 10 * size)  # half of it: ten messages
        from tests.helpers import small_config

        with Store.open(tmp_path / "data", small_config(**config), system=machine.system) as small:
            assert small.log_range[1] == end
            assert answer(small, 0) == ("FOUND", 2)
            assert small.get("T").suggest_slave
            assert answer(small, 12) == ("FOUND", 20)
            assert not small.get("T", 0, 12).suggest_slave
            # The caps of the unit that is looked at count: it began on disk.
            assert answer(small, 9)[1] == 20
            assert answer(small, 7)[1] == 9
        assert not machine.files.open_files

    def test_bytes_on_disk(self, open_store: OpenStore, tmp_path: Path) -> None:
        store = open_store(log=1 << 16)
        put_all(store, numbered(20, 100))
        size = len(store.get("T").buffers[0])
        store.close()
        machine = Machine(memory_bytes=0)
        from tests.helpers import small_config

        config = small_config(log=1 << 16, max_transfer_bytes_on_disk=3 * size + 10)
        with Store.open(tmp_path / "data", config, system=machine.system) as cold:
            assert answer(cold, 0) == ("FOUND", 3)

    def test_one_queue_file_a_call(self, store: Store) -> None:
        put_all(store, numbered(25))
        assert answer(store, 8) == ("FOUND", 10)
        assert answer(store, 10) == ("FOUND", 20)
        assert bodies(store) == numbered(25)

    def test_units_looked_at(self, open_store: OpenStore) -> None:
        store = open_store(units=1000, max_filter_bytes=20 * 16)
        put_all(store, numbered(40), tags="A")
        result = store.get("T", tags="B", max_count=8)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 16)
        # Or as many as were asked for, if those are more.
        assert store.get("T", tags="B", max_count=30).next_offset == 30


class TestTags:
    def fill(self, store: Store) -> None:
        for number, tag in enumerate(["A", "B", None, "A", "Aa", "BB"]):
            store.put(Message("T", b"%d" % number, tags=tag))
        assert store.wait_dispatched()

    @pytest.mark.parametrize(
        ("tags", "expected"),
        [
            (None, b"012345"),
            ("*", b"012345"),
            ("A", b"03"),
            ("A || B", b"013"),
            (["A", "B"], b"013"),
            (" B ", b"1"),
            ("C", b""),
            ("Aa", b"45"),  # the same hash as BB: the broker's filter lets both through
        ],
    )
    def test_get_compares_hashes(self, store: Store, tags: str, expected: bytes) -> None:
        self.fill(store)
        assert java_hash("Aa") == java_hash("BB")
        result = store.get("T", tags=tags)
        assert b"".join(bytes(m.body) for m in result.messages()) == expected
        assert result.next_offset == 6

    @pytest.mark.parametrize(("tags", "expected"), [("Aa", b"4"), (["BB"], b"5"), ("*", b"012345")])
    def test_read_compares_the_tags_themselves(
        self, store: Store, tags: str, expected: bytes
    ) -> None:
        self.fill(store)
        assert b"".join(bytes(m.body) for m in store.read("T", tags=tags)) == expected

    def test_found_among_others(self, store: Store) -> None:
        put_all(store, numbered(8), tags="A")
        put_all(store, [b"wanted"], tags="B")
        result = store.get("T", tags="B")
        assert (result.status, result.next_offset) == (GetStatus.FOUND, 9)
        assert bytes(next(result.messages()).body) == b"wanted"

    def test_negative_hashes(self, store: Store) -> None:
        tag = "zzzzzz"
        assert java_hash(tag) < 0
        put_all(store, [b"x"], tags=tag)
        assert store.get("T", tags=tag).count == 1

    def test_hashes(self) -> None:
        assert tag_hashes(None) is None
        assert tag_hashes("*") is None
        assert tag_hashes("") == frozenset()
        assert tag_hashes("TagA||TagB") == {java_hash("TagA"), java_hash("TagB")}


class TestByPlace:
    def test_by_physical_offset(self, store: Store) -> None:
        offsets = put_all(store, numbered(50, 100))
        for number in (0, 30, 49):
            record = store.at(offsets[number])
            assert record is not None and record.queue_offset == number

    @pytest.mark.parametrize("offset", [-1, 1, 5, 4095, 4096, 10**9, 2**62])
    def test_nothing_begins_there(self, store: Store, offset: int) -> None:
        put_all(store, [b"x"])
        assert store.at(offset) is None

    def test_the_end_mark_of_a_file_is_no_message(self, store: Store) -> None:
        put_all(store, numbered(2, 3000))
        size = store.get("T").size // 2
        assert store.log_range[1] == 4096 + size
        assert store.at(size) is None

    def test_by_id(self, store: Store) -> None:
        result = store.put(Message("T", b"x"))
        assert result.message_id is not None
        for message_id in (result.message_id, result.message_id.lower()):
            record = store.by_id(message_id)
            assert record is not None and bytes(record.body) == b"x"

    def test_by_the_id_of_another_broker(self, store: Store) -> None:
        store.put(Message("T", b"x"))
        assert store.by_id(encode_message_id(Host("10.0.0.1", 10911), 0)) is None
        assert store.by_id(encode_message_id(store.config.store_host, 4000)) is None

    @pytest.mark.parametrize("message_id", ["", "xyz", "0" * 31, "0" * 33, "g" * 32])
    def test_by_what_is_no_id(self, store: Store, message_id: str) -> None:
        with pytest.raises(FormatError):
            store.by_id(message_id)

    def test_buffers_are_slices_of_the_mapping(self, store: Store) -> None:
        put_all(store, [b"abc"])
        (buffer,) = store.get("T").buffers
        assert buffer.obj is store._engine.log.queue.segments[0].mapping


class TestByKey:
    def found(self, store: Store, key: str, **options: int) -> list[bytes]:
        return [bytes(m.body) for m in store.query("T", key, **options)]

    def test_newest_first(self, store: Store) -> None:
        for number in range(5):
            store.put(Message("T", b"%d" % number, keys=["all", f"k{number % 2}"]))
        assert store.wait_dispatched()
        assert self.found(store, "all") == [b"4", b"3", b"2", b"1", b"0"]
        assert self.found(store, "k1") == [b"3", b"1"]
        assert self.found(store, "k2") == []
        assert store.query("other", "all") == []

    def test_by_the_unique_key(self, store: Store) -> None:
        put_all(store, [b"x"], properties={"UNIQ_KEY": "id-1"}, keys=["k"])
        assert self.found(store, "id-1") == self.found(store, "k") == [b"x"]

    def test_several_entries_of_one_message_count_once(self, store: Store) -> None:
        put_all(store, [b"x"], keys=["k", "k"], properties={"UNIQ_KEY": "k"})
        assert self.found(store, "k") == [b"x"]

    def test_keys_of_equal_hash_are_told_apart(self, store: Store) -> None:
        assert index_key_hash("T", "Aa") == index_key_hash("T", "BB")
        put_all(store, [b"first"], keys=["Aa"])
        put_all(store, [b"second"], keys=["BB"])
        assert self.found(store, "Aa") == [b"first"]
        assert self.found(store, "BB") == [b"second"]

    def test_a_collision_does_not_use_up_the_number_asked_for(self, store: Store) -> None:
        put_all(store, [b"wanted"], keys=["Aa"])
        put_all(store, numbered(40), keys=["BB"])
        assert self.found(store, "Aa", max_count=1) == [b"wanted"]

    def test_topic_and_key_are_not_confused(self, store: Store) -> None:
        """ "A#b" + "c" and "A" + "b#c" are one string to the index; only one is a legal topic."""
        put_all(store, [b"x"], topic="A", keys=["b#c"])
        assert store.query("A#b", "c") == []
        assert len(store.query("A", "b#c")) == 1

    def test_number(self, open_store: OpenStore) -> None:
        store = open_store(default_query_count=3, max_query_count=5)
        put_all(store, numbered(9), keys=["k"])
        assert len(store.query("T", "k")) == 3
        assert len(store.query("T", "k", max_count=4)) == 4
        assert len(store.query("T", "k", max_count=100)) == 5

    def test_over_many_files(self, open_store: OpenStore, root: Path) -> None:
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
    def test_times_to_the_millisecond(
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

    def test_without_an_index(self, open_store: OpenStore, root: Path) -> None:
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
    def test_boundaries(
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
    def test_a_missing_queue(self, store: Store, boundary: Boundary) -> None:
        assert store.offset_at("T", 0, START_MS, boundary) == 0

    @pytest.mark.parametrize("boundary", list(Boundary))
    def test_an_empty_queue(self, store: Store, boundary: Boundary) -> None:
        store._engine.queues.open("T", 0)
        assert store.offset_at("T", 0, START_MS, boundary) == 0

    @pytest.mark.parametrize("boundary", list(Boundary))
    def test_before_what_was_removed(self, open_store: OpenStore, boundary: Boundary) -> None:
        store = beheaded(open_store)
        assert store.offset_at("T", 0, START_MS - 1000, boundary) == store.min_offset("T")

    def test_store_time(self, timed: Store) -> None:
        reader = timed._engine.reader
        assert reader.store_time("T", 0, 4) == START_MS + 300
        assert reader.store_time("T", 0, 12) is None
        assert reader.store_time("T", 9, 0) is None


class TestMissing:
    def test_offsets_of_a_missing_queue(self, store: Store) -> None:
        assert (store.min_offset("T"), store.max_offset("T")) == (0, 0)
        assert (store.topics(), store.queues("T")) == ([], [])
        assert list(store.read("T")) == []

    def test_read_from_outside_the_queue(self, open_store: OpenStore) -> None:
        store = beheaded(open_store)
        assert next(store.read("T", offset=0)).queue_offset == store.min_offset("T")
        assert list(store.read("T", offset=1000)) == []
        assert [m.queue_offset for m in store.read("T", offset=98)] == [98, 99]
