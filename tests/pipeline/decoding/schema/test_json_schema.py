"""JSON Schema as columns."""

import json
from pathlib import Path
from typing import Any

import pytest

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding import DecoderSpec, TableSchema

ADDRESS = {"properties": {"city": {"type": "string"}, "zip": {"enum": ["1", "2"]}}}


@pytest.mark.parametrize(
    ("schema", "ddl"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": "integer", "maximum": 2**64 - 1}, "decimal(20,0)"),
        ({"type": "integer", "maximum": 10**400}, "decimal(38,0)"),
        ({"type": "integer", "maximum": 1e30, "minimum": 0}, "decimal(38,0)"),
        ({"type": "integer", "minimum": -(2**63) - 1}, "decimal(38,0)"),
        ({"type": "integer", "exclusiveMaximum": 2**63}, "bigint"),
        ({"type": ["null", "number"]}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"const": "x"}, "string"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "string"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string, double>"),
        ({"$ref": "#/$defs/address"}, "struct<city: string, zip: string>"),
    ],
)
def test_types(schema: Any, ddl: str) -> None:
    root = {"type": "object", "properties": {"c": schema}, "$defs": {"address": ADDRESS}}
    assert TableSchema.from_json_schema(json.dumps(root)).ddl == f"c {ddl}"


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("{", "must be JSON Schema: "),
        ({"type": "string"}, "must describe an object with properties"),
        ({"type": "object"}, "'#': is an object without properties"),
        ({"properties": {"a": {}}}, "'#/properties/a': has no type that a column can have"),
        ({"properties": {"a": True}}, "'#/properties/a': says nothing about the type"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "allows several types"),
        ({"properties": {"a": {"$ref": "#/x"}}}, "refers to #/x, which is not in the file"),
        ({"properties": {"a": {"$ref": "#"}}}, "has more than 100 levels, or contains itself"),
        ({"properties": {"a": {"type": "string"}, "A": {"type": "string"}}}, "case does not count"),
    ],
)
def test_schemas_that_no_table_can_have(root: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TableSchema.from_json_schema(root if isinstance(root, str) else json.dumps(root))
    assert reason in str(refused.value)


def test_a_file_gives_the_schema_of_json(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    for text in ('{"properties": {"id": {"type": "integer"}}}', "id bigint\n"):
        path.write_text(text)
        spec = DecoderSpec.from_options({"format": "json", "schemaFile": str(path)})
        assert spec.own_schema() == TableSchema.from_ddl("id bigint")
