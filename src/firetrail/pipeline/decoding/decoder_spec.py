"""The description of a decoder: the options of the user, which travel to the workers."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from enum import Enum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.body_decoder import Bodies, BodyDecoder, TableName
from firetrail.pipeline.decoding.events.canal import CanalAdapter
from firetrail.pipeline.decoding.events.change_decoder import (
    ChangeDecoder,
    ChangeRules,
    EventAdapter,
    Schemas,
)
from firetrail.pipeline.decoding.events.debezium import DebeziumAdapter
from firetrail.pipeline.decoding.events.maxwell import MaxwellAdapter
from firetrail.pipeline.decoding.formats.avro import AvroFormat
from firetrail.pipeline.decoding.formats.csv_decoder import CsvDecoder, CsvRules
from firetrail.pipeline.decoding.formats.json_decoder import JsonDecoder
from firetrail.pipeline.decoding.formats.protobuf import ProtobufFormat
from firetrail.pipeline.decoding.formats.schema_registry import (
    BodyHeader,
    SchemaRegistry,
    check_url,
)
from firetrail.pipeline.decoding.formats.text_decoder import TEXT_SCHEMA, TextDecoder
from firetrail.pipeline.decoding.formats.typed_rows import RowDecoder, TypedFormat
from firetrail.pipeline.decoding.schema.arrow_types import folded_name
from firetrail.pipeline.decoding.schema.table_schema import EMPTY, TableSchema, merged
from firetrail.pipeline.decoding.values.json_values import DecodingRules, Evolution, NumberUnit
from firetrail.pipeline.options import (
    Option,
    OptionTable,
    Parsed,
    any_text,
    each_once,
    names_in,
    some_text,
)
from firetrail.settings.settings_table import Flag, OneOf, Text
from firetrail.system import SYSTEM


class BodyFormat(Enum):
    """The formats of bodies."""

    JSON = "json"
    TEXT = "text"
    CSV = "csv"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CANAL = "canal"
    MAXWELL = "maxwell"
    DEBEZIUM = "debezium"


_TYPED = (BodyFormat.AVRO, BodyFormat.PROTOBUF)
"""Formats whose schema declares the types of their bodies."""


class ZeroDates(Enum):
    """Treatment of dates of MySQL with zeros, such as ``0000-00-00``."""

    NULL = "null"
    REJECT = "reject"


def time_zone(name: str) -> tzinfo:
    """Return a time zone by its name, such as ``Asia/Shanghai``; raise ValueError for another."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(str(error)) from error


def _key(text: str) -> tuple[str, ...]:
    return each_once(text.split(","), folded_name)


def _content(path: str) -> bytes:
    """Return the content of a file of the driver; the workers get it with the spec."""
    try:
        return SYSTEM.files.read(Path(path))
    except OSError as error:
        raise ConfigError("schemaFile", path, f"cannot be read: {error.strerror}") from error


def _columns(text: str) -> TableSchema:
    """Return the columns of CSV; those without a type are text."""
    parts = re.split(r",(?![^(<]*[)>])", text)  # not at the comma of decimal(10,2)
    typed = (f"{each} string" if _NAME.fullmatch(each.strip()) else each for each in parts)
    return _parsed_as("columns", TableSchema.from_ddl, ",".join(typed))


