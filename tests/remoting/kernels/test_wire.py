"""Frames and JSON headers: parsed as by Python's json module, or not at all."""

from __future__ import annotations

import json
from struct import pack
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firetrail.remoting.kernels.wire import JsonWriter, cut_frames, read_json_header

LANGUAGES = {"JAVA": 0, "CPP": 1}
HEADER = {
    "code": 310,
    "extFields": {"b": "T1", "i": 'K\x01v"\\\x02'},
    "flag": 2,
    "language": "JAVA",
    "opaque": -7,
    "serializeTypeCurrentRPC": "JSON",
    "version": 453,
}
MEMBERS = (310, HEADER["extFields"], b"body", None, -7, 2, 0, 453, "json")

text = st.text(max_size=12)
int32 = st.integers(-(2**31), 2**31 - 1)
names = st.sampled_from([*HEADER, "remark"])
values = st.one_of(
    st.none(),
    st.booleans(),
    int32,
    st.floats(allow_nan=False),
    text,
    st.sampled_from(sorted(LANGUAGES)),
    st.dictionaries(text, st.one_of(text, int32, st.none(), st.lists(int32)), max_size=3),
)


def read(header: bytes) -> tuple[Any, ...] | None:
    return read_json_header(header, b"body", LANGUAGES, "json")


def expected(members: dict[str, Any]) -> tuple[Any, ...]:
    """Return the result that the kernel must have for the members of a header."""
    fields = {name: str(value) for name, value in members.get("extFields", {}).items()}
    return (
        members.get("code", 0),
        fields,
        b"body",
        members.get("remark"),
        members.get("opaque", 0),
        members.get("flag", 0),
        LANGUAGES[members["language"]],
        members.get("version", 0),
        "json",
    )


