"""The members that the events of all CDC tools have: tables, keys, times, and statements."""

from typing import Any

from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.decoding.events.alter_table import added_columns
from firetrail.pipeline.decoding.events.change_decoder import ChangeEvent, ColumnReader
from firetrail.pipeline.decoding.schema.arrow_types import INSTANT
from firetrail.pipeline.decoding.values.text_values import BodyError, in_calendar, quoted_value


def statement(table: TableName, sql: str, time: int | None) -> ChangeEvent:
    """Return the event of a statement that adds columns; raise BodyError for other statements."""
    columns = added_columns(sql)
    readers = {name: ColumnReader(kind, _unread) for name, kind in columns.items()}
    return ChangeEvent(table, (), readers, (), time)


def _unread(value: Any) -> Any:
    raise AssertionError("a statement has no rows")


def table_name(value: dict[str, Any], database: str = "database") -> TableName:
    """Return the table that an event names; raise BodyError if it names none.

    Args:
        value: The object with the names.
        database: The member that names the database. Default: ``database``.
    """
    found = named_table(value, database)
    if found is None or not found.table:
        named = quoted_value(value.get("table"))
        raise BodyError(f"not an event of a table: its member table is {named}")
    return found


def named_table(value: dict[str, Any], database: str = "database") -> TableName | None:
    """Return the table that an event names, or only its database; None if it names neither.

    Args:
        value: The object with the names.
        database: The member that names the database. Default: ``database``.
    """
    names = value.get(database), value.get("table")
    found = TableName(*(name if isinstance(name, str) else "" for name in names))
    return found if found.database or found.table else None


def text_member(value: dict[str, Any], name: str) -> str:
    """Return a member that is text; raise BodyError otherwise."""
    text = value.get(name)
    if not isinstance(text, str):
        raise BodyError(f"the member {name} is {quoted_value(text)}, not text")
    return text


def names_member(value: dict[str, Any], name: str) -> tuple[str, ...]:
    """Return a member that is a list of names, or missing."""
    names = value.get(name) or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise BodyError(f"{name} is not a list of names")
    return tuple(names)


def time_us(value: Any, unit_us: int = 1000) -> int | None:
    """Return a time as µs since 1970; None if it is not a time.

    Args:
        value: The number.
        unit_us: Its unit in µs. Default: 1000, for milliseconds.
    """
    if type(value) is not int:
        return None
    try:
        return in_calendar(value * unit_us, INSTANT)
    except BodyError:
        return None
