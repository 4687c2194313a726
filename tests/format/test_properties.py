"""The properties string: both forms, Java's parser rules, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import IllegalMessageError
from firetrail.format.properties import (
    closed_properties,
    decode_properties,
    encode_pairs,
    encode_properties,
    get_property,
)

# As 4.9.8 wrote it for the first message of the golden store: no separator at the end.
GOLDEN = (
    b"KEYS\x01k0 common\x02UNIQ_KEY\x010A01020300002A9F0000000000000000\x02TAGS\x01Tag0",
    {"KEYS": "k0 common", "UNIQ_KEY": "0A01020300002A9F0000000000000000", "TAGS": "Tag0"},
)

parts = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)
properties = st.dictionaries(parts, parts, max_size=6)
# Few different bytes, so that separators, repeated names and near misses are common.
messy = st.lists(st.sampled_from([b"A", b"B", b"\x01", b"\x02", b"\xff"]), max_size=14).map(
    b"".join
)


def test_properties_of_java_round_trip() -> None:
    raw, expected = GOLDEN
    assert decode_properties(raw) == expected
    assert encode_properties(expected) == raw + b"\x02"


@given(properties)
def test_round_trip_with_both_endings(expected: dict[str, str]) -> None:
    raw = encode_properties(expected)
    assert decode_properties(raw) == expected
    assert decode_properties(memoryview(raw)) == expected
    assert decode_properties(raw.removesuffix(b"\x02")) == expected
    assert list(decode_properties(raw)) == list(expected)


@given(properties, parts)
def test_get_equals_decode(expected: dict[str, str], other: str) -> None:
    raw = encode_properties(expected)
    for name in [*expected, other]:
        assert get_property(raw, name) == expected.get(name)
        assert get_property(memoryview(raw.removesuffix(b"\x02")), name) == expected.get(name)


@given(messy, st.sampled_from(["A", "B", "AB", "BA", "A\x01", "\x02A", ""]))
def test_get_equals_decode_on_anything(raw: bytes, name: str) -> None:
    assert get_property(raw, name) == decode_properties(raw).get(name)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"\x02\x02", {}),
        (b"A", {}),
        (b"A\x01", {}),
        (b"A\x01\x02B\x01b\x02", {"B": "b"}),
        (b"\x01a\x02B\x01b", {"B": "b"}),
        (b"noseparator\x02B\x01b", {"B": "b"}),
        (b"A\x01one\x01two\x02", {"A": "one\x01two"}),
        (b"A\x011\x02A\x012\x02", {"A": "2"}),
        (b"A\x011\x02A\x01\x02", {"A": "1"}),
        (b"A\x01\xff\x02", {"A": "\ufffd"}),
    ],
)
def test_odd_properties_are_read_as_by_java(raw: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(raw) == expected
    for name in ["A", "B"]:
        assert get_property(raw, name) == expected.get(name)


def test_get_does_not_take_the_end_of_a_name_for_the_name() -> None:
    raw = encode_properties({"MAX_OFFSET": "9", "X": "OFFSET", "OFFSET": "1"})
    assert get_property(raw, "OFFSET") == "1"
    assert get_property(raw, "FSET") is None


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"": "v"}, "property '': its name is empty"),
        ({"ok": "1", "TAGS": ""}, "property 'TAGS': its value is empty"),
        (
            {"ok": "1", "a": "x\x02y"},
            r"property 'a': its value contains '\x02', which separates properties and cannot be"
            " escaped",
        ),
        ({"a": "x\x01y"}, r"property 'a': its value contains '\x01'"),
        ({"a\x01": "x"}, r"property 'a\x01': its name contains '\x01'"),
        ({"a\x02": "x"}, r"property 'a\x02': its name contains '\x02'"),
        ({"a": "\ud800"}, "property 'a': its value contains half of a surrogate pair"),
    ],
)
def test_properties_that_cannot_be_stored_are_refused(
    properties: dict[str, str], message: str
) -> None:
    with pytest.raises(IllegalMessageError) as caught:
        encode_properties(properties)
    assert message in str(caught.value)


@given(properties)
def test_more_properties_can_follow_closed_ones(before: dict[str, str]) -> None:
    raw = encode_properties(before)
    assert closed_properties(raw) == raw
    assert closed_properties(raw[:-1] if raw else raw) == raw


@given(st.lists(st.tuples(parts, parts), max_size=6))
def test_pairs_are_encoded_as_they_are(pairs: list[tuple[str, str]]) -> None:
    raw = encode_pairs(pairs)
    assert raw == b"".join(encode_properties({name: value}) for name, value in pairs)
    assert decode_properties(raw) == dict(pairs)
