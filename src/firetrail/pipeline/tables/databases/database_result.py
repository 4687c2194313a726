"""The result of a run of a database."""

from __future__ import annotations

from typing import Any, NamedTuple

from firetrail.pipeline.tables.runs.table_result import TableResult

_SUMS = ("rows", "updated", "deleted", "files")


class DatabaseResult(NamedTuple):
    """The result of a run, and what the database has afterwards."""

    database: str
    tables: tuple[TableResult, ...]  # those that the run has changed
    key: tuple[str, ...]
    messages: int  # read by this run
    rows: int  # added to all tables
    updated: int
    deleted: int
    rejected: int  # by tables, and those of no table
    unassigned: int  # of these, messages of no table
    skipped: int
    lost: int  # deleted before they were read
    files: int
    first_reject: str  # position and reason; empty if nothing was rejected
    total_tables: int
    total_messages: int
    total_rows: int
    total_rejected: int

    def followed_by(self, other: DatabaseResult) -> DatabaseResult:
        """Return the result of two stages, of which ``other`` is the later one."""
        tables = {each.table: each for each in self.tables}
        for each in other.tables:
            before = tables.get(each.table)
            tables[each.table] = each if before is None else before.followed_by(each)
        names = (*_SUMS, "messages", "rejected", "unassigned", "skipped", "lost")
        return other._replace(
            **{name: getattr(self, name) + getattr(other, name) for name in names},
            tables=tuple(tables[name] for name in sorted(tables)),
            first_reject=self.first_reject or other.first_reject,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the result as a value of JSON."""
        return self._asdict() | {"tables": [each._asdict() for each in self.tables]}


def database_result(
    home: TableResult, tables: list[TableResult], key: tuple[str, ...], totals: tuple[int, int, int]
) -> DatabaseResult:
    """Return the result of a stage.

    Args:
        home: That of the database itself: its messages, and those of no table.
        tables: Those of the tables.
        key: The key of all tables.
        totals: The numbers of all tables, their rows, and their rejected messages.
    """
    rejects = [each.first_reject for each in (*tables, home) if each.first_reject]
    sums = {name: sum(getattr(each, name) for each in tables) for name in _SUMS}
    return DatabaseResult(
        home.table,
        tuple(tables),
        key,
        messages=home.messages,
        rejected=home.rejected + sum(each.rejected for each in tables),
        unassigned=home.rejected,
        skipped=home.skipped + sum(each.skipped for each in tables),
        lost=home.lost,
        first_reject=rejects[0] if rejects else "",
        total_tables=totals[0],
        total_messages=home.total_messages,
        total_rows=totals[1],
        total_rejected=totals[2] + home.total_rejected,
        **sums,
    )
