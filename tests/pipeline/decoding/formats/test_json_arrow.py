"""The fast path of JSON against the exact rules, and against bodies that Arrow cannot bear."""

import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firetrail.pipeline.decoding import Decoded, DecoderSpec, TableSchema
from firetrail.pipeline.decoding.formats.json_arrow import ArrowReader
from firetrail.pipeline.decoding.formats.json_decoder import JsonDecoder
from firetrail.pipeline.decoding.values.json_values import DecodingRules

DDL = (
    "i int, l bigint, b boolean, d double, f float, p decimal(10,2), s string, t timestamp,"
    " n timestamp_ntz, y date, a array<int>, o struct<x: int, w: array<struct<v: timestamp>>>"
)
SCHEMA = TableSchema.from_ddl(DDL)
NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-200, 200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(
        ["NaN", "-Infinity", "1e400", "01", "1.", "-0", "0e50", "1e99999999999999999999"]
    ),
)
TIMES = st.one_of(
    st.datetimes().map(str),
    st.datetimes(timezones=st.timezones()).map(str),
    st.dates().map(str),
    st.from_regex(
        r"(0000|0001|1969|2024|9999)-(0[1-3]|12)-(29|31|01)([T ][0-2][0-9](:[0-6][0-9]"
        r"(:[0-6][0-9](\.[0-9]{1,9})?)?)?(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?)?",
        fullmatch=True,
    ),
)
DECIMALS = st.from_regex(r"[+-]?[0-9]{0,3}\.?[0-9]{0,3}([eE][+-]?[0-9]{1,3})?", fullmatch=True)
TEXTS = st.one_of(TIMES, DECIMALS, st.text(max_size=5)).map(json.dumps)
ODD = st.sampled_from(['"\\ud800"', '"\\u0000"', '"a\tb"', '"x\\', '"}\nnull"'])
KEYS = st.sampled_from([*SCHEMA.names, "x", "w", "v", "I", "new", "", "é", "a.b"])
SCALARS = st.one_of(NUMBERS, TEXTS, st.sampled_from(["null", "true", "false"]), ODD)


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(KEYS, values), max_size=4)
    return members.map(lambda each: "{" + ",".join(f'"{k}": {v}' for k, v in each) + "}")


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=3).map(lambda each: "[" + ", ".join(each) + "]")


ANY = st.recursive(SCALARS, lambda inner: objects(inner) | arrays(inner), max_leaves=6)
TYPED = {
    **dict.fromkeys("ild", NUMBERS),
    **{"f": NUMBERS, "p": NUMBERS | DECIMALS.map(json.dumps), "s": TEXTS},
    **{"t": TIMES.map(json.dumps), "n": TIMES.map(json.dumps), "y": TIMES.map(json.dumps)},
    **{"a": arrays(NUMBERS), "b": st.sampled_from(["true", "false", "null"])},
}
FITTING = st.lists(
    st.sampled_from(sorted(TYPED)).flatmap(lambda k: st.tuples(st.just(k), TYPED[k])), max_size=5
).map(lambda each: "{" + ",".join(f'"{k}": {v}' for k, v in each) + "}")
BODIES = st.one_of(FITTING, objects(ANY), objects(ANY).map(lambda text: text.replace(" ", "\n")))
BROKEN = st.tuples(objects(ANY), objects(ANY), st.sampled_from(["", " ", ",", "null", "\n"])).map(
    lambda each: each[0] + each[2] + each[1]
)


def cut(each: tuple[str, int]) -> str:
    return each[0][: each[1] % (len(each[0]) + 1)]


TORN = st.tuples(BODIES, st.integers(0, 200)).map(cut)


class Exact(JsonDecoder):
    """The exact rules alone."""

    def _pieces(self, bodies: Any, schema: Any) -> Any:
        return super()._pieces(bodies, TableSchema.of([]))


