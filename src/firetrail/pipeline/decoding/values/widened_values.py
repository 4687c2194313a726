"""Values of a type as values of a wider one."""

from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import Any

import pyarrow as pa

from firetrail.pipeline.decoding.schema.arrow_types import (
    INSTANT,
    LOCAL_TIME,
    folded_name,
    members_of,
)
from firetrail.pipeline.decoding.values.text_values import (
    Converter,
    exact_decimal,
    in_calendar,
    local_instant,
)

_EPOCH = datetime(1970, 1, 1)
_DAY_US = 86_400_000_000


def widening(declared: pa.DataType, kind: pa.DataType, zone: tzinfo) -> Converter:
    """Return the function that makes values of a type, or null, to values of a wider type.

    Args:
        declared: The type of the values, as Arrow takes them.
        kind: The wider type: ``arrow_types.wider`` of both is it.
        zone: The time zone of dates that become instants.
    """
    convert = _widening(declared, kind, zone)
    return lambda value: None if value is None else convert(value)


def _widening(declared: pa.DataType, kind: pa.DataType, zone: tzinfo) -> Converter:
    if declared == kind:
        return _same
    if pa.types.is_struct(kind):
        return _struct(declared, kind, zone)
    if pa.types.is_list(kind):
        item = widening(declared.value_type, kind.value_type, zone)
        return lambda value: [item(each) for each in value]
    if pa.types.is_map(kind):
        item = widening(declared.item_type, kind.item_type, zone)
        return lambda value: [(name, item(each)) for name, each in value]
    if kind == LOCAL_TIME:
        return lambda day: day * _DAY_US
    if kind == INSTANT:
        return lambda day: in_calendar(local_instant(_EPOCH + timedelta(days=day), zone), kind)
    return partial(exact_decimal, kind=kind) if pa.types.is_decimal(kind) else _same


def _struct(declared: pa.DataType, kind: pa.DataType, zone: tzinfo) -> Converter:
    known = {folded_name(name): (name, inner) for name, inner in members_of(declared)}
    members = [
        (name, known[folded_name(name)][0], widening(known[folded_name(name)][1], inner, zone))
        for name, inner in members_of(kind)
        if folded_name(name) in known
    ]
    return lambda value: {name: convert(value.get(own)) for name, own, convert in members}


def _same(value: Any) -> Any:
    return value
