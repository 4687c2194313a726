"""Handles that recall a message."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.recall_handle import RecallHandle, decode_handle

words = st.text(st.characters(blacklist_characters=" ", blacklist_categories=["Cs"]), min_size=1)


def test_a_handle_of_java_round_trips() -> None:
    text = "djEgVGltZWQgYnJva2VyLWEgMTc5NDg1MjQyMDAwMSBVMA=="
    handle = RecallHandle("Timed", "broker-a", 1794852420001, "U0")
    assert decode_handle(text) == handle
    assert handle.encode() == text


@given(words, words, st.integers(0, 10**18 - 1), words)
def test_handles_round_trip(topic: str, broker: str, time: int, key: str) -> None:
    handle = RecallHandle(topic, broker, time, key)
    assert decode_handle(handle.encode()) == handle


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty; the answer to the send has it"),
        ("%%%", "is not Base64 text"),
        ("Zürich", "is not Base64 text"),
        ("v2 T b 5 k", "is not a handle of version 1"),
        ("v1 T b 5", "is not a handle of version 1"),
        ("v1 T b 5 k k", "is not a handle of version 1"),
        ("v1 T  5 k", "is not a handle of version 1"),
        ("v1 T b soon k", "'soon' is not a time"),
        ("v1 T b 12345678901234567890 k", "is not a time"),
    ],
)
def test_other_texts_are_refused(text: str, reason: str) -> None:
    encoded = base64.urlsafe_b64encode(text.encode()).decode() if " " in text else text
    with pytest.raises(FormatError, match=f"recall handle at offset 0: .*{reason}"):
        decode_handle(encoded)


@given(st.text())
def test_any_text_decodes_or_is_refused(text: str) -> None:
    try:
        decode_handle(text)
    except FormatError:
        return
