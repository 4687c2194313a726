"""Encoding and decoding of typed headers, and missing or invalid fields."""

from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import RequestError
from firetrail.remoting.messages import headers
from firetrail.remoting.messages.typed_header import (
    GroupName,
    Header,
    Long,
    OtherText,
    ShownName,
    TopicName,
    TypedFields,
)
from firetrail.remoting.wire.codes import ResponseCode, Serialize
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import decode_frame, encode_frame

KINDS = [
    kind
    for kind in vars(headers).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind is not Header
]
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    **dict.fromkeys((str, TopicName, GroupName, ShownName, OtherText), st.text(max_size=9)),
    int: st.integers(-(2**31), 2**31 - 1),
    Long: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
}


def any_of(kind: type[Header]) -> st.SearchStrategy[Header]:
    hints = get_type_hints(kind, include_extras=True)
    strategies = {}
    for field in fields(kind):
        hint = hints[field.name]
        if hint in VALUES:
            strategies[field.name] = VALUES[hint]
        else:
            strategies[field.name] = st.none() | VALUES[hint.__args__[0]]
    return st.builds(kind, **strategies)


@given(st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_a_header_survives_encoding_and_decoding(kind: type[Header], data: st.DataObject) -> None:
    header = data.draw(any_of(kind))
    wire = header.encode()
    assert all(isinstance(value, str) for value in wire.values())
    assert kind.decode(wire | {"unknown": "x"}) == header


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_required_field_is_an_error(kind: type[Header]) -> None:
    if any(field.default is MISSING for field in fields(kind)):
        with pytest.raises(RequestError, match=f"of {kind.__name__} is missing") as caught:
            kind.decode({})
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
    else:
        assert kind.decode({}).encode() == {}


@pytest.mark.parametrize("value", ["", "x", "1.0", str(2**31), str(-(2**31) - 1), "9" * 5000])
def test_invalid_numbers_are_errors(value: str) -> None:
    wire = {"topic": "T", "queueId": value}
    with pytest.raises(RequestError, match=r"queueId of QueueHeader is .*32-bit number"):
        headers.QueueHeader.decode(wire)


@pytest.mark.parametrize(("value", "meant"), [("true", True), ("1", True), ("0", False)])
def test_booleans_are_decoded_as_clients_write_them(value: str, meant: bool) -> None:
    """The C++ client writes 1 for a batch."""
    wire = headers.SendHeader("g", "T", "TBW102", 4, 0, 0, 1, 0).encode()
    assert headers.SendHeader.decode(wire | {"batch": value}).batch is meant


def test_headers_are_encoded_with_the_names_of_rocketmq() -> None:
    assert headers.UnregisterClientHeader("c").encode() == {"clientID": "c"}
    assert headers.ResetOffsetHeader("T", "G", 5).encode() == {
        "topic": "T",
        "group": "G",
        "timestamp": "5",
        "isForce": "false",
    }
    v2 = headers.SendHeaderV2("g", "T", "TBW102", 4, 2, 0, 1, 0, batch=True)
    assert v2.encode() == {
        **{"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1", "h": "0"},
        "m": "true",
    }


def test_fields_within_a_process_are_encoded_when_they_are_read() -> None:
    header = headers.TopicHeader("T")
    wire = TypedFields(header)
    assert headers.TopicHeader.decode(wire) is header
    assert dict(wire) == header.encode()
    assert len(wire) == len(header.encode())


@pytest.mark.parametrize("serialize", list(Serialize))
def test_fields_within_a_process_can_be_sent_to_others(serialize: Serialize) -> None:
    header = headers.TopicHeader("T")
    command = RemotingCommand(1, TypedFields(header), serialize=serialize)
    frame = b"".join(encode_frame(command))
    assert decode_frame(frame).fields == header.encode()


def test_fields_of_another_kind_of_header_are_decoded() -> None:
    kind = next(kind for kind in KINDS if kind.__name__ == "SendHeader")
    short = headers.SendHeaderV2("g", "T", "TBW102", 4, 0, 0, 1, 0)
    with pytest.raises(RequestError, match="producerGroup"):
        kind.decode(TypedFields(short))
