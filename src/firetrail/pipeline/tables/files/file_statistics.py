"""The statistics of data files, by which readers of Delta skip files.

A table names the columns with statistics, and each file has those of all of them, or none at all.
Otherwise delta-rs takes a column without statistics for one that has no value, and a query of it
through a dataset of Arrow finds no row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from firetrail.pipeline.decoding.values.json_values import json_text
from firetrail.pipeline.tables.files.table_columns import BUCKET

INDEXED_COLUMNS = "delta.dataSkippingStatsColumns"
"""The property of a table that names the columns with statistics."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")
"""Names that are written into the property as they are; other columns are not in it."""
_TEXT_MAX = 32
"""Letters of a text in statistics; of a longer one, the beginning is there."""
_LAST_LETTER = "\U0010ffff"
_COLUMNS_MAX = 64
"""Columns with statistics. Files with more have none, because commits would become large."""


def indexed_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a new table that have statistics."""
    names = [field.name for field, _ in _simple_columns(schema) if field.name != BUCKET]
    return [name for name in names if _PLAIN_NAME.fullmatch(name)][:_COLUMNS_MAX]


def file_statistics(written: Any, schema: pa.Schema) -> str:
    """Return the number of rows of a file, and lowest and highest values of its simple columns.

    Args:
        written: The metadata of the Parquet file.
        schema: Its columns.
    """
    columns = list(_simple_columns(schema))
    stats: dict[str, Any] = {"numRecords": written.num_rows}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field, at in columns:
        groups = [written.row_group(n).column(at) for n in range(written.num_row_groups)]
        found = [group.statistics for group in groups]
        if any(each is None or not each.has_null_count for each in found):
            return json_text(stats)
        nulls[field.name] = sum(each.null_count for each in found)
        with_values = [each for each in found if each.num_values]
        if not all(each.has_min_max for each in with_values):
            return json_text(stats)  # Parquet leaves out those of very long texts
        if with_values:
            lowest[field.name] = _lower(min(each.min for each in with_values))
            highest[field.name] = _upper(max(each.max for each in with_values))
    if len(columns) <= _COLUMNS_MAX:
        stats |= {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json_text(stats)


def _simple_columns(schema: pa.Schema) -> Iterator[tuple[pa.Field, int]]:
    """Yield the columns that can have statistics, each with the number of its Parquet column.

    Parquet's own paths do not tell them: a column ``a.b`` has that of the member ``b`` of ``a``.
    """
    at = 0
    for field in schema:
        if _has_order(field.type):
            yield field, at
        at += _leaves(field.type)


def _leaves(kind: pa.DataType) -> int:
    """Return the number of Parquet columns that values of a type have."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(at).type) for at in range(kind.num_fields))


def _has_order(kind: pa.DataType) -> bool:
    """Whether a type has statistics. Floats have none, because NaN would not be in them."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is not None)
    )


def _lower(value: Any) -> Any:
    return value[:_TEXT_MAX] if isinstance(value, str) else _json_value(value)


def _upper(value: Any) -> Any:
    if not isinstance(value, str):
        return _json_value(value)
    end = _TEXT_MAX
    while value[end : end + 1] == _LAST_LETTER:
        end += 1
    return value if len(value) <= end else value[:end] + _LAST_LETTER


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        text = value.astimezone(UTC).isoformat(timespec="microseconds")
        return text.replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
