"""The events of Debezium as JSON, with and without their schema.

::

    {"schema": {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [
         {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
          "parameters": {"scale": "2", "connect.decimal.precision": "10"}}]}]},
     "payload": {"op": "u", "before": {"price": "AgM="}, "after": {"price": "AgY="},
                 "source": {"db": "shop", "table": "orders", "ts_ms": 1589373560000}}}

Without the schema there is only the payload, and the types are those of JSON: a given schema makes
times exact (with ``numberUnit``), but decimals in base64 cannot be read. A table of PostgreSQL, SQL
Server or Oracle is in its schema, one of MySQL in its database.
"""

import base64
import binascii
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from firetrail.pipeline.decoding.body_decoder import Operation, TableName
from firetrail.pipeline.decoding.events.change_decoder import (
    NO_READERS,
    ChangeEvent,
    ColumnReader,
    EventAdapter,
    Readers,
)
from firetrail.pipeline.decoding.events.envelope import (
    named_table,
    statement,
    table_name,
    text_member,
    time_us,
)
from firetrail.pipeline.decoding.schema.arrow_types import (
    DECIMAL_DIGITS,
    INSTANT,
    LOCAL_TIME,
    list_of,
    struct_of,
)
from firetrail.pipeline.decoding.values.json_values import DecodingRules, converter
from firetrail.pipeline.decoding.values.text_values import (
    BodyError,
    Converter,
    in_calendar,
    quoted_value,
    type_error,
)

