"""fastjson's JSON, both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.files.config_json import DEPTH_MAX, ObjectKey, compact, dumps, loads

GOLDEN = Path(__file__).parents[2] / "golden"

TOPICS = """\
{
	"dataVersion":{
		"counter":3,
		"timestamp":1794725565878
	},
	"topicConfigTable":{
		"T1":{
			"order":false,
			"perm":6,
			"readQueueNums":4,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"T1",
			"topicSysFlag":0,
			"writeQueueNums":4
		}
	}
}"""
OFFSETS = '{\n\t"offsetTable":{\n\t\t"T1@G":{0:5,1:7\n\t\t},\n\t\t"T2@G":{0:0\n\t\t}\n\t}\n}'

int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = int64 | st.booleans() | text
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(text, inner, max_size=4)
        | st.dictionaries(int64, inner, max_size=4)
    ),
    max_leaves=12,
)
json_values = st.recursive(
    st.none() | scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("written", [TOPICS, OFFSETS])
def test_files_of_java_are_written_unchanged(written: str) -> None:
    assert dumps(loads(written)) == written


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/config/*.json")), ids=lambda path: str(path.relative_to(GOLDEN))
)
def test_golden_files_re_encode(path: Path) -> None:
    data = path.read_bytes()
    assert dumps(loads(data)).encode() == data


def test_bare_keys_are_numbers_and_quoted_keys_are_text() -> None:
    assert loads('{"offsetTable":{1:3,12:0}}') == {"offsetTable": {1: 3, 12: 0}}
    assert loads('{"offsetTable":{"1":3,"12":0}}') == {"offsetTable": {"1": 3, "12": 0}}
    assert loads("{-1:3}") == {-1: 3}


@given(values)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert loads(dumps(value).encode()) == value


@given(json_values, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_reads_all_json(value: Any, indent: int | str | None, ascii_only: bool) -> None:
    assert loads(json.dumps(value, indent=indent, ensure_ascii=ascii_only)) == value


@given(st.text(st.sampled_from('{}[]",:\\0123 \ntrue'), max_size=12))
def test_reads_no_other_value_than_json_does(written: str) -> None:
    """Text that the standard parser accepts gives the same value here; other text is refused."""
    try:
        value = loads(written)
    except FormatError:
        with pytest.raises(ValueError):
            json.loads(written)
        return
    try:
        expected = json.loads(written, strict=False)
    except ValueError:
        return  # one of fastjson's liberties
    assert value == expected


def test_digits_inside_strings_stay_text() -> None:
    value = {"{1:2": ",3:4", "a": '"5":6,{7:8}\\'}
    assert loads(dumps(value)) == value
    assert loads('{"a":"x,1:2","b":"{3:4}"}') == {"a": "x,1:2", "b": "{3:4}"}


def test_the_liberties_of_fastjson_are_read() -> None:
    assert loads("{,'a':1,,b_1:'it',}") == {"a": 1, "b_1": "it"}
    assert loads("[1,2,]") == [1, 2]
    assert loads(r'"\v\x41\0\7\'\/"') == "\vA\0\x07'/"


def test_surrogate_pairs_are_joined() -> None:
    assert loads(r'"\ud83d\ude00"') == "\U0001f600"
    assert loads(r'"\ud83d"') == "\ud83d"


def test_the_last_of_equal_keys_counts() -> None:
    assert loads('{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({}, "{}"),
        ([], "[]"),
        ({"a": []}, '{\n\t"a":[]\n}'),
        ({"a": None, "b": 1}, '{\n\t"b":1\n}'),
        ([None], "[\n\tnull\n]"),
        ({"a": None}, "{\n}"),
        ([1], "[\n\t1\n]"),
        ([1, 2], "[\n\t1,\n\t2\n]"),
        ([{"a": 1}], '[\n\t{\n\t\t"a":1\n\t}\n]'),
        ({3: {"a": True}}, '{3:{\n\t\t"a":true\n\t}\n}'),
        ('q"\\/\b\t\n\f\r', r'"q\"\\/\b\t\n\f\r"'),
        (
            "\0\x0b\x1f\x7f\x9f\xa0\u2028\u2029",
            '"\\u0000\\u000B\\u001F\\u007F\\u009F\xa0\\u2028\\u2029"',
        ),
        ("中文", '"中文"'),
    ],
)
def test_written_form(value: Any, written: str) -> None:
    """Each compared with what fastjson 1.2 of RocketMQ 4.9.8 writes."""
    assert dumps(value) == written


@pytest.mark.parametrize(
    ("written", "offset", "detail"),
    [
        ("", 0, "expected a value"),
        ("  ", 2, "expected a value"),
        ("{", 1, "ends before '}'"),
        ('{"a":1', 6, "ends before '}'"),
        ("[1", 2, "ends before ']'"),
        ('{"a" 1}', 5, "expected ':' after the key 'a'"),
        ('{"a":1 "b":2}', 7, "expected ',' or '}'"),
        ("[1 2]", 3, "expected ',' or ']'"),
        ("[1}", 2, "expected ',' or ']'"),
        ("{1.5:1}", 4, "a bare key must be an integer"),
        ("{?:1}", 1, "expected a key"),
        ("{}\n}", 3, "unexpected text after the end of the value"),
        ('{"a":1}0}', 7, "unexpected text after the end of the value"),
        ('"abc', 0, "the string has no end"),
        (r'"abc\"', 0, "the string has no end"),
        (r'"\q"', 0, r"the string has an unknown escape \q"),
        (r'"\u12"', 0, r"the string has an unknown escape \u"),
        ("[nul]", 1, "expected a value"),
        ("NaN", 0, "expected a value"),
        ("-", 0, "expected a number"),
        ("9223372036854775808", 0, "the number does not fit in 64 bits"),
        ("9" * 5000, 0, "the number does not fit in 64 bits"),
        ("1e999", 0, "the number is too large"),
        ("[" * 100_000, DEPTH_MAX, "nested deeper than 64 levels"),
        ('{"a":' * 100_000, 5 * DEPTH_MAX, "nested deeper than 64 levels"),
        (b'{"a":"\xff"}', 6, "is not UTF-8"),
    ],
)
def test_malformed_json_is_refused_with_its_offset(
    written: str | bytes, offset: int, detail: str
) -> None:
    with pytest.raises(FormatError) as caught:
        loads(written)
    assert str(caught.value) == f"config JSON at offset {offset}: {detail}"


def test_depth_at_the_limit() -> None:
    assert loads("[" * DEPTH_MAX + "]" * DEPTH_MAX)


@pytest.mark.parametrize("value", [1.5, {1.5: 1}, {True: 1}, {"a": object()}, (1, 2), b"x"])
def test_not_written(value: Any) -> None:
    with pytest.raises(TypeError, match="config JSON"):
        dumps(value)


class TestOnTheWire:
    KEY = ObjectKey((("brokerName", "a"), ("queueId", 0), ("topic", "T1")))

    @given(values)
    def test_compact_reads_back(self, value: Any) -> None:
        assert loads(compact(value)) == loads(dumps(value))

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ({"a": {0: "x", 1: None}, "b": [1.5, True, None]}, '{"a":{0:"x"},"b":[1.5,true,null]}'),
            ({KEY: 3}, '{{"brokerName":"a","queueId":0,"topic":"T1"}:3}'),
            ({"offsetTable": {}}, '{"offsetTable":{}}'),
        ],
    )
    def test_values_are_written_without_spaces(self, value: Any, expected: str) -> None:
        assert compact(value) == expected

    def test_objects_may_be_keys(self) -> None:
        text = ' { {"brokerName" : "a", "queueId":0,"topic":"T1"} : {"x": 1} , }'
        assert loads(text) == {self.KEY: {"x": 1}}
        assert loads(dumps({"t": {self.KEY: 1}})) == {"t": {self.KEY: 1}}

    @pytest.mark.parametrize("text", ['{{"a":[]}:1}', '{{"a":{}}:1}', "{{0:1}:1}", '{{"a":1:1}'])
    def test_objects_that_are_no_keys(self, text: str) -> None:
        with pytest.raises(FormatError):
            loads(text)

    def test_keys_in_keys_are_not_endless(self) -> None:
        with pytest.raises(FormatError, match="nested deeper"):
            loads("{" * 100_000)
