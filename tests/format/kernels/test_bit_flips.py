"""Every bit of a record flipped, one at a time, and the reaction of the scan, field by field.

A flip that a checksum covers is always found. For the others, the tables below say what finds them:
a length or a constant that no longer fits (a Stop), or nothing at all (``LIMIT``: the scan reads on
to the end). The property CRC of 5.2 was added for the flips that ``BODY`` does not find.
"""

from array import array

import pytest
from tests.format.kernels.drafts import (
    ANY_RECORD,
    V6,
    Draft,
    entry_room,
    fenced,
    pack_log,
    scan_all,
)

from firetrail.format.columns import Check, Stop
from firetrail.format.kernels.derive import derive_entries, derive_units

FOLLOWING = [Draft()] * 4
"""Records that follow the damaged one, so that a size may grow without leaving the log."""

SIZES = {Stop.SIZE, Stop.CUT}
LENGTHS = {Stop.BODY_LENGTH, Stop.TOPIC_LENGTH, Stop.PROPERTIES_LENGTH}
UNSEEN = {Stop.LIMIT}

# field: (bytes, what a flip of it leads to where bodies are checked)
FIELDS: dict[str, tuple[int, set[Stop]]] = {
    "total size": (4, SIZES | LENGTHS),
    "magic": (4, {Stop.MAGIC}),
    "body crc": (4, {Stop.BODY_CRC}),
    "queue id": (4, UNSEEN),
    "flag": (4, UNSEEN),
    "queue offset": (8, UNSEEN),
    "physical offset": (8, {Stop.PHYSICAL_OFFSET}),
    "sys flag": (4, UNSEEN | LENGTHS),  # lengths: the bits that say IPv6
    "born time": (8, UNSEEN),
    "born host": (8, UNSEEN),
    "store time": (8, UNSEEN),
    "store host": (8, UNSEEN),
    "reconsume times": (4, UNSEEN),
    "prepared offset": (8, UNSEEN),
    "body length": (4, LENGTHS),
    "body": (40, {Stop.BODY_CRC}),
    "topic length": (1, {Stop.TOPIC_LENGTH, Stop.PROPERTIES_LENGTH}),
    "topic": (5, UNSEEN),
    "properties length": (2, {Stop.PROPERTIES_LENGTH}),
    "properties": (21, UNSEEN),
}
CRC_FIELDS: dict[str, tuple[int, set[Stop]]] = {
    "crc mark": (9, {Stop.PROPERTY_CRC}),
    "crc digits": (10, {Stop.PROPERTY_CRC}),
    "crc end": (1, {Stop.PROPERTY_CRC}),
}


def flips(draft: Draft, start: int, size: int, check: Check) -> set[Stop]:
    """All that happens when the bits of ``size`` bytes at ``start`` are flipped."""
    good = pack_log([draft, *FOLLOWING])
    found = set()
    for bit in range(8 * start, 8 * (start + size)):
        log = bytearray(good)
        log[bit // 8] ^= 1 << bit % 8
        found.add(follow(log, check))
    return found


def follow(log: bytearray, check: Check) -> Stop:
    """Scan, and derive whatever was accepted: none of it may touch what is not there."""
    data = fenced(log)
    columns, rows, at, stop = scan_all(data, check=check)
    if stop.is_damage:
        assert (rows, at) == (0, 0), "everything before the damage, and nothing after it"
    derive_units(data, columns.table, rows, array("q", [1000]))
    derive_entries(data, columns.table, 0, rows, entry_room())
    return stop


def places(fields: dict[str, tuple[int, set[Stop]]]) -> list[tuple[str, int, int, set[Stop]]]:
    found, at = [], 0
    for name, (size, stops) in fields.items():
        found.append((name, at, size, stops))
        at += size
    return found


def each(fields: dict[str, tuple[int, set[Stop]]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("start", "size", "stops"),
        [pytest.param(*place, id=name) for name, *place in places(fields)],
    )


PLAIN = Draft(body=bytes(range(40)), properties=b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02")
SEALED = Draft(body=PLAIN.body, properties=PLAIN.properties, property_crc=True)


def test_the_tables_cover_the_records() -> None:
    assert sum(size for size, _ in FIELDS.values()) == PLAIN.size
    assert sum(size for size, _ in (FIELDS | CRC_FIELDS).values()) == SEALED.size


@each(FIELDS)
def test_bodies_checked(start: int, size: int, stops: set[Stop]) -> None:
    assert flips(PLAIN, start, size, Check.BODY) <= stops


@each(FIELDS)
def test_nothing_checked(start: int, size: int, stops: set[Stop]) -> None:
    found = flips(PLAIN, start, size, Check.NONE)
    assert found <= (stops - {Stop.BODY_CRC}) | (UNSEEN if Stop.BODY_CRC in stops else set())


@each(FIELDS | CRC_FIELDS)
def test_records_checked(start: int, size: int, stops: set[Stop]) -> None:
    """With a property CRC, no flip stays unseen."""
    found = flips(SEALED, start, size, Check.RECORD)
    if start < SEALED.size - 20:
        assert found <= (stops - UNSEEN - {Stop.BODY_CRC}) | {Stop.PROPERTY_CRC}
    else:
        assert found == stops


@pytest.mark.parametrize("name", ["body crc", "body"])
def test_what_the_body_crc_covers_is_always_found(name: str) -> None:
    _, start, size, _ = next(place for place in places(FIELDS) if place[0] == name)
    assert flips(PLAIN, start, size, Check.BODY) == {Stop.BODY_CRC}


@pytest.mark.slow
@pytest.mark.parametrize(
    "draft",
    [
        Draft(b"", b"", b""),
        Draft(b"", b"", b"", born_host=V6, store_host=V6),
        Draft(b"b", b"T" * 128, b"UNIQ_KEY\x01u\x02DELAY\x013", born_host=V6),
        Draft(b"b", b"SCHEDULE_TOPIC_XXXX", b"DELAY\x013\x02", store_host=V6, property_crc=True),
    ],
)
@pytest.mark.parametrize("check", ANY_RECORD)
def test_any_record_survives(draft: Draft, check: Check) -> None:
    """As the last one of the log: every length that grows leads out of it."""
    good = draft.pack(0)
    assert scan_all(fenced(good), check=check)[3] == Stop.LIMIT
    for bit in range(8 * len(good)):
        log = bytearray(good)
        log[bit // 8] ^= 1 << bit % 8
        follow(log, check)
