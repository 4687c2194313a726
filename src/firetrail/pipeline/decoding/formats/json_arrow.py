"""The fast path of JSON: many bodies at once, parsed by Arrow into columns.

Arrow's parser is about ten times as fast as Python's, but its rules are not ours: it takes invalid
UTF-8 and NaN, compares keys with their case, knows nothing of time zones, and stops at the first
value that does not fit. So this path answers only where both agree. For all else it returns None,
and the bodies are decoded one by one by the exact rules (``json_values``). A test compares them.

Bodies are joined with line breaks. Each begins with ``{`` and ends with ``}``, so none can continue
in the next one: a line break cannot be in a string, and after ``}`` no ``{`` may follow in a
value. A body with several objects changes the number of rows. Either way rows are never misplaced.
"""

import re
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from firetrail.pipeline.decoding.schema.arrow_types import (
    EXACT_WHOLE,
    INSTANT,
    LOCAL_TIME,
    folded_name,
    members_of,
)
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.decoding.values.json_values import DecodingRules, Evolution, NumberUnit
from firetrail.pipeline.decoding.values.text_values import FIRST, LAST

OPENERS_MAX = 4000
"""Maximum number of brackets that a body opens. Arrow's parser recurses, and overflows its stack
between 10,000 and 100,000 levels."""
_UNSAFE = re.compile(rb"\}[ \t\r\n]*null")
"""Text that may be a null outside of an object, at which Arrow's parser crashes."""
_TIMES = (INSTANT, LOCAL_TIME)
_ZONED = re.compile(r":.*[Z+-]|T.*[Z+-]")
_NANOSECONDS = r"(\.[0-9]{6})[0-9]{1,3}"
_ZONE_YEARS = 1970, 2037
"""The years whose changes of clocks are listed in the file of a zone. Arrow ignores the rule for
the years after them."""
_UNITS = {NumberUnit.SECONDS: "s", NumberUnit.MILLISECONDS: "ms", NumberUnit.MICROSECONDS: "us"}


class NeedsExactRulesError(Exception):
    """Only the exact rules can decide on these bodies."""


