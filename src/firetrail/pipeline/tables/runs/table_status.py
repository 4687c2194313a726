"""The status of a table: its rows, its progress by broker and queue, and its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.table_manifest import MAIN
from firetrail.pipeline.tables.runs.publication import Publication


class BrokerMessages(NamedTuple):
    """The messages of one broker that a table has."""

    broker: str
    messages: int
    lost: int  # deleted before they were read
    newest_ms: int | None  # the store time of the newest message
    offsets: dict[int, int]  # of the next message of each queue


class TableStatus(NamedTuple):
    """The published state of a table."""

    table: str
    topic: str
    options: dict[str, Any]
    schema: str
    rows: int
    rejected: int
    skipped: int
    messages: int
    files: int
    size: int
    version: int | None  # of the table after the last commit of the job
    brokers: list[BrokerMessages]


@names_table
def table_status(to: str | Path) -> TableStatus:
    """Return the status of a table, which may be in use.

    Args:
        to: Folder of the table.

    Raises:
        LakeError: The folder has no table.
    """
    publication = Publication(str(to))
    manifest = publication.require_manifest()
    files = publication.files(manifest)
    brokers = [
        BrokerMessages(
            name,
            progress.messages,
            progress.lost,
            None if progress.anchor is None else progress.anchor.store_ms,
            progress.ends(),
        )
        for name, progress in sorted(manifest.brokers.items())
    ]
    return TableStatus(
        publication.lake.place,
        manifest.topic,
        dict(manifest.options),
        manifest.schema.ddl,
        manifest.rows,
        manifest.rejected,
        manifest.skipped,
        manifest.messages,
        len(files),
        sum(file.size for file in files),
        manifest.versions.get(MAIN),
        brokers,
    )
