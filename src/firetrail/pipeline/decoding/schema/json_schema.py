"""Columns that a JSON Schema describes.

An object with properties is a struct (at the top, the columns), one with only
``additionalProperties`` a map. ``integer`` is ``bigint``, ``number`` is ``double``; text has the
type of its ``format`` (``date``, ``date-time``), or is binary with ``contentEncoding: base64``.
Every column may be null. References lead to the same file.
"""

import json
from collections.abc import Mapping
from math import inf
from typing import Any

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.schema.arrow_types import (
    DEPTH_MAX,
    INSTANT,
    list_of,
    struct_of,
    whole_type,
)

_SCALARS = {"boolean": pa.bool_(), "number": pa.float64(), "null": None}
_FORMATS = {"date": pa.date32(), "date-time": INSTANT}
_CHOICES = ("oneOf", "anyOf", "allOf")


def schema_columns(text: str) -> list[tuple[str, pa.DataType]]:
    """Return the columns; raise ConfigError, with the place, for what no table can have."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("schema", text, f"must be JSON Schema: {error}") from error
    kind = _JsonSchema(root).type(root, "#", 1)
    if kind is None or not pa.types.is_struct(kind):
        raise ConfigError("schema", text, "must describe an object with properties")
    return [(kind.field(at).name, kind.field(at).type) for at in range(kind.num_fields)]


class _JsonSchema:
    """A schema with its definitions."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def type(self, schema: Any, place: str, depth: int) -> pa.DataType | None:
        """Return the type that a part describes; None if it only describes null."""
        if depth > DEPTH_MAX:
            raise self._error(place, f"has more than {DEPTH_MAX} levels, or contains itself")
        if not isinstance(schema, Mapping):
            raise self._error(place, "says nothing about the type")
        if "$ref" in schema:
            return self.type(self._referenced(schema["$ref"], place), schema["$ref"], depth + 1)
        for word in _CHOICES:
            if isinstance(schema.get(word), list):
                return self._one_of(schema[word], f"{place}/{word}", depth)
        given = schema.get("type", _implied(schema))
        if isinstance(given, list):
            parts = [{**schema, "type": each} for each in given]
            return self._one_of(parts, f"{place}/type", depth)
        return self._single(schema, given, place, depth)

    def _single(self, schema: Any, given: Any, place: str, depth: int) -> pa.DataType | None:
        if given == "object":
            return self._object(schema, place, depth)
        if given == "array":
            item = self.type(schema.get("items"), f"{place}/items", depth + 1)
            return None if item is None else list_of(item)
        if given == "string":
            encoded = schema.get("contentEncoding") == "base64"
            return pa.binary() if encoded else _FORMATS.get(schema.get("format"), pa.string())
        if given == "integer":
            return whole_type(_limit(schema, "minimum", 1), _limit(schema, "maximum", -1))
        if not isinstance(given, str) or given not in _SCALARS:
            raise self._error(place, "has no type that a column can have")
        return _SCALARS[given]

    def _object(self, schema: Any, place: str, depth: int) -> pa.DataType:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if not properties and isinstance(others, Mapping):
            value = self.type(others, f"{place}/additionalProperties", depth + 1)
            return pa.map_(pa.string(), pa.string() if value is None else value)
        if not isinstance(properties, Mapping) or not properties:
            raise self._error(place, "is an object without properties")
        found = {
            name: self.type(each, f"{place}/properties/{name}", depth + 1)
            for name, each in properties.items()
        }
        return struct_of((name, kind) for name, kind in found.items() if kind is not None)

    def _one_of(self, parts: list[Any], place: str, depth: int) -> pa.DataType | None:
        kinds = [self.type(each, place, depth + 1) for each in parts]
        several = list(dict.fromkeys(kind for kind in kinds if kind is not None))
        if len(several) > 1:
            raise self._error(place, "allows several types; a column has one")
        return several[0] if several else None

    def _referenced(self, reference: Any, place: str) -> Any:
        part = self._root
        names = reference.split("/") if isinstance(reference, str) else [""]
        for name in names[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            part = part.get(key) if isinstance(part, Mapping) else None
        if names[0] != "#" or part is None:
            raise self._error(place, f"refers to {reference}, which is not in the file")
        return part

    def _error(self, place: str, reason: str) -> ConfigError:
        return ConfigError("schema", place, reason)


def _limit(schema: Mapping[str, Any], word: str, inside: int) -> int:
    """Return the limit of whole numbers that a part names, 0 if it names none.

    Args:
        schema: The part.
        word: ``minimum`` or ``maximum``.
        inside: The step from an exclusive limit to a number that is allowed.
    """
    limits = []
    for name, step in ((word, 0), (f"exclusive{word.capitalize()}", inside)):
        limit = schema.get(name)
        if isinstance(limit, int | float) and not isinstance(limit, bool) and abs(limit) < inf:
            limits.append(int(limit) + step)
    return (max if inside > 0 else min)(limits, default=0)


def _implied(schema: Mapping[str, Any]) -> str | None:
    """Return the type of a part that does not name it."""
    if "properties" in schema:
        return "object"
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        return "string"
    return "array" if "items" in schema else None