class ArrowReader:
    """The fast path for a schema.

    Args:
        schema: The columns.
        rules: The choices of the user.
    """

    def __init__(self, schema: TableSchema, rules: DecodingRules) -> None:
        self._schema = schema
        self._rules = rules
        self._names = {folded_name(name) for name in schema.names}
        try:
            parsed = [pa.field(each.name, self._parsed(each.type)) for each in schema.arrow]
        except NeedsExactRulesError:
            parsed = []
        self._options = arrow_json.ParseOptions(
            explicit_schema=pa.schema(parsed),
            newlines_in_values=False,
            unexpected_field_behavior="infer",
        )
        self._usable = bool(parsed)

    def rows(self, bodies: Sequence[bytes | None]) -> pa.RecordBatch | None:
        """Return the rows of bodies, one each; None if they need the exact rules."""
        if not self._usable or not bodies or not all(map(_is_plain, bodies)):
            return None
        joined = b"\n".join(bodies)  # type: ignore[arg-type]
        if _UNSAFE.search(joined):
            return None
        try:
            joined.decode()
            options = arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + 1)
            table = arrow_json.read_json(pa.BufferReader(joined), options, self._options)
            if len(table) != len(bodies):
                return None
            return self._converted(table)
        except (pa.ArrowException, UnicodeDecodeError, NeedsExactRulesError, OverflowError):
            return None

    def _parsed(self, kind: pa.DataType) -> pa.DataType:
        """Return the type as which Arrow parses a column."""
        if pa.types.is_struct(kind):
            return pa.struct([(name, self._parsed(each)) for name, each in members_of(kind)])
        if pa.types.is_list(kind):
            return pa.list_(pa.field("element", self._parsed(kind.value_type)))
        if pa.types.is_map(kind):
            raise NeedsExactRulesError
        if kind == pa.float32():
            return pa.float64()
        if kind in _TIMES:
            return pa.string() if self._rules.unit is None else pa.int64()
        return pa.string() if kind in (pa.binary(), pa.date32()) else kind

    def _converted(self, table: pa.Table) -> pa.RecordBatch:
        columns = table.combine_chunks()
        self._check_others(list(columns.schema), self._names, self._schema.names)
        arrays = []
        for field in self._schema.arrow:
            chunks = columns.column(field.name).chunks
            array = chunks[0] if chunks else pa.nulls(0, columns.schema.field(field.name).type)
            arrays.append(self._typed(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow)

    def _check_others(self, found: list[Any], known: set[str], exact: Sequence[str]) -> None:
        """Raise NeedsExactRulesError if members beside the known have values or a like name."""
        others = [field for field in found if field.name not in exact]
        if not others:
            return
        folded = {folded_name(field.name) for field in others}
        if len(folded) < len(others) or folded & known:
            raise NeedsExactRulesError
        ignored = self._rules.evolution is Evolution.IGNORE
        if not ignored and not all(_has_no_type(field.type) for field in others):
            raise NeedsExactRulesError

    def _typed(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        if pa.types.is_struct(kind):
            return self._typed_struct(array, kind)
        if pa.types.is_list(kind):
            values = self._typed(array.values, kind.value_type)
            mask = array.is_null() if array.null_count else None
            return pa.ListArray.from_arrays(array.offsets, values, kind, mask=mask)
        if kind in (pa.float32(), pa.float64()):
            return _finite(array.cast(kind), EXACT_WHOLE[kind])
        if kind == pa.date32():
            _in_calendar(array.cast(LOCAL_TIME))
            return array.cast(kind)
        if kind in _TIMES:
            return self._times(array, kind)
        if pa.types.is_decimal(kind):
            array.validate(full=True)  # Arrow's parser lets numbers exceed the precision
        if kind == pa.binary():
            raise NeedsExactRulesError
        return array

    def _typed_struct(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        members = members_of(kind)
        found = [array.type.field(at) for at in range(array.type.num_fields)]
        names = [name for name, _ in members]
        self._check_others(found, {folded_name(name) for name in names}, names)
        arrays = [self._typed(array.field(name), each) for name, each in members]
        if not arrays:
            raise NeedsExactRulesError
        fields = [kind.field(at) for at in range(kind.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def _times(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        if self._rules.unit is not None:
            times = array.cast(pa.timestamp(_UNITS[self._rules.unit])).cast(LOCAL_TIME)
            return _in_calendar(times.cast(pa.int64()).cast(kind))
        if array.null_count == len(array):
            return array.cast(kind)
        try:
            return _in_calendar(self._times_of(array, kind))
        except pa.ArrowInvalid:
            shorter = pc.replace_substring_regex(array, _NANOSECONDS, r"\1")
            return _in_calendar(self._times_of(shorter, kind))

    def _times_of(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        first = pc.drop_null(array)[0].as_py()
        if kind == LOCAL_TIME or not _ZONED.search(first):
            times = array.cast(LOCAL_TIME)
            return times if kind == LOCAL_TIME else self._instants(times)
        return array.cast(INSTANT)

    def _instants(self, times: pa.Array) -> pa.Array:
        """Return local times of the zone as instants, within the years that Arrow knows."""
        if self._rules.zone is not UTC:
            years = pc.min_max(pc.year(times))
            if years["min"].as_py() < _ZONE_YEARS[0] or years["max"].as_py() > _ZONE_YEARS[1]:
                raise NeedsExactRulesError
        return pc.assume_timezone(times, str(self._rules.zone))


def _in_calendar(times: pa.Array) -> pa.Array:
    limits = pc.min_max(times.cast(pa.int64()))
    if (
        limits["min"].is_valid
        and not FIRST <= limits["min"].as_py() <= limits["max"].as_py() <= LAST
    ):
        raise NeedsExactRulesError
    return times


def _is_plain(body: bytes | None) -> bool:
    """Return whether a body is in the braces of an object, and not too deeply nested."""
    if not body or body[0] != 0x7B or body[-1] != 0x7D:
        return False
    return len(body) <= OPENERS_MAX or body.count(b"[") + body.count(b"{") <= OPENERS_MAX


def _has_no_type(kind: pa.DataType) -> bool:
    """Return whether all values of a member that was found are null or empty."""
    if pa.types.is_list(kind):
        return _has_no_type(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_has_no_type(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_null(kind))


def _finite(array: pa.Array, limit: int) -> pa.Array:
    """Return the numbers.

    Raises NeedsExactRulesError for NaN, which JSON does not have, and for numbers from ``limit``
    on, which may be whole and rounded.
    """
    if not pc.all(pc.less(pc.abs(array), pa.scalar(limit, array.type)), min_count=0).as_py():
        raise NeedsExactRulesError
    return array
