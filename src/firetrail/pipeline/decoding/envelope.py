"""The members that the events of all CDC tools have: tables, keys, times, and statements."""

from typing import Any

from firetrail.pipeline.decoding.alter_table import added_columns
from firetrail.pipeline.decoding.arrow_types import INSTANT
from firetrail.pipeline.decoding.changes import ChangeEvent, ColumnReader
from firetrail.pipeline.decoding.decoded import TableName
from firetrail.pipeline.decoding.text_values import Misfit, in_calendar, shown


def statement(table: TableName, sql: str, time: int | None) -> ChangeEvent:
    """Return the event of a statement that adds columns; raise Misfit for other statements."""
    columns = added_columns(sql)
    readers = {name: ColumnReader(kind, _unread) for name, kind in columns.items()}
    return ChangeEvent(table, (), readers, (), time)


def _unread(value: Any) -> Any:
    raise AssertionError("a statement has no rows")


def table_name(
    value: dict[str, Any], database: str = "database", table: str = "table"
) -> TableName:
    """Return the table that an event names; raise Misfit if it names none.

    Args:
        value: The object with the names.
        database: The member that names the database. Default: ``database``.
    """
    names = value.get(database), value.get("table")
    if not isinstance(names[1], str) or not names[1]:
        raise Misfit(f"not an event of a table: its member table is {shown(names[1])}")
    return TableName(names[0] if isinstance(names[0], str) else "", names[1])


def text_member(value: dict[str, Any], name: str) -> str:
    """Return a member that is text; raise Misfit otherwise."""
    text = value.get(name)
    if not isinstance(text, str):
        raise Misfit(f"the member {name} is {shown(text)}, not text")
    return text


def names_member(value: dict[str, Any], name: str) -> tuple[str, ...]:
    """Return a member that is a list of names, or missing."""
    names = value.get(name) or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise Misfit(f"{name} is not a list of names")
    return tuple(names)


def milliseconds(value: Any, factor: int = 1000) -> int | None:
    """Return a time as µs; None if it is no time."""
    if type(value) is not int:
        return None
    try:
        return in_calendar(value * factor, INSTANT)
    except Misfit:
        return None
