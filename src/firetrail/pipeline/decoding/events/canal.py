"""The flat messages of Canal.

::

    {"id": 9, "database": "shop", "table": "orders", "pkNames": ["id"], "isDdl": false,
     "type": "UPDATE", "es": 1589373560000, "ts": 1589373560798, "sql": "",
     "mysqlType": {"id": "bigint(20)", "price": "decimal(10,2)"}, "sqlType": {…},
     "data": [{"id": "1", "price": "5.18"}], "old": [{"price": "5.15"}]}

All values are text. ``old`` has the columns that changed. ``es`` is the time of the change.
"""

from typing import Any

import pyarrow as pa

from firetrail.pipeline.decoding.body_decoder import Operation, TableName
from firetrail.pipeline.decoding.events.change_decoder import (
    ChangeEvent,
    ColumnReader,
    EventAdapter,
    Readers,
)
from firetrail.pipeline.decoding.events.envelope import (
    named_table,
    names_member,
    statement,
    table_name,
    text_member,
    time_us,
)
from firetrail.pipeline.decoding.events.mysql_types import (
    canal_reader,
    mysql_type,
    without_zero_dates,
)
from firetrail.pipeline.decoding.values.json_values import DecodingRules
from firetrail.pipeline.decoding.values.text_values import (
    BodyError,
    Converter,
    from_text,
    quoted_value,
    type_error,
)

_OPERATIONS = {
    **{"INSERT": Operation.UPSERT, "UPDATE": Operation.UPSERT, "DELETE": Operation.DELETE}
}
DECLARATIONS_MAX = 10_000
"""Declarations of columns that are kept, one per table and version of it."""


class CanalAdapter(EventAdapter):
    """Events of Canal.

    Args:
        rules: The choices of the user; the zone is that of Canal's host.
        zero_nulls: Whether dates with zeros are null.
    """

    def __init__(self, rules: DecodingRules, *, zero_nulls: bool) -> None:
        self._rules = rules
        self._zero_nulls = zero_nulls
        self._declared: dict[tuple[tuple[str, Any], ...], Readers] = {}

    def table(self, value: dict[str, Any]) -> TableName | None:
        return named_table(value)

    def event(self, value: dict[str, Any]) -> ChangeEvent | None:
        table = table_name(value)
        time = time_us(value.get("es"))
        if value.get("isDdl") is True:
            return statement(table, text_member(value, "sql"), time)
        kind = value.get("type")
        operation = _OPERATIONS.get(kind) if isinstance(kind, str) else None
        if operation is None:
            raise BodyError(f"type is {quoted_value(kind)}, not INSERT, UPDATE or DELETE")
        rows = _rows(value, "data")
        old = _rows(value, "old") if kind == "UPDATE" and value.get("old") else [None] * len(rows)
        if len(old) != len(rows):
            raise BodyError(f"data has {len(rows)} rows, but old has {len(old)}")
        changes = [(operation, row, before) for row, before in zip(rows, old, strict=True)]
        return ChangeEvent(
            table, changes, self._readers(value), names_member(value, "pkNames"), time
        )

    def _readers(self, value: dict[str, Any]) -> Readers:
        types = value.get("mysqlType") or {}
        if not isinstance(types, dict):
            raise BodyError("mysqlType is not an object")
        declared = tuple(types.items())
        try:
            readers = self._declared.get(declared)
        except TypeError:
            raise BodyError("mysqlType has a value that is not text") from None
        if readers is None:
            if len(self._declared) >= DECLARATIONS_MAX:
                self._declared.clear()
            readers = self._declared[declared] = {
                name: self._reader(text) for name, text in declared if isinstance(text, str)
            }
        return readers

    def _reader(self, text: str) -> ColumnReader:
        kind = mysql_type(text)
        read = canal_reader(kind, self._rules.zone, zero_nulls=self._zero_nulls)
        arrow = kind.kind
        return ColumnReader(
            arrow, lambda value: read(value if type(value) is str else _text(value, arrow))
        )

    def untyped(self, kind: pa.DataType, rules: DecodingRules) -> Converter:
        read = from_text(kind, rules.zone)
        if read is None:
            return super().untyped(kind, rules)
        whole = without_zero_dates(read, self._zero_nulls) if pa.types.is_temporal(kind) else read
        return lambda value: whole(_text(value, kind))


def _text(value: Any, kind: pa.DataType) -> str:
    """Return a value as the text that Canal writes; some forks of Canal write numbers."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        raise type_error(value, kind)
    return str(value)


def _rows(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = value.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BodyError(f"{name} is not a list of rows")
    return rows
