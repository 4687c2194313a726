"""The decoder of Protobuf: one message per body, with the descriptors that ``protoc`` compiles.

A field that was not set is null if its presence can be known, and otherwise the default of its
type. An enum is the name of its value, a message a struct; the well-known types for times,
durations, wrappers and JSON become timestamps, text, the wrapped types and text. Fields that the
descriptors do not have are left out, as by every reader of Protobuf.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from firetrail.errors import ConfigError, MissingExtraError
from firetrail.pipeline.decoding.events.change_decoder import ChangeRow, ColumnReader, Readers
from firetrail.pipeline.decoding.formats.avro import optional
from firetrail.pipeline.decoding.formats.schema_registry import (
    BodyHeader,
    RegisteredSchema,
    SchemaRegistry,
    split_header,
)
from firetrail.pipeline.decoding.formats.typed_rows import TypedFormat
from firetrail.pipeline.decoding.schema.arrow_types import INSTANT, list_of, struct_of
from firetrail.pipeline.decoding.values.text_values import (
    BodyError,
    Converter,
    in_calendar,
    quoted_value,
)

_SCALARS = {
    **{"DOUBLE": pa.float64(), "FLOAT": pa.float32(), "BOOL": pa.bool_(), "STRING": pa.string()},
    **{"BYTES": pa.binary(), "UINT32": pa.int64(), "FIXED32": pa.int64()},
    **dict.fromkeys(("INT32", "SINT32", "SFIXED32"), pa.int32()),
    **dict.fromkeys(("INT64", "SINT64", "SFIXED64"), pa.int64()),
    **dict.fromkeys(("UINT64", "FIXED64"), pa.decimal128(20, 0)),
}
_GOOGLE = "google.protobuf."
_WRAPPERS = {f"{_GOOGLE}{name}Value" for name in ("Double", "Float", "Bool", "String", "Bytes")}
_WRAPPERS |= {f"{_GOOGLE}{name}Value" for name in ("Int32", "Int64", "UInt32", "UInt64")}
_JSON = {f"{_GOOGLE}{name}" for name in ("Duration", "FieldMask", "Struct", "Value", "ListValue")}
INDEXES_MAX = 100
"""Maximum number of indexes in Confluent's header: levels of messages in messages."""


class ProtobufFormat(TypedFormat):
    """Messages of Protobuf.

    Args:
        descriptors: A file descriptor set; empty if the registry has the schemas.
        message: The full name of the message; empty for the first of the file, or, with a
            registry, for the one that the header names.
        header: The bytes before the message.
        registry: The registry; None if the descriptors are given.
    """

    def __init__(
        self, descriptors: bytes, message: str, header: BodyHeader, registry: SchemaRegistry | None
    ) -> None:
        self._library = _ProtobufLibrary()
        self._message = message
        self._header = header
        self.empty_is_row = header is BodyHeader.NONE
        self._registry = registry
        self._known: dict[tuple[int | None, tuple[int, ...]], tuple[Any, Readers]] = {}
        if descriptors:
            try:
                files = self._library.file_set(descriptors)
                self._known[None, ()] = self._library.message(files, message, ())
            except BodyError as error:
                raise ConfigError("schemaFile", descriptors[:20], str(error)) from None

    def readers(self) -> Readers | None:
        known = self._known.get((None, ()))
        return None if known is None else known[1]

    def row(self, body: bytes) -> tuple[ChangeRow, Readers]:
        number, rest = split_header(body, self._header)
        indexes: tuple[int, ...] = ()
        if self._header is BodyHeader.CONFLUENT:
            indexes, rest = message_indexes(rest)
        kind, readers = self._of(number, indexes)
        try:
            value = kind.FromString(rest)
        except self._library.decode_error as error:
            raise BodyError(f"not a {kind.DESCRIPTOR.full_name}: {error!s:.200}") from None
        return fields_of(value, readers), readers

    def _of(self, number: int | None, indexes: tuple[int, ...]) -> tuple[Any, Readers]:
        if self._registry is None:
            return self._known[None, ()]
        known = self._known.get((number, indexes))
        if known is None:
            assert number is not None
            files = self._library.registered(self._registry.schema(number))
            chosen = self._library.message(files, self._message, indexes)
            known = self._known[number, indexes] = chosen
        return known


