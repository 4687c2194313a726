"""The columns of an Iceberg table, with the ids by which readers find them in files.

PyIceberg gives ids to new columns in the order in which they are added, so the ids of a file can be
known before the columns are committed. A column whose new type Iceberg cannot read in old files
gets another id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from firetrail.pipeline.decoding.schema.arrow_types import (
    INSTANT,
    LOCAL_TIME,
    list_of,
    members_of,
    struct_of,
)
from firetrail.pipeline.tables.files.format_rules import promotes
from firetrail.pipeline.tables.files.table_columns import BUCKET

_ID = b"PARQUET:field_id"
_TYPES: dict[pa.DataType, PrimitiveType] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    INSTANT: TimestamptzType(),
    LOCAL_TIME: TimestampType(),
}
_ARROW_TYPES = {iceberg: arrow for arrow, iceberg in _TYPES.items()}


def first_schema(schema: pa.Schema, fixed: Collection[str]) -> Schema:
    """Return the columns with which a table begins, whose ids never change.

    Args:
        schema: All columns.
        fixed: The names of those that every version of the table has.
    """
    return Schema(*_iceberg_fields([field for field in schema if field.name in fixed]))


def partition_of(schema: Schema) -> PartitionSpec:
    """Return the partitions of a table: those of its buckets, or none."""
    if BUCKET not in schema.column_names:
        return UNPARTITIONED_PARTITION_SPEC
    source = schema.find_field(BUCKET).field_id
    return PartitionSpec(PartitionField(source, 1000, IdentityTransform(), BUCKET))


def change_columns(transaction: Transaction, schema: pa.Schema, fixed: Collection[str]) -> bool:
    """Add columns to a transaction, and make types wider; return whether anything changes.

    Args:
        transaction: The transaction.
        schema: All columns that the table should have.
        fixed: The names of those that every version has, before which new ones are inserted.
    """
    before = transaction.table_metadata.schema()
    known = {field.name: _arrow_type(field.field_type) for field in before.fields}
    wanted = {field.name: field.field_type for field in _iceberg_fields(list(schema))}
    changed = [field for field in schema if known.get(field.name) != field.type]
    if not changed:
        return False
    ahead = next((field.name for field in before.fields if field.name in fixed), None)
    widened = [f for f in changed if f.name in known and promotes(known[f.name], f.type)]
    added = [field for field in changed if field not in widened]
    with transaction.update_schema() as update:
        for field in widened:
            old = before.find_field(field.name).field_type
            _widen(update, (field.name,), old, wanted[field.name])
        for field in added:
            if field.name in known:
                update.delete_column((field.name,))
    with transaction.update_schema() as update:
        for field in added:
            update.add_column((field.name,), wanted[field.name])
            if ahead is not None:
                update.move_before((field.name,), (ahead,))
    return True


def _widen(update: UpdateSchema, path: tuple[str, ...], old: IcebergType, new: IcebergType) -> None:
    """Change a type to a wider one that Iceberg reads in old files."""
    if isinstance(old, ListType) and isinstance(new, ListType):
        _widen(update, (*path, "element"), old.element_type, new.element_type)
    elif isinstance(old, MapType) and isinstance(new, MapType):
        _widen(update, (*path, "value"), old.value_type, new.value_type)
    elif isinstance(old, StructType) and isinstance(new, StructType):
        known = {field.name: field.field_type for field in old.fields}
        for field in new.fields:
            if field.name in known:
                _widen(update, (*path, field.name), known[field.name], field.field_type)
            else:
                update.add_column((*path, field.name), field.field_type)
    elif old != new:
        update.update_column(path, new)


def file_schema(schema: pa.Schema, columns: Schema) -> pa.Schema:
    """Return the columns of a file with the ids that a table has for them."""
    return pa.schema([_with_ids(field, columns.find_field(field.name)) for field in schema])


def arrow_columns(schema: Schema) -> pa.Schema:
    """Return the columns of a table as tables have them in Arrow."""
    return pa.schema(
        [pa.field(field.name, _arrow_type(field.field_type)) for field in schema.fields]
    )


def _with_ids(field: pa.Field, column: Any) -> pa.Field:
    kind, own = field.type, column.field_type
    if pa.types.is_list(kind):
        kind = pa.list_(_with_ids(kind.value_field, own.element_field))
    elif pa.types.is_map(kind):
        key = _with_ids(kind.key_field, own.key_field)
        kind = pa.map_(key, _with_ids(kind.item_field, own.value_field))
    elif pa.types.is_struct(kind):
        members = {member.name: member for member in own.fields}
        inner = [kind.field(at) for at in range(kind.num_fields)]
        kind = pa.struct([_with_ids(member, members[member.name]) for member in inner])
    return pa.field(field.name, kind, field.nullable, {_ID: str(column.field_id)})


def _iceberg_fields(fields: list[pa.Field]) -> list[NestedField]:
    """Return columns with ids of their own, which PyIceberg replaces by those of the table."""
    ids = count(1)
    return [
        NestedField(next(ids), field.name, _iceberg_type(field.type, ids), required=False)
        for field in fields
    ]


def _iceberg_type(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    if pa.types.is_list(kind):
        own = next(ids)
        return ListType(own, _iceberg_type(kind.value_type, ids), element_required=False)
    if pa.types.is_map(kind):
        key, value = next(ids), next(ids)
        items = _iceberg_type(kind.item_type, ids)
        return MapType(key, _iceberg_type(kind.key_type, ids), value, items, value_required=False)
    if pa.types.is_struct(kind):
        members = [
            NestedField(next(ids), name, _iceberg_type(each, ids), required=False)
            for name, each in members_of(kind)
        ]
        return StructType(*members)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _TYPES[kind]


def _arrow_type(kind: IcebergType) -> pa.DataType:
    """Return the type of Arrow that tables use for a type of Iceberg."""
    if isinstance(kind, ListType):
        return list_of(_arrow_type(kind.element_type))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.key_type), _arrow_type(kind.value_type))
    if isinstance(kind, StructType):
        return struct_of((field.name, _arrow_type(field.field_type)) for field in kind.fields)
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    assert isinstance(kind, PrimitiveType)
    return _ARROW_TYPES[kind]
