"""The index file: header, slots, entries, and how many of them a file has."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.files.index import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    IndexEntry,
    IndexGeometry,
    IndexHeader,
    decode_index_entry,
    decode_index_header,
    decode_index_slot,
    encode_index_header,
    entry_at,
    entry_seconds,
    find_geometry,
    index_file_size,
    infer_geometry,
    slot_at,
)
from firetrail.format.layout import INDEX_ENTRY

GOLDEN = Path(__file__).parents[2] / "golden"
GOLDEN_FILES = sorted(GOLDEN.glob("*/index/*"))

HEADER = (  # the clean golden store
    "000001a1de007cc9 000001a1de007cde 0000000000000000 00000000000009d2 0000001a 00000027",
    IndexHeader(1794725936329, 1794725936350, 0, 2514, 26, 39),
)
ENTRY = ("7e84f47a 00000000000000a6 00000000 00000000", IndexEntry(0x7E84F47A, 166, 0, 0))

int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(0, 2**63 - 1)
headers = st.builds(IndexHeader, int64, int64, int64, int64, int32, int32)
entries = st.builds(IndexEntry, int32, int64, int32, int32)


def name_of(path: Path) -> str:
    return str(path.relative_to(GOLDEN))


def golden_geometry(path: Path) -> IndexGeometry:
    """As tests/golden/README.md says."""
    return IndexGeometry(100, 400) if name_of(path).startswith("v4-") else IndexGeometry(20, 64)


def index_file(geometry: IndexGeometry, keys: int, seed: int = 0) -> bytearray:
    """A file with ``keys`` keys, put as the Java store puts them."""
    rng = random.Random(seed)
    data = bytearray(index_file_size(*geometry))
    begin = offset = rng.randrange(1000)
    used = 0
    for number in range(1, keys + 1):
        key_hash = rng.randrange(2**31)
        slot = slot_at(key_hash % geometry.slots)
        previous = decode_index_slot(data, slot)
        used += previous == 0
        entry = IndexEntry(key_hash, offset, 0, previous)
        at = entry_at(geometry.slots, number)
        data[at : at + 20] = INDEX_ENTRY.struct.pack(*entry)
        data[slot : slot + 4] = number.to_bytes(4, "big")
        data[:40] = encode_index_header(IndexHeader(1, 1, begin, offset, used, number + 1))
        offset += rng.randrange(2) * 200  # several keys of one message
    return data


def test_headers_slots_and_entries_of_java_round_trip() -> None:
    raw, header = HEADER
    assert decode_index_header(bytes.fromhex(raw)) == header
    assert encode_index_header(header) == bytes.fromhex(raw)
    raw, entry = ENTRY
    assert decode_index_entry(bytes.fromhex(raw)) == entry


@given(headers)
def test_header_round_trip(header: IndexHeader) -> None:
    assert decode_index_header(memoryview(encode_index_header(header))) == header


@given(entries, st.binary(max_size=30))
def test_an_entry_is_decoded_from_any_position(entry: IndexEntry, before: bytes) -> None:
    assert decode_index_entry(before + INDEX_ENTRY.struct.pack(*entry), len(before)) == entry


def test_slots_and_entries_have_the_positions_of_java() -> None:
    assert slot_at(0) == 40
    assert slot_at(53) == 252
    assert entry_at(100, 1) == 460
    assert index_file_size(100, 400) == 8440
    assert index_file_size(DEFAULT_SLOTS, DEFAULT_ENTRIES) == 420_000_040


def test_a_new_file_continues_at_entry_1() -> None:
    assert IndexHeader().next_entry == 1
    assert IndexHeader(entry_count=1).next_entry == 1
    assert IndexHeader(entry_count=39).next_entry == 39


@pytest.mark.parametrize(
    ("store_time", "begin", "seconds"),
    [
        (5_000, 0, 0),  # first entry of the first file: no begin yet
        (5_999, 1_000, 4),
        (999, 1_000, 0),  # the clock went back
        (1_000 + 1000 * 2**31, 1_000, 2**31 - 1),
    ],
)
def test_entries_have_the_seconds_since_the_begin(
    store_time: int, begin: int, seconds: int
) -> None:
    assert entry_seconds(store_time, begin) == seconds


@pytest.mark.parametrize(
    ("start", "at", "width", "field"),
    [
        (0, 0, 8, "begin timestamp"),
        (0, 8, 8, "end timestamp"),
        (0, 16, 8, "begin offset"),
        (0, 24, 8, "end offset"),
        (0, 32, 4, "slot count"),
        (0, 36, 4, "entry count"),
        *((460, 0, 4, "key hash"), (460, 4, 8, "physical offset")),
        *((460, 12, 4, "seconds"), (460, 16, 4, "previous")),
    ],
)
def test_negative_fields_are_refused(start: int, at: int, width: int, field: str) -> None:
    """The header is at the start of the file, and the entry at byte 460."""
    data = bytearray(480)
    data[start + at : start + at + width] = b"\xff" * width
    with pytest.raises(FormatError) as caught:
        decode_index_entry(data, start) if start else decode_index_header(data)
    part = "entry" if start else "header"
    assert str(caught.value) == f"index {part} {field} at offset {start + at}: -1 is negative"


def test_a_negative_slot_is_refused() -> None:
    with pytest.raises(FormatError, match="index slot newest entry at offset 40: -1 is negative"):
        decode_index_slot(bytes(40) + b"\xff" * 4, 40)


def test_incomplete_headers_entries_and_slots_are_refused() -> None:
    with pytest.raises(FormatError, match="index header at offset 0: needs 40 bytes, 39 are left"):
        decode_index_header(bytes(39))
    with pytest.raises(FormatError, match="index entry at offset 460: needs 20 bytes, 19 are left"):
        decode_index_entry(bytes(479), 460)
    with pytest.raises(FormatError, match="index slot at offset 40: needs 4 bytes, 2 are left"):
        decode_index_slot(bytes(42), 40)


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FormatError, match="index header entry count at offset 36: 2147483648"):
        encode_index_header(IndexHeader(entry_count=2**31))


@pytest.mark.parametrize(
    "geometry", [(100, 400), (1, 4), (DEFAULT_SLOTS, DEFAULT_ENTRIES), (DEFAULT_SLOTS, 7)]
)
def test_a_usual_geometry_is_inferred_from_the_size(geometry: tuple[int, int]) -> None:
    assert infer_geometry(index_file_size(*geometry)) == geometry


@pytest.mark.parametrize("size", [0, 40, 41, 124 + 4, 35_896])
def test_a_size_without_a_geometry_is_refused(size: int) -> None:
    with pytest.raises(FormatError, match="fits neither 4 entries per slot nor the default slots"):
        infer_geometry(size)


@given(st.integers(2, 300), st.integers(3, 300), st.integers(2, 299), st.integers(0, 99))
def test_any_geometry_is_found_from_the_content(
    slots: int, room: int, keys: int, seed: int
) -> None:
    geometry = IndexGeometry(slots, room)
    data = index_file(geometry, min(keys, room - 1), seed)
    found = find_geometry(memoryview(data))
    # With few keys several tables may agree; the one found must then serve as well.
    assert index_file_size(*found) == len(data)
    if keys >= 20:
        assert found == geometry


def test_a_file_without_keys_has_the_usual_geometry() -> None:
    assert find_geometry(bytes(index_file_size(100, 400))) == (100, 400)


def test_a_torn_file_has_the_geometry_of_its_size() -> None:
    """The header says more than the entries: the size decides."""
    data = index_file(IndexGeometry(100, 400), keys=50)
    header = decode_index_header(data)
    data[:40] = encode_index_header(header._replace(entry_count=header.entry_count + 3))
    assert find_geometry(data) == (100, 400)


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=name_of)
def test_golden_files_re_encode(path: Path) -> None:
    data = path.read_bytes()
    slots, entries = geometry = find_geometry(data)
    assert geometry == golden_geometry(path)
    table = [decode_index_slot(data, slot_at(slot)) for slot in range(slots)]
    again = encode_index_header(decode_index_header(data))
    again += b"".join(newest.to_bytes(4, "big") for newest in table)
    again += b"".join(
        INDEX_ENTRY.struct.pack(*decode_index_entry(data, entry_at(slots, number)))
        for number in range(entries)
    )
    assert again == data


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=name_of)
def test_golden_chains_reach_every_entry(path: Path) -> None:
    data = path.read_bytes()
    slots = golden_geometry(path).slots
    reached = set()
    for slot in range(slots):
        number = decode_index_slot(data, slot_at(slot))
        while number:
            entry = decode_index_entry(data, entry_at(slots, number))
            assert entry.key_hash % slots == slot
            assert entry.previous < number
            reached.add(number)
            number = entry.previous
    assert reached == set(range(1, decode_index_header(data).next_entry))