def message_indexes(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the indexes of Confluent's header, and the message after them.

    They are zigzag varints: how many, then the index of the message at each level. A single zero
    stands for the first message.
    """
    count, at = _varint(body, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise BodyError(f"the header has {count} indexes of messages")
    indexes = []
    for _ in range(count):
        index, at = _varint(body, at)
        indexes.append(index)
    return tuple(indexes) or (0,), body[at:]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for end in range(at, min(at + 5, len(body))):
        value |= (body[end] & 0x7F) << shift
        if body[end] < 0x80:
            return value >> 1 ^ -(value & 1), end + 1
        shift += 7
    raise BodyError("the header ends within the indexes of messages")


class _ProtobufLibrary:
    """The package protobuf."""

    def __init__(self) -> None:
        try:
            self._descriptors = import_module("google.protobuf.descriptor_pb2")
        except ImportError:
            reason = "Protobuf needs protobuf: pip install 'firetrail[protobuf]'"
            raise MissingExtraError(reason) from None
        self._pools = import_module("google.protobuf.descriptor_pool")
        self._factory = import_module("google.protobuf.message_factory")
        self.decode_error = import_module("google.protobuf.message").DecodeError

    def file_set(self, content: bytes) -> list[Any]:
        """Return the files of a descriptor set; raise BodyError for other content."""
        try:
            files = self._descriptors.FileDescriptorSet.FromString(content).file
        except self.decode_error:
            files = []
        if not files:
            remedy = "protoc --include_imports --descriptor_set_out=FILE"
            raise BodyError(f"must be a file descriptor set: {remedy}")
        return list(files)

    def registered(self, schema: RegisteredSchema) -> list[Any]:
        """Return the files of a schema of a registry, each after those that it imports."""
        files = []
        for name, content in (*schema.references, ("", schema.text)):
            try:
                assert isinstance(content, bytes)
                file = self._descriptors.FileDescriptorProto.FromString(content)
            except self.decode_error:
                raise BodyError("the schema of the registry is not a file descriptor") from None
            file.name = name or file.name or "registered.proto"
            files.append(file)
        return files

    def message(
        self, files: Sequence[Any], name: str, indexes: Sequence[int]
    ) -> tuple[Any, Readers]:
        """Return the class and the columns of a message: by name, by indexes, or the first."""
        pool = self._pools.DescriptorPool()
        try:
            for module in _WELL_KNOWN:
                pool.Add(self._well_known(module))
            for file in files:
                if not file.name.startswith("google/protobuf/"):
                    pool.Add(file)
            last = pool.FindFileByName(files[-1].name)
            descriptor = pool.FindMessageTypeByName(name) if name else _at(files[-1], last, indexes)
        except (KeyError, TypeError, IndexError) as error:
            raise BodyError(f"the schema has no such message: {error!s:.200}") from None
        return self._factory.GetMessageClass(descriptor), _readers(descriptor, ())

    def _well_known(self, module: str) -> Any:
        file = self._descriptors.FileDescriptorProto()
        import_module(f"google.protobuf.{module}_pb2").DESCRIPTOR.CopyToProto(file)
        return file


_WELL_KNOWN = ("timestamp", "duration", "wrappers", "struct", "any", "empty", "field_mask")


def _at(file: Any, descriptor: Any, indexes: Sequence[int]) -> Any:
    """Return the message that indexes in the order of the file lead to; the first by default."""
    first, *inner = indexes or (0,)
    if first < 0 or any(index < 0 for index in inner):
        raise IndexError(f"index {min(first, *inner, 0)}")
    message = descriptor.message_types_by_name[file.message_type[first].name]
    for index in inner:
        nested = (each for each in message.nested_types if not each.GetOptions().map_entry)
        message = list(nested)[index]  # entries of maps do not count for Java's serializer
    return message


def _readers(descriptor: Any, path: tuple[str, ...]) -> dict[str, ColumnReader]:
    """Return the columns of a message, whose path is that of the messages around it."""
    if descriptor.full_name in path:
        raise BodyError(
            f"the message {descriptor.full_name} contains itself, which no table can have"
        )
    inside = (*path, descriptor.full_name)
    return {field.name: _field(field, inside) for field in descriptor.fields}


def _field(field: Any, path: tuple[str, ...]) -> ColumnReader:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        item = _single(value, path)
        kind = pa.map_(pa.string(), item.kind)
        return ColumnReader(kind, _pairs(item.read, key.type == key.TYPE_BOOL))
    item = _single(field, path)
    if field.is_repeated:
        return ColumnReader(list_of(item.kind), lambda each: [item.read(one) for one in each])
    return item


def _pairs(read: Converter, of_booleans: bool) -> Callable[[Any], list[tuple[str, Any]]]:
    """Return the reading of a map, whose keys become text, those that are booleans as in JSON."""

    def reading(value: Any) -> list[tuple[str, Any]]:
        names = ((str(key).lower() if of_booleans else str(key), key) for key in value)
        return sorted((name, read(value[key])) for name, key in names)

    return reading


def _single(field: Any, path: tuple[str, ...]) -> ColumnReader:
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return ColumnReader(pa.string(), lambda number: names.get(number, str(number)))
    if field.message_type is None:
        name = next(name for name in _SCALARS if getattr(field, f"TYPE_{name}") == field.type)
        return ColumnReader(_SCALARS[name], _same)
    return _message(field.message_type, path)


def _message(descriptor: Any, path: tuple[str, ...]) -> ColumnReader:
    name = descriptor.full_name
    if name == _GOOGLE + "Timestamp":
        return ColumnReader(INSTANT, _instant)
    if name in _WRAPPERS:
        inner = _single(descriptor.fields_by_name["value"], path)
        return ColumnReader(inner.kind, lambda value: inner.read(value.value))
    if name in _JSON:
        return ColumnReader(pa.string(), _json)
    members = _readers(descriptor, path)
    if not members:
        return ColumnReader(pa.bool_(), lambda _: True)  # a struct needs members: that it is set
    kind = struct_of((each, member.kind) for each, member in members.items())
    reads = {each: optional(member.read) for each, member in members.items()}

    def reading(value: Any) -> dict[str, Any]:
        return {each: reads[each](one) for each, one in fields_of(value, members).items()}

    return ColumnReader(kind, reading)


def fields_of(message: Any, readers: Readers) -> ChangeRow:
    """Return the fields of a message, not converted; None for those that are not set."""
    row: ChangeRow = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in readers:
            absent = field.has_presence and not message.HasField(field.name)
            row[field.name] = None if absent else getattr(message, field.name)
    return row


def _same(value: Any) -> Any:
    return value


def _instant(value: Any) -> int:
    return in_calendar(value.seconds * 10**6 + value.nanos // 1000, INSTANT)


def _json(value: Any) -> str:
    try:
        text: str = import_module("google.protobuf.json_format").MessageToJson(value, indent=None)
    except Exception as error:  # durations and numbers that JSON does not have
        raise BodyError(f"{quoted_value(str(value))} has no form in JSON: {error!s:.100}") from None
    return text.strip('"') if value.DESCRIPTOR.full_name.endswith(("Duration", "Mask")) else text