class TestReading:
    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
    def test_headers_of_clients_are_parsed(self, separators: tuple[str, str]) -> None:
        assert read(json.dumps(HEADER, separators=separators).encode()) == MEMBERS
        assert read(json.dumps(HEADER, indent=1).encode() + b" \n") == MEMBERS

    def test_a_remark_is_parsed(self) -> None:
        found = read(json.dumps(HEADER | {"remark": "bütter"}, ensure_ascii=False).encode())
        assert found is not None and found[3] == "bütter"

    def test_numeric_field_values_become_text(self) -> None:
        found = read(b'{"extFields":{"a":-12,"b":0},"language":"CPP"}')
        assert found is not None and found[1] == {"a": "-12", "b": "0"}

    @pytest.mark.parametrize(
        "header",
        [
            b"",
            b"{}",
            b"[]",
            b'{"code":1}',  # no language
            b'{"code":01,"language":"JAVA"}',
            b'{"code":-0,"language":"JAVA"}',
            b'{"code":1.5,"language":"JAVA"}',
            b'{"code":1e3,"language":"JAVA"}',
            b'{"code":2147483648,"language":"JAVA"}',
            b'{"code":99999999999999999999,"language":"JAVA"}',
            b'{"code":"1","language":"JAVA"}',
            b'{"code":,"language":"JAVA"}',
            b'{"language":"KLINGON"}',
            b'{"language":"JAVA","more":1}',
            b'{"language":"JAVA"',
            b'{"language":"JAVA"}}',
            b'{"language":"JAVA",}',
            b'{"language":"JAV',
            b'{"language":"JAVA\\',
            b'{"language":"JAVA","remark":"\\u00e9"}',
            b'{"language":"JAVA","remark":"\\u12"}',
            b'{"language":"JAVA","remark":"\\u00zz"}',
            b'{"language":"JAVA","remark":"\\u00\x10\x10"}',
            b'{"language":"JAVA","remark":"\\x"}',
            b'{"language":"JAVA","remark":"\n"}',
            b'{"language":"JAVA","remark":"\xff"}',
            b'{"language":"JAVA","remark":null}',
            b'{"language":"JAVA","extFields":null}',
            b'{"language":"JAVA","extFields":{"a":true}}',
            b'{"language":"JAVA","extFields":{"a":"b"',
            b'{"language":"JAVA","extFields":{"a":"b"]}',
        ],
    )
    def test_unusual_headers_return_none(self, header: bytes) -> None:
        assert read(header) is None

    def test_truncated_headers_return_none(self) -> None:
        whole = json.dumps(HEADER).encode()
        assert all(read(whole[:end]) is None for end in range(len(whole)))

    @given(st.dictionaries(names, values), st.booleans())
    def test_any_members_are_parsed_as_by_json_or_not_at_all(
        self, members: dict[str, Any], ascii: bool
    ) -> None:
        header = json.dumps(members, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
        found = read(header)
        if found is not None:
            assert found == expected(json.loads(header))

    @given(st.binary(max_size=60))
    @example(b'{"language":"JAVA"}')
    def test_random_headers_are_parsed_as_by_json_or_not_at_all(self, header: bytes) -> None:
        found = read(header)
        if found is not None:
            assert found == expected(json.loads(header))


class TestWriting:
    @given(
        int32,
        st.dictionaries(text, text, max_size=4),
        int32,
        int32,
        st.none() | text,
        int32,
        st.integers(0, 2**31 - 3000),
    )
    def test_headers_are_written_as_by_json(
        self,
        code: int,
        fields: dict[str, str],
        flag: int,
        opaque: int,
        remark: str | None,
        version: int,
        size: int,
    ) -> None:
        members: dict[str, Any] = {"code": code}
        if fields:
            members["extFields"] = fields
        members |= {"flag": flag, "language": "JAVA", "opaque": opaque}
        if remark is not None:
            members["remark"] = remark
        members |= {"serializeTypeCurrentRPC": "JSON", "version": version}
        written = JsonWriter().frame(code, fields, flag, "JAVA", opaque, remark, version, size)
        try:
            header = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:  # a lone surrogate
            assert written is None
            return
        assert written == pack(">ii", 4 + len(header) + size, len(header)) + header

    def test_headers_that_are_too_long_return_none(self) -> None:
        writer = JsonWriter()
        for size in range(0, 3000, 7):
            written = writer.frame(0, {"a": "x" * size}, 1, "JAVA", 7, None, 0, 0)
            assert written is None or b"x" * size in written
        assert writer.frame(0, {"a": "x" * 100}, 1, "JAVA", 7, None, 0, 0) is not None
        assert writer.frame(0, {"a": "x" * 2048}, 1, "JAVA", 7, None, 0, 0) is None
        assert writer.frame(0, {}, 1, "JAVA", 7, None, 0, 2**31 - 50) is None

    def test_fields_that_are_not_text_return_none(self) -> None:
        fields: Any = {"a": 1}
        assert JsonWriter().frame(0, fields, 1, "JAVA", 7, None, 0, 0) is None


def frame(header: bytes, body: bytes, mark: int = 0) -> bytes:
    return pack(">iI", 4 + len(header) + len(body), mark << 24 | len(header)) + header + body


class TestCutting:
    @given(
        st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=9), st.binary(max_size=9))),
        st.integers(0, 40),
    )
    def test_complete_frames_are_cut(
        self, frames: list[tuple[int, bytes, bytes]], cut: int
    ) -> None:
        parts = [frame(header, body, mark) for mark, header, body in frames]
        stream = b"".join(parts)
        found, rest_at = cut_frames(stream[: max(len(stream) - cut, 0)], 1000, 1000)
        assert found == frames[: len(found)]
        assert rest_at == sum(map(len, parts[: len(found)]))
        assert len(stream) - rest_at - cut < max(map(len, parts), default=1)

    @pytest.mark.parametrize(
        "prefix",
        [pack(">iI", length, header) for length, header in ((-1, 0), (3, 0), (101, 5), (50, 47))],
    )
    def test_a_frame_above_the_limit_is_left(self, prefix: bytes) -> None:
        first = frame(b"h", b"b")
        assert cut_frames(first + prefix + bytes(200), 100, 46) == ([(0, b"h", b"b")], len(first))
