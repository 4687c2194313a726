"""The index file in place, against a model that keeps its entries in lists."""

from __future__ import annotations

from array import array
from struct import pack_into

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.format.kernels.drafts import fenced

from firetrail.errors import FormatError
from firetrail.format.files.index import (
    IndexEntry,
    IndexHeader,
    decode_index_header,
    encode_index_header,
    entry_at,
    entry_seconds,
    index_file_size,
    slot_at,
)
from firetrail.format.kernels.index import append_entries, count_entries, cut_entries, walk
from firetrail.format.layout import INDEX_ENTRY

SLOTS, ENTRIES = 5, 12

hashes = st.one_of(st.integers(0, 14), st.integers(0, 2**31 - 1))
times = st.one_of(st.integers(0, 20_000), st.integers(0, 2**50))
Key = tuple[int, int, int]
keys = st.lists(st.tuples(hashes, st.integers(0, 2**60), times), max_size=20)


class Model:
    """An index file as lists: entries in order of arrival, the entry numbers of each slot."""

    def __init__(self, *begin: int) -> None:
        self.header = IndexHeader(*begin)
        self.entries: list[IndexEntry] = []
        self.chains: dict[int, list[int]] = {}

    def put(self, key: Key) -> bool:
        """Whether there was room for it."""
        key_hash, offset, time = key
        number = len(self.entries) + 1
        if number >= ENTRIES:
            return False
        chain = self.chains.setdefault(key_hash % SLOTS, [])
        seconds = entry_seconds(time, self.header.begin_timestamp)
        self.entries.append(IndexEntry(key_hash, offset, seconds, chain[-1] if chain else 0))
        chain.append(number)
        begin = self.header if number > 1 else IndexHeader(time, time, offset, offset)
        self.header = IndexHeader(
            begin.begin_timestamp, time, begin.begin_offset, offset, len(self.chains), number + 1
        )
        return True

    def find(self, key_hash: int, begin: int, end: int, limit: int) -> list[int]:
        found: list[int] = []
        for number in reversed(self.chains.get(key_hash % SLOTS, [])):
            entry = self.entries[number - 1]
            time = self.header.begin_timestamp + (1000 * entry.seconds if number > 1 else 0)
            if len(found) >= limit or time + 999 < begin:
                break
            if entry.key_hash == key_hash and time <= end:
                found.append(entry.physical_offset)
        return found

    def file(self) -> bytes:
        data = bytearray(index_file_size(SLOTS, ENTRIES))
        data[:40] = encode_index_header(self.header)
        for slot, chain in self.chains.items():
            pack_into(">i", data, slot_at(slot), chain[-1])
        for number, entry in enumerate(self.entries, 1):
            at = entry_at(SLOTS, number)
            data[at : at + 20] = INDEX_ENTRY.struct.pack(*entry)
        return bytes(data)


def as_array(entries: list[Key]) -> array[int]:
    return array("q", [number for entry in entries for number in entry])


def built(entries: list[Key]) -> tuple[Model, bytes]:
    model = Model()
    for key in entries:
        model.put(key)
    return model, model.file()


