"""The schema of a table: its columns in their order."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.schema.arrow_types import (
    check_names,
    ddl_name,
    ddl_type,
    folded_name,
    normalized_type,
    wider,
)
from firetrail.pipeline.decoding.schema.ddl import parse_columns, parse_type
from firetrail.pipeline.decoding.schema.json_schema import schema_columns

_MEMBERS = {"name", "type"}


@dataclass(frozen=True)
class TableSchema:
    """Columns with Arrow types, all of them nullable. Objects can be compared and pickled.

    Args:
        arrow: The columns. Names that differ only in case are refused, in structs too.
    """

    arrow: pa.Schema

    def __post_init__(self) -> None:
        check_names(self.arrow.names, ", ".join(self.arrow.names))
        columns = [
            pa.field(each.name, normalized_type(each.type, each.name)) for each in self.arrow
        ]
        object.__setattr__(self, "arrow", pa.schema(columns))

    @classmethod
    def of(
        cls, columns: Mapping[str, pa.DataType] | Iterable[tuple[str, pa.DataType]]
    ) -> "TableSchema":
        """Return the schema with these names and types."""
        pairs = columns.items() if isinstance(columns, Mapping) else columns
        return cls(pa.schema([pa.field(name, kind) for name, kind in pairs]))

    @classmethod
    def from_ddl(cls, text: str) -> "TableSchema":
        """Return the schema that DDL text describes; raise ConfigError for other text.

        Args:
            text: Such as ``id bigint, tags array<string>``.
        """
        return cls.of(parse_columns(text))

    @classmethod
    def from_json_schema(cls, text: str) -> "TableSchema":
        """Return the schema that a JSON Schema describes; raise ConfigError for other text."""
        return cls.of(schema_columns(text))

    @classmethod
    def from_json(cls, text: str) -> "TableSchema":
        """Return the schema that :meth:`to_json` wrote."""
        try:
            columns = json.loads(text)
            if not isinstance(columns, list):
                raise TypeError(f"a {type(columns).__name__}")
            return cls.of((each["name"], parse_type(each["type"])) for each in columns)
        except (ValueError, TypeError, KeyError) as error:
            allowed = 'expected a list of {"name": …, "type": …}'
            raise ConfigError("schema", text, f"{allowed}: {error}") from error

    def to_json(self) -> str:
        """Return the schema as JSON, for a manifest."""
        columns = [{"name": each.name, "type": ddl_type(each.type)} for each in self.arrow]
        return json.dumps(columns, ensure_ascii=False)

    @cached_property
    def ddl(self) -> str:
        """The schema as DDL text, which :meth:`from_ddl` reads."""
        return ", ".join(f"{ddl_name(each.name)} {ddl_type(each.type)}" for each in self.arrow)

    @property
    def names(self) -> list[str]:
        names: list[str] = self.arrow.names
        return names

    @cached_property
    def _places(self) -> dict[str, int]:
        return {folded_name(name): at for at, name in enumerate(self.arrow.names)}

    def own_name(self, name: str) -> str | None:
        """Return the column's own name for one in any case; None if there is no such column."""
        at = self._places.get(folded_name(name))
        return None if at is None else self.names[at]

    def type_of(self, name: str) -> pa.DataType | None:
        """Return the type of a column, whose name may be in any case; None if there is none."""
        at = self._places.get(folded_name(name))
        return None if at is None else self.arrow.field(at).type

    def widened(self, other: "TableSchema") -> "Widening":
        """Return this schema with the columns and the wider types of another one.

        Columns are compared by name without regard to case. Own names and the own order stay, and
        new columns follow. A type that cannot be widened stays as it is, which is a conflict.
        """
        columns = {each.name: each.type for each in self.arrow}
        changes: list[str] = []
        conflicts: list[str] = []
        for field in other.arrow:
            own = self.own_name(field.name)
            if own is None:
                columns[field.name] = field.type
                changes.append(f"new column {ddl_name(field.name)} {ddl_type(field.type)}")
                continue
            kind = wider(columns[own], field.type)
            types = f"{ddl_name(own)} is {ddl_type(columns[own])}"
            if kind is None:
                conflicts.append(f"column {types}, and elsewhere {ddl_type(field.type)}")
            elif kind != columns[own]:
                changes.append(f"column {types}, becomes {ddl_type(kind)}")
                columns[own] = kind
        merged = self.of(columns) if changes else self
        return Widening(merged, tuple(changes), tuple(conflicts))

    def __reduce__(self) -> tuple[type["TableSchema"], tuple[pa.Schema]]:
        return TableSchema, (self.arrow,)

    def __hash__(self) -> int:
        return hash(self.ddl)

    def __str__(self) -> str:
        return self.ddl


@dataclass(frozen=True, slots=True)
class Widening:
    """The result of merging two schemas.

    Args:
        schema: The merged schema.
        changes: What is new in it, as text for people. Empty if nothing is.
        conflicts: Columns whose types contradict each other, as text for people.
    """

    schema: TableSchema
    changes: tuple[str, ...]
    conflicts: tuple[str, ...]


EMPTY = TableSchema(pa.schema([]))


def merged(schemas: Sequence[TableSchema]) -> Widening:
    """Return the first schema, widened by all others in turn."""
    result = schemas[0] if schemas else EMPTY
    changes: list[str] = []
    conflicts: list[str] = []
    for schema in schemas[1:]:
        step = result.widened(schema)
        result = step.schema
        changes += step.changes
        conflicts += step.conflicts
    return Widening(result, tuple(changes), tuple(conflicts))
