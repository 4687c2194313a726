"""JSON headers: the same with orjson and with Python's json module."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import require

from firetrail.errors import ProtocolError
from firetrail.remoting.wire import json_header
from firetrail.remoting.wire.codes import Language, Serialize
from firetrail.remoting.wire.command import RemotingCommand

HEADER = {
    "code": 310,
    "extFields": {"b": "T1", "i": 'K\x01v"\\\x02'},
    "flag": 2,
    "language": "CPP",
    "opaque": -7,
    "remark": "bütter",
    "serializeTypeCurrentRPC": "JSON",
    "version": 453,
}
COMMAND = RemotingCommand(
    310,
    {"b": "T1", "i": 'K\x01v"\\\x02'},
    b"body",
    "bütter",
    -7,
    2,
    Language.CPP,
    453,
    Serialize.JSON,
)

text = st.text(max_size=12)
valid_text = st.text(st.characters(codec="utf-8"), max_size=12)
int32 = st.integers(-(2**31), 2**31 - 1)
values = st.one_of(
    st.none(),
    st.booleans(),
    int32,
    valid_text,
    st.sampled_from([language.name for language in Language]),
    st.dictionaries(
        valid_text, st.one_of(valid_text, int32, st.none(), st.lists(int32)), max_size=3
    ),
)


@contextmanager
def without_orjson() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_header, "_LOADS", json_header._loads)
        patch.setattr(json_header, "_DUMPS", json_header._dumps)
        yield


def outcome(function: Callable[..., Any], *arguments: object) -> object:
    try:
        return function(*arguments)
    except ProtocolError:
        return ProtocolError


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
@pytest.mark.parametrize("ascii", [True, False])
def test_headers_of_clients_are_parsed(separators: tuple[str, str], ascii: bool) -> None:
    header = json.dumps(HEADER, separators=separators, ensure_ascii=ascii).encode()
    assert json_header.decode(header + b" \n", b"body") == COMMAND
    with without_orjson():
        assert json_header.decode(header + b" \n", b"body") == COMMAND


def test_truncated_headers_are_refused() -> None:
    whole = json_header.encode(COMMAND)
    for end in range(len(whole)):
        with pytest.raises(ProtocolError, match="not JSON"):
            json_header.decode(whole[:end], b"")


@given(st.dictionaries(st.sampled_from(sorted(HEADER)), values))
def test_headers_are_read_in_the_same_way_without_orjson(members: dict[str, Any]) -> None:
    require("orjson")
    header = json.dumps(members).encode()
    expected = outcome(json_header.decode, header, b"body")
    with without_orjson():
        assert outcome(json_header.decode, header, b"body") == expected


REFUSED = None
VALUES = {
    b"18446744073709551615": "18446744073709551615",
    b"18446744073709551616": "1.8446744073709552e+19",
    b"-9223372036854775808": "-9223372036854775808",
    b"-9223372036854775809": "-9.223372036854776e+18",
    b"-0": "0",
    b"-0.0": "-0.0",
    b"1E5": "100000.0",
    b"1e-400": "0.0",
    b"123456789012345678901234.5": "1.2345678901234569e+23",
    b'"\\ud83d\\ude00"': "\U0001f600",
    b'"\x7f\xc3\xa9"': "\x7fé",
    **dict.fromkeys([b"NaN", b"Infinity", b"-Infinity", b"1e400", b"1" * 400, b"01"], REFUSED),
    **dict.fromkeys([b'"\\ud800"', b'"\\ude00\\ud83d"', b'"\xed\xa0\x80"', b'"\x00"'], REFUSED),
}


@pytest.mark.parametrize("has_orjson", [True, False])
def test_every_value_has_one_outcome(has_orjson: bool) -> None:
    if has_orjson:
        require("orjson")
    with nullcontext() if has_orjson else without_orjson():
        for value, expected in VALUES.items():
            header = b'{"code":1,"extFields":{"f":%s}}' % value
            found: Any = outcome(json_header.decode, header, b"")
            assert (None if found is ProtocolError else found.fields["f"]) == expected, value
        for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
            header = '{"code":1}'.encode(encoding)
            assert outcome(json_header.decode, header, b"") is ProtocolError, encoding


@given(st.builds(RemotingCommand, int32, st.dictionaries(text, text), remark=st.none() | text))
def test_headers_are_written_in_the_same_way_without_orjson(command: RemotingCommand) -> None:
    require("orjson")
    header = json_header.encode(command)
    with without_orjson():
        assert json_header.encode(command) == header
    json_header.decode(header, b"")
