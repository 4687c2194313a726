"""The events of Maxwell's daemon.

::

    {"database": "shop", "table": "orders", "type": "update", "ts": 1449786310, "xid": 940752,
     "commit": true, "primary_key_columns": ["id"], "data": {"id": 1, "price": 5.18},
     "old": {"price": 5.15}}

The types are those of JSON: a schema that is given makes decimals and times exact. ``ts`` is in
seconds. ``old`` has the columns that changed. Maxwell writes binary values in base64, times in UTC,
and JSON as it is, which becomes text.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from firetrail.pipeline.decoding.body_decoder import Operation, TableName
from firetrail.pipeline.decoding.events.change_decoder import NO_READERS, ChangeEvent, EventAdapter
from firetrail.pipeline.decoding.events.envelope import (
    named_table,
    names_member,
    statement,
    table_name,
    text_member,
    time_us,
)
from firetrail.pipeline.decoding.events.mysql_types import without_zero_dates
from firetrail.pipeline.decoding.values.json_values import DecodingRules, converter, json_text
from firetrail.pipeline.decoding.values.text_values import BodyError, Converter, quoted_value

_OPERATIONS = {
    **{"insert": Operation.UPSERT, "update": Operation.UPSERT, "delete": Operation.DELETE},
    "bootstrap-insert": Operation.UPSERT,
}
_WITHOUT_ROWS = {"bootstrap-start", "bootstrap-complete", "heartbeat"}
_STATEMENTS = ("table-", "database-")


class MaxwellAdapter(EventAdapter):
    """Events of Maxwell.

    Args:
        zero_nulls: Whether dates with zeros are null.
    """

    def __init__(self, *, zero_nulls: bool) -> None:
        self._zero_nulls = zero_nulls

    def table(self, value: dict[str, Any]) -> TableName | None:
        return named_table(value)

    def event(self, value: dict[str, Any]) -> ChangeEvent | None:
        kind = value.get("type")
        if not isinstance(kind, str):
            raise BodyError(f"not an event of Maxwell: type is {quoted_value(kind)}")
        if kind in _WITHOUT_ROWS:
            return None
        time = time_us(value.get("ts"), 1_000_000)
        if kind.startswith(_STATEMENTS):
            return statement(table_name(value), text_member(value, "sql"), time)
        operation = _OPERATIONS.get(kind)
        if operation is None:
            raise BodyError(f"type is {quoted_value(kind)}, not insert, update or delete")
        row, old = value.get("data"), value.get("old")
        if not isinstance(row, dict):
            raise BodyError("data is not a row")
        before = _flat(old) if isinstance(old, dict) else None
        changes = [(operation, _flat(row), before)]
        key = names_member(value, "primary_key_columns")
        return ChangeEvent(table_name(value), changes, NO_READERS, key, time)

    def untyped(self, kind: pa.DataType, rules: DecodingRules) -> Converter:
        read = converter(kind, rules)
        if pa.types.is_temporal(kind):
            return without_zero_dates(read, self._zero_nulls)
        if kind == pa.bool_():  # MySQL's own booleans are numbers
            return lambda value: read({0: False, 1: True}.get(value, value))
        return read


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with JSON as text: rows of MySQL are flat."""
    return {
        name: json_text(value) if type(value) in (dict, list) else value
        for name, value in row.items()
    }
