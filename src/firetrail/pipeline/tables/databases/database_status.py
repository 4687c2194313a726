"""The status of a database: its totals and progress, and the status of each of its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from firetrail.errors import LakeError
from firetrail.pipeline.tables.databases.database_commit import member_publication
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.table_status import BrokerMessages, TableStatus, table_status


class DatabaseStatus(NamedTuple):
    """The published state of a database."""

    database: str
    topic: str
    options: dict[str, Any]
    tables: tuple[TableStatus, ...]
    messages: int  # of the topic that were read
    rows: int
    rejected: int  # by tables, and those of no table
    unassigned: int  # of these, messages of no table
    skipped: int
    files: int
    size: int
    brokers: list[BrokerMessages]

    def as_json(self) -> dict[str, Any]:
        """Return the status as a value of JSON."""
        tables = [
            each._asdict() | {"brokers": [broker._asdict() for broker in each.brokers]}
            for each in self.tables
        ]
        brokers = [broker._asdict() for broker in self.brokers]
        return self._asdict() | {"tables": tables, "brokers": brokers}


@names_table
def database_status(to: str | Path) -> DatabaseStatus:
    """Return the status of a database, which may be in use.

    Args:
        to: Folder of the database.

    Raises:
        LakeError: The folder has no database.
    """
    home = Publication(str(to))
    manifest = home.manifest()
    if manifest is None or manifest.database is None:
        raise LakeError(f"{home.lake.place}: has no database; check the path")
    own = table_status(home.lake.place)
    tables = tuple(
        table_status(member_publication(home, member.folder).lake.place)._replace(
            messages=member.messages
        )
        for member in manifest.tables
    )
    return DatabaseStatus(
        database=home.lake.place,
        topic=manifest.topic,
        options=dict(manifest.options),
        tables=tables,
        messages=manifest.messages,
        rows=sum(each.rows for each in tables),
        rejected=own.rejected + sum(each.rejected for each in tables),
        unassigned=own.rejected,
        skipped=own.skipped + sum(each.skipped for each in tables),
        files=sum(each.files for each in tables),
        size=sum(each.size for each in tables),
        brokers=own.brokers,
    )