def _parsed_as(option: str, parse: Callable[[str], TableSchema], text: str) -> TableSchema:
    """Return the columns that an option describes; errors name the option."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(option, error.value, error.allowed) from error


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("schemaFile", content[:20], "must be text in UTF-8") from error


def _described(content: bytes) -> TableSchema:
    """Return the columns that a file describes, as JSON Schema or as DDL text."""
    text = _text(content).strip()
    parse = TableSchema.from_json_schema if text[:1] == "{" else TableSchema.from_ddl
    return _parsed_as("schemaFile", parse, text)


_NAME = re.compile(r"\w+|`[^`]+`")
SCHEMA_FILE = Option("schemaFile", "schema", Parsed(_content, "a file with a schema"))
TABLES = Option("tables", "tables", Parsed(names_in, "patterns of DATABASE.TABLE"))
OPTIONS = OptionTable(
    (
        Option("format", "format", OneOf(BodyFormat)),
        Option("newColumns", "new_columns", OneOf(Evolution)),
        Option("numberUnit", "number_unit", OneOf(NumberUnit)),
        Option("timeZone", "zone", Parsed(time_zone, "a time zone, such as Asia/Shanghai")),
        Option("tombstones", "tombstones", Flag()),
        TABLES,
        Option("key", "key", Parsed(_key, "names of columns")),
        Option("zeroDates", "zero_dates", OneOf(ZeroDates)),
        SCHEMA_FILE,
        Option("message", "message", some_text("the full name of a message of Protobuf")),
        Option("header", "header", OneOf(BodyHeader)),
        Option("registry", "registry", Parsed(check_url, "the address of a registry")),
        Option("subject", "subject", some_text("the subject at RocketMQ's registry: the topic")),
        Option("columns", "columns", Parsed(_columns, "columns, such as id bigint, name")),
        Option("delimiter", "delimiter", Text(r'[^\r\n"]', "one letter")),
        Option("quote", "quote", Text(r"[^\r\n]", "one letter")),
        Option("nullText", "null_text", any_text("the text that is null")),
    )
)


def lasting_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return options with a path of the schema that later runs find from any folder."""
    name = SCHEMA_FILE.name.lower()
    return {
        each: str(Path(text).absolute()) if each.lower() == name else text
        for each, text in given.items()
    }


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """The options of a decoder. Objects can be pickled.

    Args:
        format: The format of the bodies.
        new_columns: The treatment of keys of JSON without a column. Default: ``add``, they become
            columns.
        number_unit: The unit of times that are numbers in JSON. Default: None, they are rejected.
        zone: The zone of times that name none. Default: UTC.
        tombstones: Whether an empty body deletes the row of the message's key. Default: False,
            it is a reject, or an empty text. CDC events have operations instead.
        tables: Patterns of ``database.table``, with ``*``, whose CDC events are decoded; others
            are skipped. Default: (), which takes all.
        key: The key by which changes of a row's key are found in CDC events. Default: (), which
            takes the one that the events name.
        zero_dates: The treatment of dates of MySQL with zeros. Default: ``null``.
        schema: The content of a file with the schema: an ``.avsc`` file for Avro, descriptors that
            ``protoc`` compiles for Protobuf, JSON Schema or DDL text for other formats. Default:
            empty, the registry has it, or messages show it.
        message: The full name of the message of Protobuf. Default: empty, the first of the file,
            or the one that Confluent's header names.
        header: The bytes before the datum that name a schema. Default: ``none``.
        registry: The address of the registry that has the schemas of headers. Default: empty, the
            given schema is that of all bodies, and headers are skipped.
        subject: The subject at RocketMQ's registry, which is the topic. Default: empty.
        columns: The columns of CSV in the order of the fields. Default: None.
        delimiter: The letter between fields of CSV. Default: a comma.
        quote: The letter around fields of CSV that contain delimiters. Default: ``"``.
        null_text: The field of CSV that is null in any column. Default: None, there is none.
    """

    format: BodyFormat
    new_columns: Evolution = Evolution.ADD
    number_unit: NumberUnit | None = None
    zone: tzinfo = UTC
    tombstones: bool = False
    tables: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    zero_dates: ZeroDates = ZeroDates.NULL
    schema: bytes = b""
    message: str = ""
    header: BodyHeader = BodyHeader.NONE
    registry: str = ""
    subject: str = ""
    columns: TableSchema | None = None
    delimiter: str = ","
    quote: str = '"'
    null_text: str | None = None

    @classmethod
    def from_options(cls, given: Mapping[str, str], key: Iterable[str] = ()) -> "DecoderSpec":
        """Return the spec for options by name; raise ConfigError for wrong ones.

        Args:
            given: The options. ``format`` is required.
            key: The key of the table. With one, an empty body deletes unless it is a row, or the
                options differ. Default: (), without one.
        """
        values = OPTIONS.values(OPTIONS.named(given))
        if "format" not in values:
            allowed = ", ".join(choice.value for choice in BodyFormat)
            raise ConfigError("format", None, f"is required: {allowed}")
        spec = cls(**values)
        if key:
            defaults: dict[str, Any] = {"tombstones": not spec._empty_is_row, "key": tuple(key)}
            spec = cls(**defaults | values)
        spec._check()
        return spec

    @property
    def _empty_is_row(self) -> bool:
        """Whether an empty body is a message of Protobuf, whose fields have their defaults."""
        return self.format is BodyFormat.PROTOBUF and self.header is BodyHeader.NONE

    def _check(self) -> None:
        """Raise ConfigError if an option is missing that the format or the header needs."""
        if self.format is BodyFormat.CSV and self.columns is None:
            raise ConfigError("columns", None, "is required for CSV: id bigint, name string, …")
        if self.format not in _TYPED:
            self.own_schema()
            return
        if bool(self.schema) == bool(self.registry):
            allowed = "give the schema as schemaFile, or the address of a registry"
            raise ConfigError("schemaFile", None, allowed)
        if self.registry and self.header is BodyHeader.NONE:
            allowed = "must be confluent, apicurio or rocketmq with a registry"
            raise ConfigError("header", "none", allowed)
        if self.registry and self.header is BodyHeader.ROCKETMQ and not self.subject:
            raise ConfigError("subject", None, "is required by RocketMQ's registry: the topic")
        named = self.registry and self.format is BodyFormat.PROTOBUF
        if named and self.header is not BodyHeader.CONFLUENT:
            allowed = "only Confluent's registry has descriptors of Protobuf; give schemaFile"
            raise ConfigError("header", self.header.value, allowed)
        self._typed_format()

    def _typed_format(self) -> TypedFormat:
        """Return the format of bodies with declared types."""
        registry = None
        if self.registry:
            serialized = self.format is BodyFormat.PROTOBUF
            registry = SchemaRegistry(
                self.registry, self.header, self.subject, serialized=serialized
            )
        if self.format is BodyFormat.PROTOBUF:
            return ProtobufFormat(self.schema, self.message, self.header, registry)
        return AvroFormat(_text(self.schema), self.header, registry)

    def own_schema(self) -> TableSchema | None:
        """Return the schema that the options alone determine; None if messages are needed."""
        if self.format in _TYPED:
            readers = self._typed_format().readers()
            kinds = {name: reader.kind for name, reader in (readers or {}).items()}
            return None if readers is None else TableSchema.of(kinds)
        if self.format is BodyFormat.TEXT:
            return TEXT_SCHEMA
        return _described(self.schema) if self.schema else self.columns

    def decoder(self, schemas: Schemas = EMPTY) -> BodyDecoder:
        """Return the decoder, in the process that uses it.

        Args:
            schemas: The known columns. Default: ``EMPTY``, so that all are new.
        """
        if self.format is BodyFormat.TEXT:
            return TextDecoder(tombstones=self.tombstones)
        rules = DecodingRules(self.new_columns, self.zone, self.number_unit)
        adapter = self._adapter_of(rules)
        if adapter is not None:
            return ChangeDecoder(adapter, schemas, ChangeRules(rules, self.tables, self.key))
        schema = schemas if isinstance(schemas, TableSchema) else EMPTY
        if self.format in _TYPED:
            return RowDecoder(self._typed_format(), schema, rules, tombstones=self.tombstones)
        if self.format is BodyFormat.CSV:
            columns = self.columns or EMPTY
            csv = CsvRules(columns, self.delimiter, self.quote, self.null_text, self.zone)
            return CsvDecoder(schema, replace(csv, tombstones=self.tombstones))
        return JsonDecoder(schema, rules, tombstones=self.tombstones)

    def event_adapter(self) -> EventAdapter | None:
        """Return the form of CDC events; None for other formats."""
        return self._adapter_of(DecodingRules(self.new_columns, self.zone, self.number_unit))

    def _adapter_of(self, rules: DecodingRules) -> EventAdapter | None:
        """Return the form of CDC events; None for other formats."""
        zero_nulls = self.zero_dates is ZeroDates.NULL
        if self.format is BodyFormat.CANAL:
            return CanalAdapter(rules, zero_nulls=zero_nulls)
        if self.format is BodyFormat.MAXWELL:
            return MaxwellAdapter(zero_nulls=zero_nulls)
        return DebeziumAdapter(rules) if self.format is BodyFormat.DEBEZIUM else None

    def infer(self, sample: Bodies) -> dict[TableName | None, TableSchema]:
        """Return the schemas that a sample of bodies shows, by table.

        The key None has the schema of one table that takes all rows.
        """
        parts = self.decoder().decode(sample).parts
        every = merged([part.schema for part in parts]).schema
        return {None: every, **{part.table: part.schema for part in parts}}