class TestAppend:
    @given(keys, st.integers(0, 20))
    def test_an_appended_file_equals_that_of_the_model(
        self, entries: list[Key], split: int
    ) -> None:
        model, expected = built(entries)
        data = fenced(bytes(index_file_size(SLOTS, ENTRIES)))
        split = min(split, len(entries))
        done = append_entries(data, SLOTS, ENTRIES, as_array(entries), 0, split)
        assert done == min(split, ENTRIES - 1)
        done = append_entries(data, SLOTS, ENTRIES, as_array(entries), done, len(entries))
        assert done == len(model.entries)
        assert bytes(data) == expected

    @given(keys)
    def test_a_later_file_continues_times_and_offsets(self, entries: list[Key]) -> None:
        """It starts with the times and offsets of the end of the one before."""
        model = Model(5000, 5000, 777, 777)
        for key in entries:
            model.put(key)
        data = bytearray(index_file_size(SLOTS, ENTRIES))
        data[:40] = encode_index_header(IndexHeader(5000, 5000, 777, 777))
        append_entries(data, SLOTS, ENTRIES, as_array(entries), 0, len(entries))
        assert data == model.file()

    def test_a_full_file_takes_nothing_more(self) -> None:
        entries = [(i, i, 1000) for i in range(30)]
        data = bytearray(index_file_size(SLOTS, ENTRIES))
        assert append_entries(data, SLOTS, ENTRIES, as_array(entries), 0, 30) == ENTRIES - 1
        assert decode_index_header(data).entry_count == ENTRIES
        full = bytes(data)
        assert append_entries(data, SLOTS, ENTRIES, as_array(entries), 11, 30) == 11
        assert data == full

    def test_less_room_than_the_file_has(self) -> None:
        data = fenced(bytes(entry_at(SLOTS, 4)))
        assert append_entries(data, SLOTS, 4, as_array([(1, 2, 3)] * 9), 0, 9) == 3
        for limit in (1, 0, -1, -(2**62)):
            data = fenced(bytes(entry_at(SLOTS, 1)))
            assert append_entries(data, SLOTS, limit, as_array([(1, 2, 3)]), 0, 1) == 0
            assert not any(data)

    def test_appending_nothing_changes_nothing(self) -> None:
        data = bytearray(index_file_size(SLOTS, ENTRIES))
        assert append_entries(data, SLOTS, ENTRIES, array("q"), 0, 0) == 0
        assert append_entries(data, SLOTS, ENTRIES, as_array([(1, 2, 3)] * 4), 3, 2) == 3
        assert not any(data)

    @pytest.mark.parametrize(
        ("slots", "limit"),
        [(0, 5), (-1, 5), (5, 13), (6, 12), (2**62, 0), (2**61, 5), (5, 2**62), (2**63 - 1, 1)],
    )
    def test_geometry_that_does_not_fit(self, slots: int, limit: int) -> None:
        data = fenced(bytes(index_file_size(SLOTS, ENTRIES)))
        with pytest.raises(ValueError, match=f"index file of {slots} slots"):
            append_entries(data, slots, limit, as_array([(1, 2, 3)]), 0, 1)

    @pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 3), (0, 2**62), (-(2**62), 2)])
    def test_entries_that_are_not_there(self, first: int, count: int) -> None:
        data = fenced(bytes(index_file_size(SLOTS, ENTRIES)))
        with pytest.raises(ValueError, match=f"entries {first}:{count} of 2"):
            append_entries(data, SLOTS, ENTRIES, as_array([(1, 2, 3)] * 2), first, count)

    @pytest.mark.parametrize("key_hash", [-1, -(2**31), 2**31, 2**62, -(2**63)])
    def test_what_is_no_hash(self, key_hash: int) -> None:
        data = fenced(bytes(index_file_size(SLOTS, ENTRIES)), front=True)
        entries = as_array([(1, 2, 3), (key_hash, 2, 3)])
        with pytest.raises(ValueError, match=f"entry 1 .*{key_hash}"):
            append_entries(data, SLOTS, ENTRIES, entries, 0, 2)
        assert not any(data)

    @pytest.mark.parametrize("newest", [-1, 2, 3, 2**31 - 1])
    def test_a_slot_that_points_nowhere_counts_as_empty(self, newest: int) -> None:
        data = bytearray(index_file_size(SLOTS, ENTRIES))
        append_entries(data, SLOTS, ENTRIES, as_array([(0, 10, 1)]), 0, 1)
        pack_into(">i", data, slot_at(1), newest)
        append_entries(data, SLOTS, ENTRIES, as_array([(1, 20, 1)]), 0, 1)
        assert data == built([(0, 10, 1), (1, 20, 1)])[1]

    def test_times_far_apart_are_clamped_as_in_the_model(self) -> None:
        entries = [(1, 0, 1), (2, 0, 2**62), (3, 0, -(2**62)), (4, 0, 0)]
        data = bytearray(index_file_size(SLOTS, ENTRIES))
        append_entries(data, SLOTS, ENTRIES, as_array(entries), 0, 4)
        assert data == built(entries)[1]


