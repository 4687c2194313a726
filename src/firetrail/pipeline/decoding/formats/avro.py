"""The decoder of Avro: one datum per message, with the schema of its writer.

Logical types become dates and times in µs, decimals and text. An enum is text, a record a struct, a
union of null and a type that type. A union of several types becomes the type that has all of their
values; if there is none, its messages are rejected.
"""

import json
from collections.abc import Mapping
from datetime import date, datetime, time
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import Any

import pyarrow as pa

from firetrail.errors import ConfigError, MissingExtraError
from firetrail.pipeline.decoding.events.change_decoder import ChangeRow, ColumnReader, Readers
from firetrail.pipeline.decoding.formats.schema_registry import (
    BodyHeader,
    RegisteredSchema,
    SchemaRegistry,
    split_header,
)
from firetrail.pipeline.decoding.formats.typed_rows import TypedFormat
from firetrail.pipeline.decoding.schema.arrow_types import (
    DECIMAL_DIGITS,
    INSTANT,
    LOCAL_TIME,
    list_of,
    struct_of,
    wider,
)
from firetrail.pipeline.decoding.values.text_values import (
    BodyError,
    Converter,
    exact_decimal,
    in_calendar,
    quoted_value,
)

_PLAIN = {
    **{"boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32()},
    **{"double": pa.float64(), "string": pa.string(), "bytes": pa.binary()},
    **{"fixed": pa.binary(), "enum": pa.string()},
}
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class AvroFormat(TypedFormat):
    """Data of Avro.

    Args:
        schema: The schema of the writer as JSON; empty if the registry has it.
        header: The bytes before the datum.
        registry: The registry; None if the schema is given.
    """

    def __init__(self, schema: str, header: BodyHeader, registry: SchemaRegistry | None) -> None:
        self._library = avro_library()
        self._header = header
        self._registry = registry
        self._known: dict[int | None, tuple[Any, Readers]] = {}
        if schema:
            try:
                self._known[None] = self._writer(RegisteredSchema(schema))
            except BodyError as error:
                raise ConfigError("schemaFile", schema, str(error)) from None

    def row(self, body: bytes) -> tuple[ChangeRow, Readers]:
        number, datum = split_header(body, self._header)
        schema, readers = self._of(number)
        stream = BytesIO(datum)
        try:
            value = self._library.schemaless_reader(stream, schema, None)
        except Exception as error:  # the library raises whatever a damaged datum leads to
            raise BodyError(f"not a datum of the schema: {error!r:.200}") from None
        if stream.tell() < len(datum):
            raise BodyError(f"{len(datum) - stream.tell()} bytes follow the datum")
        return value, readers

    def readers(self) -> Readers | None:
        """Return the columns of a schema that was given; None without one."""
        return self._known[None][1] if None in self._known else None

    def _of(self, number: int | None) -> tuple[Any, Readers]:
        known = self._known.get(None if self._registry is None else number)
        if known is None:
            assert self._registry is not None and number is not None
            known = self._known[number] = self._writer(self._registry.schema(number))
        return known

    def _writer(self, schema: RegisteredSchema) -> tuple[Any, Readers]:
        """Return a parsed schema and the columns of its record; raise BodyError for another."""
        named: dict[str, Any] = {}
        try:
            for _, text in schema.references:
                self._library.parse_schema(json.loads(text), named)
            parsed = self._library.parse_schema(json.loads(schema.text), named)
        except Exception as error:  # the library raises whatever a wrong schema leads to
            raise BodyError(f"not a schema of Avro: {error!r:.200}") from None
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise BodyError("the schema is not that of a record")
        names = _AvroTypes(named)
        return parsed, {each["name"]: names.reader(each["type"]) for each in parsed["fields"]}


def avro_library() -> Any:
    """Return fastavro; raise MissingExtraError if it is not installed."""
    try:
        return import_module("fastavro")
    except ImportError:
        raise MissingExtraError("Avro needs fastavro: pip install 'firetrail[avro]'") from None


class _AvroTypes:
    """The types that a schema names, and the path of those that are being read."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._path: list[str] = []

    def reader(self, schema: Any) -> ColumnReader:
        if isinstance(schema, list):
            return self._union([each for each in schema if each != "null"])
        if isinstance(schema, str):
            if schema == "null":
                return self._union([])
            if schema in _PLAIN:
                return ColumnReader(_PLAIN[schema], _same)
            return self._reference(schema)
        kind, logical = schema["type"], schema.get("logicalType")
        if isinstance(kind, dict | list) or (isinstance(kind, str) and kind in self._named):
            return self.reader(kind)
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if logical == "decimal":
            return _decimal(schema)
        if kind == "array":
            return _array(self.reader(schema["items"]))
        if kind == "map":
            return _map(self.reader(schema["values"]))
        return self._record(schema) if kind == "record" else ColumnReader(_PLAIN[kind], _same)

    def _reference(self, name: str) -> ColumnReader:
        if name not in self._named:
            raise BodyError(f"the schema has a type that is unknown: {quoted_value(name)}")
        return self.reader(self._named[name])

    def _record(self, schema: Any) -> ColumnReader:
        if schema["name"] in self._path:
            raise BodyError(f"the type {schema['name']} contains itself, which no table can have")
        self._path.append(schema["name"])
        members = {each["name"]: self.reader(each["type"]) for each in schema["fields"]}
        self._path.pop()
        reads = {name: optional(member.read) for name, member in members.items()}
        kind = struct_of((name, member.kind) for name, member in members.items())
        return ColumnReader(
            kind, lambda value: {name: read(value[name]) for name, read in reads.items()}
        )

    def _union(self, schemas: list[Any]) -> ColumnReader:
        if not schemas:
            return ColumnReader(pa.string(), _same)  # null alone
        readers = [self.reader(each) for each in schemas]
        if len(readers) == 1:
            return readers[0]
        kind = readers[0].kind
        for reader in readers[1:]:
            kind = None if kind is None else wider(kind, reader.kind)
        simple = all(reader.read is _same for reader in readers)
        if kind is None or not simple or pa.types.is_decimal(kind):
            kinds = ", ".join(str(reader.kind) for reader in readers)
            raise BodyError(f"the schema has a union of types that no column has: {kinds}")
        return ColumnReader(kind, _same)


def _same(value: Any) -> Any:
    return value


def optional(read: Converter) -> Converter:
    """Return a reading that takes null, too."""
    return lambda value: None if value is None else read(value)


def _array(item: ColumnReader) -> ColumnReader:
    read = optional(item.read)
    return ColumnReader(list_of(item.kind), lambda value: [read(each) for each in value])


def _map(item: ColumnReader) -> ColumnReader:
    read = optional(item.read)
    kind = pa.map_(pa.string(), item.kind)
    return ColumnReader(kind, lambda value: [(name, read(each)) for name, each in value.items()])


def _decimal(schema: Mapping[str, Any]) -> ColumnReader:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if not 0 <= scale <= precision <= DECIMAL_DIGITS:
        return ColumnReader(pa.string(), lambda value: format(value, "f"))
    kind = pa.decimal128(precision, scale)
    return ColumnReader(kind, partial(exact_decimal, kind=kind))


def _day(value: date) -> int:
    return value.toordinal() - _EPOCH_DAY


def _microseconds(value: datetime | int, kind: pa.DataType, parts: int) -> int:
    if isinstance(value, int):  # a unit that the library leaves to us
        return in_calendar(value * 10**6 // parts, kind)
    epoch = datetime(1970, 1, 1, tzinfo=value.tzinfo)
    span = value - epoch
    return (span.days * 86_400 + span.seconds) * 10**6 + span.microseconds


def _clock(value: time) -> str:
    return value.isoformat()


_PARTS = {"millis": 1000, "micros": 10**6, "nanos": 10**9}
_LOGICAL = {
    "date": ColumnReader(pa.date32(), _day),
    "uuid": ColumnReader(pa.string(), str),
    **{f"time-{unit}": ColumnReader(pa.string(), _clock) for unit in ("millis", "micros")},
    **{
        f"{local}timestamp-{unit}": ColumnReader(
            kind, partial(_microseconds, kind=kind, parts=parts)
        )
        for local, kind in (("", INSTANT), ("local-", LOCAL_TIME))
        for unit, parts in _PARTS.items()
    },
}