_OPERATIONS = {
    **dict.fromkeys("cru", Operation.UPSERT),
    "d": Operation.DELETE,
}
UNAVAILABLE = "__debezium_unavailable_value"
"""The value of a large column that did not change, which PostgreSQL does not log."""
SCHEMAS_MAX = 10_000
"""Schemas of events that are kept, one per table and version of it."""
_PLAIN = {
    **{"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()},
    **{"float": pa.float32(), "float32": pa.float32(), "double": pa.float64()},
    **{"float64": pa.float64(), "boolean": pa.bool_(), "string": pa.string(), "bytes": pa.binary()},
}
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_TIMES = {  # units per second
    **{_TIME + "Timestamp": 1000, _CONNECT + "Timestamp": 1000},
    **{_TIME + "MicroTimestamp": 10**6, _TIME + "NanoTimestamp": 10**9},
}
_CLOCKS = {
    **{_TIME + "Time": 1000, _CONNECT + "Time": 1000},
    **{_TIME + "MicroTime": 10**6, _TIME + "NanoTime": 10**9},
}


class DebeziumAdapter(EventAdapter):
    """Events of Debezium.

    Args:
        rules: The choices of the user.
    """

    def __init__(self, rules: DecodingRules) -> None:
        self._rules = rules
        self._known: dict[str, Readers] = {}

    def table(self, value: dict[str, Any]) -> TableName | None:
        if value.keys() == {"schema", "payload"}:
            value = value["payload"]
        source = value.get("source") if isinstance(value, dict) else None
        return named_table(source, _database(source)) if isinstance(source, dict) else None

    def event(self, value: dict[str, Any]) -> ChangeEvent | None:
        readers = NO_READERS
        if value.keys() == {"schema", "payload"}:
            readers = self._readers(value["schema"])
            value = value["payload"]
            if value is None:
                return None
            if not isinstance(value, dict):
                raise BodyError("the payload is not an object")
        source = value.get("source") or {}
        if not isinstance(source, dict):
            raise BodyError("the source is not an object")
        database = _database(source)
        time = time_us(source.get("ts_ms", value.get("ts_ms")))
        if "ddl" in value:
            return statement(table_name(source, database), text_member(value, "ddl"), time)
        kind = value.get("op")
        if "op" not in value and ("status" in value or value.keys() <= {"ts_ms"}):
            return None  # a boundary of a transaction, or a heartbeat
        if kind == "m":
            return None
        operation = _OPERATIONS.get(kind) if isinstance(kind, str) else None
        if operation is None:
            names = {"t": "the table was emptied (op is t)"}
            reason = f"not an event of Debezium: op is {quoted_value(kind)}"
            raise BodyError(names.get(kind, reason) if isinstance(kind, str) else reason)
        table = table_name(source, database)
        before, after = value.get("before"), value.get("after")
        row = before if operation is Operation.DELETE else after
        if not isinstance(row, dict):
            raise BodyError(f"op is {kind}, but the row is {quoted_value(row)}")
        old = before if isinstance(before, dict) and operation is Operation.UPSERT else None
        _check_available(row)
        return ChangeEvent(table, [(operation, row, old)], readers, (), time)

    def _readers(self, schema: Any) -> Readers:
        """Return the columns that the schema of an event declares."""
        text = repr(schema)
        readers = self._known.get(text)
        if readers is None:
            if len(self._known) >= SCHEMAS_MAX:
                self._known.clear()
            try:
                fields = {each["field"]: each for each in (schema or {}).get("fields", ())}
                row = fields.get("after") or fields.get("before") or {}
                columns = row.get("fields", ())
                readers = {each["field"]: connect_reader(each, self._rules) for each in columns}
            except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
                raise BodyError(f"the schema is not one of Kafka Connect: {error!r:.100}") from None
            self._known[text] = readers
        return readers


def _database(source: dict[str, Any]) -> str:
    """Return the member that names the database, or the schema of a tool that has schemas."""
    return "schema" if source.get("schema") else "db"


def _check_available(row: dict[str, Any]) -> None:
    missing = [name for name, value in row.items() if value == UNAVAILABLE]
    if missing:
        reason = "the event lacks its value, which did not change; set REPLICA IDENTITY FULL"
        raise BodyError(f"column {missing[0]}: {reason}")


def connect_reader(declared: dict[str, Any], rules: DecodingRules) -> ColumnReader:
    """Return the reading of a field that a schema of Kafka Connect declares.

    Args:
        declared: The schema of the field.
        rules: The choices of the user.
    """
    name, kind = declared.get("name") or "", declared["type"]
    if name == _CONNECT + "Decimal":
        return _decimal(declared.get("parameters") or {})
    if name in (_TIME + "Date", _CONNECT + "Date"):
        return ColumnReader(pa.date32(), _days)
    if name in _TIMES:
        return ColumnReader(LOCAL_TIME, _local_time(_TIMES[name]))
    if name == _TIME + "ZonedTimestamp":
        return ColumnReader(INSTANT, converter(INSTANT, rules))
    if name in _CLOCKS:
        return ColumnReader(pa.string(), _clock(_CLOCKS[name]))
    if name == "io.debezium.data.VariableScaleDecimal":
        return ColumnReader(pa.string(), _variable_decimal)
    if name == "io.debezium.data.Bits":
        return _bits(int((declared.get("parameters") or {}).get("length", 64)))
    if kind == "array":
        return _array(connect_reader(declared["items"], rules))
    if kind == "map":
        return _map(connect_reader(declared["values"], rules), rules)
    if kind == "struct":
        return _struct({each["field"]: connect_reader(each, rules) for each in declared["fields"]})
    plain = _PLAIN[kind]
    return ColumnReader(plain, converter(plain, rules))


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise BodyError(f"{quoted_value(value)} is not base64") from None


def _decimal(parameters: dict[str, Any]) -> ColumnReader:
    scale = int(parameters.get("scale", 0))
    precision = int(parameters.get("connect.decimal.precision", DECIMAL_DIGITS))
    if not 0 <= scale <= precision <= DECIMAL_DIGITS:
        return ColumnReader(pa.string(), lambda value: format(_scaled(value, scale), "f"))
    kind = pa.decimal128(precision, scale)
    exact = converter(kind, DecodingRules())
    return ColumnReader(kind, lambda value: exact(str(_scaled(value, scale))))


def _scaled(value: Any, scale: int) -> Decimal:
    """Return a decimal in base64, or in Connect's form NUMERIC."""
    if type(value) in (int, Decimal):
        return Decimal(value)
    unscaled = int.from_bytes(_bytes(value), "big", signed=True)
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def _variable_decimal(value: Any) -> str:
    if not isinstance(value, dict) or type(value.get("scale")) is not int:
        raise BodyError(f"{quoted_value(value)} is not a decimal with its scale")
    return format(_scaled(value.get("value"), value["scale"]), "f")


def _integer(value: Any, kind: pa.DataType) -> int:
    if type(value) is not int:
        raise type_error(value, kind)
    return value


def _days(value: Any) -> int:
    day = _integer(value, pa.date32())
    in_calendar(day * 86_400_000_000, pa.date32())
    return day


def _local_time(parts: int) -> Callable[[Any], int]:
    return lambda value: in_calendar(_integer(value, LOCAL_TIME) * 10**6 // parts, LOCAL_TIME)


def _clock(parts: int) -> Callable[[Any], str]:
    def reading(value: Any) -> str:
        total = _integer(value, pa.string()) * 10**6 // parts
        sign, total = ("-" if total < 0 else ""), abs(total)
        hours, rest = divmod(total, 3_600_000_000)
        return f"{sign}{hours:02d}{str(timedelta(microseconds=rest))[1:]}"

    return reading


def _bits(length: int) -> ColumnReader:
    if length > 63:
        return ColumnReader(pa.binary(), _bytes)
    return ColumnReader(pa.int64(), lambda value: int.from_bytes(_bytes(value), "little"))


def _optional(reader: ColumnReader) -> Converter:
    return lambda value: None if value is None else reader.read(value)


def _array(item: ColumnReader) -> ColumnReader:
    read = _optional(item)

    def reading(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise BodyError(f"{quoted_value(value)} is not an array")
        return [read(each) for each in value]

    return ColumnReader(list_of(item.kind), reading)


def _map(item: ColumnReader, rules: DecodingRules) -> ColumnReader:
    read = _optional(item)

    def reading(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise BodyError(f"{quoted_value(value)} is not an object")
        return [(name, read(each)) for name, each in value.items()]

    return ColumnReader(pa.map_(pa.string(), item.kind), reading)


def _struct(members: Readers) -> ColumnReader:
    reads = {name: _optional(reader) for name, reader in members.items()}

    def reading(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not value.keys() <= reads.keys():
            raise BodyError(f"{quoted_value(value)} is not an object with the declared members")
        return {name: read(value.get(name)) for name, read in reads.items()}

    kind = struct_of((name, reader.kind) for name, reader in members.items())
    return ColumnReader(kind, reading)
