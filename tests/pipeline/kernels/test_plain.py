"""Records whose fields determine all of their bytes."""

from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.oddlog import ODD_RECORDS, PLAIN_RECORDS, write_log

from firetrail.errors import IllegalMessageError
from firetrail.format.columns import Columns
from firetrail.format.kernels.encode import RecordFields, RecordWriter
from firetrail.format.kernels.scan import scan
from firetrail.format.properties import decode_properties, encode_properties
from firetrail.pipeline.kernels.arrow import Rows
from firetrail.pipeline.kernels.plain import OPEN, OTHER, PLAIN, classify


def kinds_of(content: bytes) -> list[int]:
    columns = Columns(200)
    rows, _, _ = scan(content, 0, len(content), 0, columns.table, 0)
    kinds = bytearray(rows)
    picked = Rows(memoryview(content), columns.table, array("q", range(rows)), rows)
    assert classify(picked, kinds) == kinds.count(OTHER)
    return list(kinds)


def test_every_odd_record_is_found(tmp_path: Path) -> None:
    write_log(tmp_path / "plain", PLAIN_RECORDS)
    write_log(tmp_path / "odd", ODD_RECORDS)
    (plain,) = (tmp_path / "plain" / "commitlog").iterdir()
    (odd,) = (tmp_path / "odd" / "commitlog").iterdir()
    expected = [OPEN if r.get("properties", b"").endswith(b"t") else PLAIN for r in PLAIN_RECORDS]
    assert kinds_of(plain.read_bytes()) == expected
    assert kinds_of(odd.read_bytes()) == [OTHER] * len(ODD_RECORDS)


def test_a_short_topic_in_the_long_form_is_not_plain() -> None:
    """No writer produces such a record today: magic v2 with a topic that fits into v1."""
    content = bytearray(400)
    long_topic = b"t" * 128
    fields = RecordFields(long_topic, bytes(8), bytes(8))
    RecordWriter(content).write(0, fields)
    topic_at = content.index(b"\x00\x80t")
    assert kinds_of(bytes(content[: fields.size])) == [PLAIN]
    content[topic_at : topic_at + 2] = (5).to_bytes(2, "big")
    content[topic_at + 7 : topic_at + 9] = bytes(2)
    content[0:4] = (topic_at + 9).to_bytes(4, "big")
    assert kinds_of(bytes(content[: topic_at + 9])) == [OTHER]


@given(st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"b", b"\xc3\xa9", b"\xa9"]), max_size=12))
def test_plain_properties_come_back(parts: list[bytes]) -> None:
    raw = b"".join(parts)
    content = bytearray(200)
    fields = RecordFields(b"T", bytes(8), bytes(8), properties=raw)
    RecordWriter(content).write(0, fields)
    (kind,) = kinds_of(bytes(content[: fields.size]))
    try:
        again = encode_properties(decode_properties(raw))
    except (
        IllegalMessageError
    ):  # a value that contains the separator of names, which readers accept
        again = b"".join(
            f"{name}\x01{value}\x02".encode() for name, value in decode_properties(raw).items()
        )
    if kind == PLAIN:
        assert again == raw
    elif kind == OPEN:
        assert again[:-1] == raw
    else:
        assert raw not in (again, again[:-1])


def test_room_is_checked() -> None:
    rows = Rows(memoryview(b"x"), Columns(1).table, array("q", [0]), 0)
    assert classify(rows, bytearray(0)) == 0
    content = bytearray(200)
    fields = RecordFields(b"T", bytes(8), bytes(8))
    RecordWriter(content).write(0, fields)
    columns = Columns(1)
    scan(content, 0, fields.size, 0, columns.table, 0)
    with pytest.raises(ValueError, match="room for 0, 1 needed"):
        classify(Rows(memoryview(content), columns.table, array("q", [0]), 1), bytearray(0))
