"""Java's string hash, against values that Java computed and against its definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.format.values.javahash import index_key_hash, java_hash, java_text

FROM_JAVA = [
    ("", 0),
    ("a", 97),
    ("TagA", 2598919),
    ("Tag0", 2598902),  # tags code in the golden consume queue
    ("中文", 646394),
    ("hello world", 1794106052),
    ("polygenelubricants", -(2**31)),
    ("\ud83d", 55357),
    ("\U0001f600", 1772899),  # 0xD83D * 31 + 0xDE00: two units, not one code point
]


def by_definition(units: list[int]) -> int:
    power: int = 1
    total = 0
    for unit in reversed(units):
        total += unit * power
        power *= 31
    return (total + 2**31) % 2**32 - 2**31


def utf16(text: str) -> list[int]:
    units = []
    for char in map(ord, text):
        if char > 0xFFFF:
            units += [0xD800 + (char - 0x10000 >> 10), 0xDC00 + (char - 0x10000 & 0x3FF)]
        else:
            units.append(char)
    return units


@pytest.mark.parametrize(("text", "value"), FROM_JAVA)
def test_hashes_are_those_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text(st.characters(), max_size=200))
def test_hashes_follow_the_definition(text: str) -> None:
    """Any code points, lone surrogates too."""
    assert java_hash(text) == by_definition(utf16(text))


@given(st.text(st.characters(codec="utf-8")))
def test_text_is_utf8(text: str) -> None:
    assert java_text(text.encode()) == text


@pytest.mark.parametrize(
    ("raw", "replaced"),
    [  # as Java 17 decodes them
        (b"\xffB", 1),
        (b"\xe4\xb8B", 1),
        (b"\xf0\x9f\x98B", 1),
        (b"\xc0\x80B", 2),
        (b"\xe0\x80\x80B", 3),
        (b"\xf4\x90\x80\x80B", 4),
        (b"\xed\xa0\x80B", 1),
        (b"\xed\xa0B", 1),
        (b"\xed\xa0\x80\x80B", 2),
    ],
)
def test_bytes_that_are_not_utf8(raw: bytes, replaced: int) -> None:
    assert java_text(raw) == "\ufffd" * replaced + "B"


def test_hashes_of_keys_are_those_of_a_java_index() -> None:
    """Entries 1 to 3 of its index: the unique key, then the two keys of the first message."""
    assert index_key_hash("T1", "0A01020300002A9F0000000000000000") == 0x7E84F479
    assert index_key_hash("T1", "k0") == 0x04B68D0B
    assert index_key_hash("T1", "common") == 0x734746D1


@given(st.text(max_size=40), st.text(max_size=40))
def test_index_key_hash_is_never_negative(topic: str, key: str) -> None:
    value = index_key_hash(topic, key)
    assert 0 <= value < 2**31
    assert value == abs(java_hash(f"{topic}#{key}")) % 2**31


def test_the_hash_without_absolute_value_counts_as_0() -> None:
    """Java's Math.abs of the smallest int is negative; RocketMQ turns that into 0."""
    key = "".join(map(chr, units_hashing_to(-(2**31), prefix="T#")))
    assert java_hash(f"T#{key}") == -(2**31)
    assert index_key_hash("T", key) == 0


def units_hashing_to(value: int, prefix: str) -> list[int]:
    """Return units below 0xD800 that, appended to ``prefix``, give the wanted hash."""
    units = 7
    rest = (value - java_hash(prefix) * 31**units) % 2**32
    digits = [0] * units
    for i in reversed(range(units)):
        rest, digits[i] = divmod(rest, 31)
    return digits
