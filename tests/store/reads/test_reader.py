"""Reads: every status and next offset of the Java store's table; caps, tags, ids, keys, times."""

from pathlib import Path
from typing import Any

import pytest
from tests.helpers import Machine, bodies, put_all, small_config
from tests.store.conftest import OpenStore
from tests.store.reads.stores import beheaded, numbered

from firetrail import GetStatus, Message, Store
from firetrail.format.values.javahash import java_hash
from firetrail.store.reads.reader import tag_hashes
from firetrail.store.settings.store_config import BrokerRole

pytestmark = pytest.mark.stepped_threads

SLAVE = {"role": BrokerRole.SLAVE}


def answer(store: Store, offset: int, *, queue: int = 0, count: int = 32) -> tuple[str, int]:
    result = store.get("T", queue, offset, count)
    return result.status.name, result.next_offset


class TestStatuses:
    """Every status of a get, in the order in which RocketMQ checks for them."""

    @pytest.mark.parametrize("offset", [0, 5])
    def test_an_unknown_queue_has_its_own_status(self, store: Store, offset: int) -> None:
        put_all(store, [b"x"])
        assert answer(store, offset, queue=1) == ("NO_MATCHED_LOGIC_QUEUE", 0)
        assert store.get("other").status is GetStatus.NO_MATCHED_LOGIC_QUEUE

    @pytest.mark.parametrize("offset", [0, 5])
    def test_a_queue_without_messages_has_its_own_status(self, store: Store, offset: int) -> None:
        store._engine.queues.open("T", 0)
        assert answer(store, offset) == ("NO_MESSAGE_IN_QUEUE", 0)

    @pytest.mark.parametrize("offset", [-1, 0, 11])
    def test_an_offset_before_the_first_message_is_too_small(
        self, open_store: OpenStore, offset: int
    ) -> None:
        store = beheaded(open_store)
        low = store.min_offset("T")
        assert low > 11
        assert answer(store, offset) == ("OFFSET_TOO_SMALL", low)

    def test_an_offset_at_the_end(self, store: Store) -> None:
        put_all(store, numbered(3))
        assert answer(store, 3) == ("OFFSET_OVERFLOW_ONE", 3)

    @pytest.mark.parametrize("offset", [4, 1000, 2**60])
    def test_an_offset_after_the_end(self, store: Store, offset: int) -> None:
        put_all(store, numbered(3))
        assert answer(store, offset) == ("OFFSET_OVERFLOW_BADLY", 3)

    def test_a_gap_in_the_queue_files_is_skipped(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_all(store, numbered(25))
        queue = store._engine.queues.open("T", 0)
        assert queue.min_offset(0) == 0
        find = queue.files.find
        monkeypatch.setattr(queue.files, "find", lambda at: None if at < 200 else find(at))
        assert answer(store, 4) == ("OFFSET_FOUND_NULL", 10)

    def test_a_get_returns_messages_from_an_offset_on(self, store: Store) -> None:
        put_all(store, numbered(9))
        result = store.get("T", 0, 2, 3)
        assert (result.status, result.next_offset) == (GetStatus.FOUND, 5)
        assert (result.min_offset, result.max_offset) == (0, 9)
        assert [bytes(m.body) for m in result.messages()] == [b"2", b"3", b"4"]
        assert (len(result), result.count) == (3, 3)
        assert result.size == sum(len(buffer) for buffer in result.buffers)
        assert not result.suggest_slave

    def test_no_message_matches_the_tags(self, store: Store) -> None:
        put_all(store, numbered(5), tags="A")
        result = store.get("T", 0, 1, tags="B")
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 5)
        assert result.buffers == []

    def test_a_record_whose_file_was_deleted(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file was deleted after the queue's beginning was looked up."""
        store = open_store(units=1000)
        put_all(store, numbered(60, 200))
        log = store._engine.log.queue
        queue = store._engine.queues.open("T", 0)
        looked_up, early = queue.min_offset, [0]

        def too_early(log_min: int) -> int:
            return early.pop() if early else looked_up(log_min)

        monkeypatch.setattr(queue, "min_offset", too_early)
        log.retire_first(0)
        result = store.get("T", 0, 0, 5)
        assert result.status is GetStatus.FOUND, "it continues after the deleted records"
        assert result.next_offset > 5
        # If nothing follows it either, the status says no more than that.
        while len(log.segments) > 1:
            log.retire_first(0)
        early.append(0)
        store._engine.live.current = store.config.replace(max_filter_bytes=20 * 5)
        assert answer(store, 0, count=5) == ("MESSAGE_WAS_REMOVING", 5)

    @pytest.mark.parametrize(
        ("unit", "count", "is_cut"),
        [
            (bytes(20), 5, False),
            (bytes(20), 5, True),
            (b"\xff" * 20, 5, False),
            (b"\xff" * 20, 5, True),
            (bytes(11) + b"\x50" + bytes(8), 1, True),
        ],
    )
    def test_messages_of_damaged_units_are_found_in_the_log(
        self, open_store: OpenStore, unit: bytes, count: int, is_cut: bool
    ) -> None:
        """This includes several in a row, and a log that no longer begins at 0."""
        store = beheaded(open_store) if is_cut else open_store()
        if not is_cut:
            put_all(store, numbered(100, 100))
        numbers = [m.queue_offset for m in store.read("T")]
        queue = store._engine.queues.open("T", 0)
        for number in range(90, 90 + count):
            segment = queue.files.find(number * 20)
            assert segment is not None
            at = number * 20 - segment.base
            segment.view[at : at + 20] = unit
        store._engine.reader.forget_cursors()
        queue.forget_positions()
        assert [m.queue_offset for m in store.read("T")] == numbers

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


class TestCaps:
    def test_the_requested_count_is_respected(self, store: Store) -> None:
        put_all(store, numbered(9))
        assert [answer(store, 0, count=n)[1] for n in (1, 2, 8)] == [1, 2, 8]

    def test_the_first_message_is_returned_whatever_its_size(self, open_store: OpenStore) -> None:
        store = open_store(max_transfer_bytes_in_memory=1, max_transfer_bytes_on_disk=1)
        put_all(store, numbered(3, 500))
        assert answer(store, 0) == ("FOUND", 1)
        assert answer(store, 1, count=1) == ("FOUND", 2)

    def test_answers_from_memory_are_limited_in_bytes(self, open_store: OpenStore) -> None:
        store = open_store(max_transfer_bytes_in_memory=1000, log=1 << 16)
        put_all(store, numbered(9, 200))
        result = store.get("T")
        assert result.size <= 1000 < result.size + len(result.buffers[0])

    def test_count_in_memory(self, open_store: OpenStore) -> None:
        store = open_store(max_transfer_count_in_memory=4)
        put_all(store, numbered(9))
        assert answer(store, 0, count=100) == ("FOUND", 4)

    def test_messages_beyond_the_memory_count_as_on_disk(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        config: dict[str, Any] = {
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

    def test_answers_from_disk_are_limited_in_bytes(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        store = open_store(log=1 << 16)
        put_all(store, numbered(20, 100))
        size = len(store.get("T").buffers[0])
        store.close()
        machine = Machine(memory_bytes=0)
        config = small_config(log=1 << 16, max_transfer_bytes_on_disk=3 * size + 10)
        with Store.open(tmp_path / "data", config, system=machine.system) as cold:
            assert answer(cold, 0) == ("FOUND", 3)

    def test_a_call_reads_one_queue_file(self, store: Store) -> None:
        put_all(store, numbered(25))
        assert answer(store, 8) == ("FOUND", 10)
        assert answer(store, 10) == ("FOUND", 20)
        assert bodies(store) == numbered(25)

    def test_the_number_of_examined_units_is_limited(self, open_store: OpenStore) -> None:
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

    def test_a_matching_message_is_found_among_others(self, store: Store) -> None:
        put_all(store, numbered(8), tags="A")
        put_all(store, [b"wanted"], tags="B")
        result = store.get("T", tags="B")
        assert (result.status, result.next_offset) == (GetStatus.FOUND, 9)
        assert bytes(next(result.messages()).body) == b"wanted"

    def test_tags_with_negative_hashes_are_found(self, store: Store) -> None:
        tag = "zzzzzz"
        assert java_hash(tag) < 0
        put_all(store, [b"x"], tags=tag)
        assert store.get("T", tags=tag).count == 1

    def test_tag_expressions_are_hashed(self) -> None:
        assert tag_hashes(None) is None
        assert tag_hashes("*") is None
        assert tag_hashes("") is None
        assert tag_hashes("TagA||TagB") == frozenset({java_hash("TagA"), java_hash("TagB")})
