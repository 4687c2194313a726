"""Protobuf: types, presence, headers, and bodies that are no message."""

import base64
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.decoding.formats.registries import running

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding import Decoded, DecoderSpec, Operation, TableSchema
from firetrail.pipeline.decoding.formats.protobuf import message_indexes
from firetrail.pipeline.decoding.values.text_values import BodyError
from firetrail.pipeline.tables.table_options import decoder_spec

protoc: Any = pytest.importorskip("grpc_tools.protoc")
descriptor_pb2: Any = pytest.importorskip("google.protobuf.descriptor_pb2")

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum Kind { NONE = 0; BOOK = 3; }
message Order {
  int64 id = 1;
  optional string note = 2;
  uint32 u32 = 3;
  uint64 u64 = 4;
  sfixed32 s32 = 5;
  double d = 6;
  float f = 7;
  bool ok = 8;
  bytes raw = 9;
  Kind kind = 10;
  repeated Item items = 11;
  map<int32, Item> by_number = 12;
  google.protobuf.Timestamp at = 13;
  google.protobuf.Duration span = 14;
  google.protobuf.UInt64Value wrapped = 15;
  google.protobuf.Struct more = 16;
  oneof choice { string text = 17; int32 number = 18; }
  Nothing nothing = 19;
  message Item { string name = 1; repeated Kind kinds = 2; }
  message Nothing {}
}
message Other { sint64 n = 1; }
message Loop { Loop loop = 1; }
"""
COLUMNS = (
    "id bigint, note string, u32 bigint, u64 decimal(20,0), s32 int, d double, f float, ok boolean,"
    " raw binary, kind string, items array<struct<name: string, kinds: array<string>>>,"
    " by_number map<string, struct<name: string, kinds: array<string>>>, at timestamp, span string,"
    " wrapped decimal(20,0), more string, text string, number int, nothing boolean"
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proto")
    (folder / "shop.proto").write_text(PROTO)
    known = str(files("grpc_tools") / "_proto")
    arguments = ["", f"-I{folder}", f"-I{known}", "--include_imports", "shop.proto"]
    assert protoc.main([*arguments, f"--descriptor_set_out={folder / 'shop.desc'}"]) == 0
    return folder / "shop.desc"


def message(compiled: Path, name: str) -> Any:
    """Return the class of a message, made by another way than that of the product."""
    message_factory: Any = pytest.importorskip("google.protobuf.message_factory")
    contents = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    return message_factory.GetMessages(contents.file)[f"shop.{name}"]


def spec_of(compiled: Path, **options: str) -> DecoderSpec:
    given = {"format": "protobuf", "schemaFile": str(compiled), **options}
    spec: DecoderSpec = pickle.loads(pickle.dumps(DecoderSpec.from_options(given)))
    return spec


def decode(spec: DecoderSpec, *bodies: bytes) -> Decoded:
    return spec.decoder(TableSchema.from_ddl("")).decode(bodies)


def test_types_and_presence(compiled: Path) -> None:
    spec = spec_of(compiled)
    own = spec.own_schema()
    assert own is not None and own.ddl == COLUMNS
    order = message(compiled, "Order")(id=-1, u32=2**32 - 1, u64=2**64 - 1, s32=-5, d=0.1, f=0.5)
    order.ok, order.raw, order.kind, order.number = True, b"\xff", 3, 7
    order.items.add(name="a", kinds=[3, 0, 9])
    order.by_number[5].name = "b"
    order.at.seconds, order.at.nanos = 1709208000, 1999
    order.span.seconds = 90
    order.wrapped.value = 5
    order.more["k"] = [1, None]
    order.nothing.SetInParent()
    decoded = decode(
        spec, order.SerializeToString(), message(compiled, "Order")(id=1).SerializeToString()
    )
    assert not decoded.rejects and decoded.parts[0].schema == own
    row, empty = decoded.parts[0].rows.to_pylist()
    assert row == {
        **{"id": -1, "note": None, "u32": 2**32 - 1, "u64": Decimal(2**64 - 1), "s32": -5},
        **{"d": 0.1, "f": 0.5, "ok": True, "raw": b"\xff", "kind": "BOOK", "text": None},
        **{"items": [{"name": "a", "kinds": ["BOOK", "NONE", "9"]}], "span": "90s", "number": 7},
        **{"by_number": [("5", {"name": "b", "kinds": []})], "wrapped": Decimal(5)},
        **{"at": datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC), "more": '{"k": [1.0, null]}'},
        "nothing": True,
    }
    absent = {"note", "at", "span", "wrapped", "more", "text", "number", "nothing"}
    assert {name for name, value in empty.items() if value is None} == absent
    assert empty["u64"] == 0 and empty["kind"] == "NONE" and empty["items"] == []


def test_other_messages_are_named(compiled: Path) -> None:
    body = message(compiled, "Other")(n=-3).SerializeToString()
    assert decode(spec_of(compiled, message="shop.Other"), body).parts[0].rows.to_pylist() == [
        {"n": -3}
    ]
    with pytest.raises(ConfigError, match="the schema has no such message"):
        spec_of(compiled, message="shop.Missing")
    with pytest.raises(ConfigError, match=r"the message shop\.Loop contains itself"):
        spec_of(compiled, message="shop.Loop")


def test_a_file_that_is_no_descriptor_set(tmp_path: Path) -> None:
    (tmp_path / "shop.proto").write_text(PROTO)
    with pytest.raises(ConfigError, match="protoc --include_imports --descriptor_set_out"):
        spec_of(tmp_path / "shop.proto")


def test_bodies_that_are_no_message(compiled: Path) -> None:
    decoded = decode(spec_of(compiled), b"\x08", b"\x08\x01", b'{"id": 1}')
    assert [reject.message for reject in decoded.rejects] == [0, 2]
    assert "not a shop.Order: " in decoded.rejects[0].reason
    decoded = decode(spec_of(compiled, header="confluent"), b"")
    assert decoded.rejects[0].reason == "the body is empty"


def test_an_empty_body_has_the_defaults_of_all_fields(compiled: Path) -> None:
    other = {"message": "shop.Other"}
    part = decode(spec_of(compiled, **other), b"").parts[0]
    assert part.rows.to_pylist() == [{"n": 0}]
    kept = {"decoder": "protobuf", "upsert": ["n"]}
    for own, effect in (({}, Operation.UPSERT), ({"tombstones": "true"}, Operation.DELETE)):
        options = {"schemaFile": str(compiled), **other, **own}
        part = decode(decoder_spec({**kept, "decoder_options": options}), b"").parts[0]
        assert part.operations.to_pylist() == [effect]


def test_schemas_come_from_a_registry(compiled: Path) -> None:
    contents = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    text = base64.b64encode(contents.file[-1].SerializeToString()).decode()
    answers = {"/schemas/ids/7?format=serialized": {"schema": text, "schemaType": "PROTOBUF"}}
    order = message(compiled, "Order")(id=4).SerializeToString()
    other = message(compiled, "Other")(n=4).SerializeToString()
    item = message(compiled, "Order").Item(name="x").SerializeToString()
    header = b"\0\0\0\0\7"
    with running(answers) as registry:
        options = {"format": "protobuf", "header": "confluent", "registry": registry.url}
        spec = DecoderSpec.from_options(options)
        assert spec.own_schema() is None
        assert decode(spec, header + b"\0" + order).parts[0].rows["id"].to_pylist() == [4]
        assert decode(spec, header + b"\2\2" + other).parts[0].rows.to_pylist() == [{"n": 4}]
        nested = decode(spec, header + b"\4\0\0" + item).parts[0]
        assert nested.rows.to_pylist() == [{"name": "x", "kinds": []}]
        wrong = decode(spec, header + b"\2\x20" + other)
        assert "the schema has no such message" in wrong.rejects[0].reason
    offline = spec_of(compiled, header="confluent")
    assert decode(offline, header + b"\0" + order).parts[0].rows["id"].to_pylist() == [4]


def test_indexes_of_messages() -> None:
    assert message_indexes(b"\0rest") == ((0,), b"rest")
    assert message_indexes(b"\4\2\6rest") == ((1, 3), b"rest")
    for body in (b"", b"\4\2", b"\x80", b"\1", b"\xff\xff\xff\xff\xff\xff"):
        with pytest.raises(BodyError):
            message_indexes(body)