class TestWalk:
    @given(keys, hashes, times, times, st.integers(-1, 10))
    def test_a_walk_finds_what_the_model_finds(
        self, entries: list[Key], key_hash: int, begin: int, end: int, limit: int
    ) -> None:
        model, data = built(entries)
        file = fenced(data)
        assert walk(file, SLOTS, key_hash, begin, end, limit) == model.find(
            key_hash, begin, end, limit
        )
        for wanted in {key[0] for key in entries}:
            found = walk(file, SLOTS, wanted, 0, 2**62, 100)
            assert found == model.find(wanted, 0, 2**62, 100)

    @given(keys)
    def test_everything_is_found(self, entries: list[Key]) -> None:
        """If entries are in the order of time, no entry is hidden by an older one."""
        in_order = sorted(1 + time % 2**40 for _, _, time in entries)
        entries = [(h, o, t) for (h, o, _), t in zip(entries, in_order, strict=True)]
        _, data = built(entries)
        taken = entries[: ENTRIES - 1]
        for key_hash, _, time in taken:
            wanted = [o for h, o, _ in reversed(taken) if h == key_hash]
            assert walk(data, SLOTS, key_hash, 0, 2**62, 100) == wanted
            same_time = {o for h, o, t in taken if h == key_hash and t == time}
            assert same_time <= set(walk(data, SLOTS, key_hash, time, time, 100))

    def test_times_in_a_later_file_count_from_the_file_before(self) -> None:
        """Its seconds count from the end of the file before, not from its own begin."""
        data = bytearray(index_file_size(SLOTS, ENTRIES))
        data[:40] = encode_index_header(IndexHeader(1000, 1000))
        append_entries(data, SLOTS, ENTRIES, as_array([(1, 11, 61_000), (1, 12, 62_000)]), 0, 2)
        assert walk(data, SLOTS, 1, 61_000, 61_000, 9) == [11]
        assert walk(data, SLOTS, 1, 62_000, 62_000, 9) == [12]
        assert walk(data, SLOTS, 1, 0, 70_000, 9) == [12, 11]

    def test_a_walk_in_an_empty_file_finds_nothing(self) -> None:
        assert walk(bytes(index_file_size(SLOTS, ENTRIES)), SLOTS, 1, 0, 9, 9) == []
        assert walk(bytes(slot_at(SLOTS)), SLOTS, 1, 0, 9, 9) == []

    @given(
        keys,
        st.lists(st.tuples(st.integers(0, 2**12), st.binary(min_size=4, max_size=4)), max_size=6),
        hashes,
    )
    @example([(0, 1, 1)] * 3, [(340, b"\x00\x00\x00\x03")], 0)
    def test_damage_ends_the_chain(
        self, entries: list[Key], changes: list[tuple[int, bytes]], key_hash: int
    ) -> None:
        data = bytearray(built(entries)[1])
        for at, word in changes:
            at = at % (len(data) // 4) * 4
            data[at : at + 4] = word
        if data[0] & 0x80 or data[8] & 0x80:  # the times in the header
            with pytest.raises(FormatError, match="time"):
                walk(fenced(data), SLOTS, key_hash, -(2**63), 2**63 - 1, 1000)
            return
        found = walk(fenced(data), SLOTS, key_hash, -(2**63), 2**63 - 1, 1000)
        assert len(found) < ENTRIES
        assert found == walk(fenced(data, front=True), SLOTS, key_hash, -(2**63), 2**63 - 1, 1000)

    def test_a_circle_ends(self) -> None:
        data = bytearray(built([(0, 1, 1), (0, 2, 1), (0, 3, 1)])[1])
        for number in (1, 2, 3):
            for previous in (1, 2, 3, 4, -1):
                circle = bytearray(data)
                pack_into(">i", circle, entry_at(SLOTS, number) + 16, previous)
                assert len(walk(circle, SLOTS, 0, 0, 9999, 100)) <= 3

    def test_a_header_that_promises_too_much_does_no_harm(self) -> None:
        data = bytearray(built([(0, 1, 1)])[1])
        pack_into(">i", data, 36, 2**31 - 1)
        for newest in (1, 2, ENTRIES - 1, ENTRIES, ENTRIES + 1, 2**31 - 1, -1):
            pack_into(">i", data, slot_at(0), newest)
            assert len(walk(fenced(data), SLOTS, 0, 0, 9999, 100)) <= ENTRIES

    @pytest.mark.parametrize("slots", [0, -1, 200, 2**62, 2**63 - 1, -(2**63)])
    def test_slots_that_do_not_fit(self, slots: int) -> None:
        with pytest.raises(ValueError, match=f"index file of {slots} slots"):
            walk(fenced(bytes(index_file_size(SLOTS, ENTRIES))), slots, 1, 0, 9, 9)

    @pytest.mark.parametrize("key_hash", [-1, -(2**31), 2**31, 2**63 - 1, -(2**63)])
    def test_what_is_no_hash(self, key_hash: int) -> None:
        with pytest.raises(ValueError, match=f"{key_hash}"):
            walk(fenced(bytes(300), front=True), SLOTS, key_hash, 0, 9, 9)


class TestCount:
    @given(keys, st.integers(0, 2**60), st.integers(1, ENTRIES))
    def test_in_the_order_of_the_log(self, entries: list[Key], log_end: int, limit: int) -> None:
        in_order = sorted(1 + offset for _, offset, _ in entries)
        entries = [(h, o, t) for (h, _, t), o in zip(entries, in_order, strict=True)]
        model, data = built(entries)
        kept = [e for e in model.entries[: limit - 1] if e.physical_offset < log_end]
        assert count_entries(fenced(data), SLOTS, limit, log_end) == len(kept)

    @pytest.mark.parametrize(
        ("key_hash", "offset", "count"),
        [(9, 20, 4), (0, 0, 1), (0, 20, 4), (9, 9, 1), (-1, 20, 1), (9, -1, 1), (9, 2**62, 1)],
    )
    def test_ends_before_what_was_not_written(self, key_hash: int, offset: int, count: int) -> None:
        data = bytearray(built([(7, 10, 1), (8, 20, 1), (7, 20, 1), (7, 30, 1)])[1])
        pack_into(">iq", data, entry_at(SLOTS, 2), key_hash, offset)
        assert count_entries(data, SLOTS, ENTRIES, 2**40) == count

    @pytest.mark.parametrize(
        ("slots", "limit"), [(0, 1), (-1, 1), (5, 13), (2**62, 1), (5, 2**62), (2**63 - 1, 0)]
    )
    def test_geometry_that_does_not_fit(self, slots: int, limit: int) -> None:
        file = fenced(bytes(index_file_size(SLOTS, ENTRIES)))
        with pytest.raises(ValueError, match=f"index file of {slots} slots"):
            count_entries(file, slots, limit, 2**62)

    @pytest.mark.parametrize("limit", [1, 0, -1, -(2**63)])
    def test_a_file_without_room_has_no_entries(self, limit: int) -> None:
        assert count_entries(built([(1, 2, 3)])[1], SLOTS, limit, 2**62) == 0


class TestCut:
    @given(keys, st.integers(1, ENTRIES), st.integers(0, ENTRIES))
    def test_as_if_the_rest_was_never_put(self, entries: list[Key], keep: int, used: int) -> None:
        model, data = built(entries)
        keep = min(keep, len(model.entries) + 1)
        file = fenced(data)
        in_use = cut_entries(file, SLOTS, keep, max(used, len(model.entries) + 1))
        kept, expected = built(entries[: keep - 1])
        assert in_use == len(kept.chains)
        assert bytes(file[32:]) == expected[32:]  # times and offsets are the caller's
        assert file[:32] == data[:32]

    @given(keys, st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(-9, 2**31 - 1))))
    def test_heals_slots_and_links(
        self, entries: list[Key], changes: list[tuple[int, int]]
    ) -> None:
        model, data = built(entries)
        torn = bytearray(data)
        for slot, newest in changes:
            pack_into(">i", torn, slot_at(slot), newest)
            number = 1 + abs(newest) % ENTRIES
            if number <= len(model.entries):
                pack_into(">i", torn, entry_at(SLOTS, number) + 16, newest)
        count = len(model.entries) + 1
        assert cut_entries(torn, SLOTS, count, count) == len(model.chains)
        assert torn[32:] == data[32:]

    def test_goes_on_after_a_cut(self) -> None:
        entries = [(i % 3, i, 1000 * i) for i in range(10)]
        _, expected = built(entries)
        _, data = built(entries)
        file = bytearray(data)
        cut_entries(file, SLOTS, 6, 11)
        append_entries(file, SLOTS, ENTRIES, as_array(entries), 5, 10)
        assert file == expected

    @pytest.mark.parametrize("key_hash", [-1, -(2**31)])
    def test_a_damaged_entry_prevents_a_cut(self, key_hash: int) -> None:
        """Nothing is changed where one of the entries to keep is damaged."""
        data = bytearray(built([(i, i, i) for i in range(6)])[1])
        at = entry_at(SLOTS, 3)
        pack_into(">i", data, at, key_hash)
        file = fenced(data, front=True)
        with pytest.raises(FormatError, match=f"key hash at offset {at}: {key_hash}"):
            cut_entries(file, SLOTS, 7, 7)
        assert file == data
        assert cut_entries(file, SLOTS, 3, 7) == 2

    @pytest.mark.parametrize(
        ("slots", "keep", "used"),
        [
            (0, 1, 1),
            (-1, 1, 1),
            (5, 0, 1),
            (5, -1, 1),
            (5, 13, 1),
            (5, 1, 13),
            (5, 2**62, 1),
            (5, 1, 2**62),
            (2**62, 1, 1),
            (2**63 - 1, 1, 1),
        ],
    )
    def test_wrong_slots_and_counts_are_refused(self, slots: int, keep: int, used: int) -> None:
        file = fenced(bytes(index_file_size(SLOTS, ENTRIES)))
        with pytest.raises(ValueError, match=f"index file of {slots} slots|keep is {keep},"):
            cut_entries(file, slots, keep, used)