def seen(decoded: Decoded) -> Any:
    part = decoded.parts[0]
    nans = part.rows.to_pydict()
    return part.schema.ddl, part.messages.to_pylist(), repr(nans), decoded.rejects


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(BODIES, BROKEN, TORN), max_size=4),
    st.sampled_from(["add", "ignore", "reject"]),
    st.sampled_from(["UTC", "Europe/Berlin"]),
    st.sampled_from(["", "ms"]),
)
@example(['{"a":[1}', ",2]}", '{"i":1}{"i":2}'], "add", "UTC", "")
@example(['{"ID":1,"I":null}', '{"I":7}'], "ignore", "UTC", "")
@example(['{"t":"2024-03-31 02:30:00"}', '{"t":"2024-10-27 02:30:00"}'], "add", "Europe/Berlin", "")
@example(['{"t":"2038-04-01"}'], "add", "Europe/Berlin", "")
@example(['{"t":"0001-01-01T00:00:00+08:00"}'], "add", "UTC", "")
def test_both_paths_agree(bodies: list[str], columns: str, zone: str, unit: str) -> None:
    given = {"format": "json", "newColumns": columns, "timeZone": zone}
    spec = DecoderSpec.from_options(given | ({"numberUnit": unit} if unit else {}))
    rules = DecodingRules(spec.new_columns, spec.zone, spec.number_unit)
    encoded = [body.encode("utf-8", "surrogatepass") for body in bodies]
    both = [decoder(SCHEMA, rules).decode(encoded) for decoder in (JsonDecoder, Exact)]
    assert seen(both[0]) == seen(both[1])


def test_common_bodies_take_the_fast_path() -> None:
    body = {
        **{"i": 1, "l": 2**62, "b": True, "d": 0.1, "f": 0.5, "p": 12.34, "s": "ü", "extra": None},
        **{"t": "2024-01-01T00:00:00.123456789+08:00", "n": "2024-01-01 10:00:00"},
        **{"y": "2024-02-29", "a": [1, None], "o": {"x": None, "w": [{"v": "2024-01-01T00:00Z"}]}},
    }
    rows = ArrowReader(SCHEMA, DecodingRules()).rows([json.dumps(body).encode(), b"{}"] * 2)
    assert rows is not None and rows.schema == SCHEMA.arrow
    first, second = rows.to_pylist()[:2]
    assert first["p"] == Decimal("12.34") and first["a"] == [1, None]
    assert first["o"]["w"][0]["v"].isoformat() == "2024-01-01T00:00:00+00:00"
    assert set(second.values()) == {None}


def test_one_bad_body_among_many_leaves_the_others_on_the_fast_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = [b'{"i": %d}' % number for number in range(20_000)]
    bodies[11_111] = b'{"i": "x"}'
    decoder = JsonDecoder(SCHEMA, DecodingRules())
    slow = [piece for piece in decoder._pieces(bodies, SCHEMA) if piece.rows is None]
    assert sum(piece.end - piece.start for piece in slow) <= 32
    decoded = decoder.decode(bodies)
    assert [reject.message for reject in decoded.rejects] == [11_111]
    assert decoded.parts[0].rows["i"].to_pylist() == decoded.parts[0].messages.to_pylist()
    assert decoded.parts[0].rows.num_rows == 19_999


@pytest.mark.parametrize(
    "body",
    [
        b'{"i": 1}null{}',
        b'{"i": 1} \n null {}',
        b"null",
        b'{"new": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"o": ' * 200_000 + b"1" + b"}" * 200_000,
    ],
)
def test_no_body_crashes_the_process(body: bytes) -> None:
    """Arrow's parser ends the process for these; a task would fail again and again."""
    program = (
        "import sys; from firetrail.pipeline.decoding import DecoderSpec, TableSchema;"
        f"spec = DecoderSpec.from_options({{'format': 'json'}});"
        f"schema = TableSchema.from_ddl({DDL!r});"
        "print(len(spec.decoder(schema).decode([b'{}', sys.stdin.buffer.read()]).rejects))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=body, capture_output=True)
    assert done.stdout == b"1\n", done.stderr
    assert ArrowReader(SCHEMA, DecodingRules()).rows([b"{}", body]) is None


def test_invalid_text_is_not_taken_for_text() -> None:
    decoded = JsonDecoder(SCHEMA, DecodingRules()).decode([b'{"s": "\xff"}', b'{"s": "x"}'])
    assert decoded.rejects[0].reason == "not UTF-8 at byte 7"
    assert decoded.parts[0].rows["s"].to_pylist() == ["x"]


def test_arrow_arrays_and_slices_are_read() -> None:
    bodies = pa.array([b"{", b'{"i": 1}', None, b'{"i": 2}'], pa.binary()).slice(1)
    decoded = JsonDecoder(SCHEMA, DecodingRules()).decode(bodies)
    assert decoded.parts[0].messages.to_pylist() == [0, 2]
    assert decoded.rejects[0].message == 1
