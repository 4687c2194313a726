"""The result of a run of the table job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firetrail.pipeline.tables.files.table_manifest import REJECTED, TableManifest
from firetrail.pipeline.tables.files.table_place import REJECTED_SUFFIX
from firetrail.pipeline.tables.keyed.bucket_change import Change
from firetrail.pipeline.tables.messages.broker_progress import lost_count
from firetrail.pipeline.tables.row_task import TaskResult, first_reject

_COUNTS = ("messages", "rows", "updated", "deleted", "rejected", "skipped", "lost", "files")


class TableResult(NamedTuple):
    """The result of a run, and what the table has afterwards."""

    table: str
    key: tuple[str, ...]
    history: bool
    messages: int  # read by this run
    rows: int  # added
    updated: int  # rows that a newer version replaced; with history, whose validity changed
    deleted: int  # rows
    rejected: int  # added to the table of rejected messages
    skipped: int  # messages that become no rows
    lost: int  # deleted before they were read
    files: int  # data files written
    first_reject: str  # position and reason; empty if nothing was rejected
    schema: str  # the decoded columns as DDL
    changes: tuple[str, ...]  # of the schema, by this run
    total_messages: int
    total_rows: int
    total_rejected: int
    rejected_table: str  # folder of the table of rejected messages

    def followed_by(self, other: TableResult) -> TableResult:
        """Return the result of two stages, of which ``other`` is the later one."""
        return other._replace(
            **{name: getattr(self, name) + getattr(other, name) for name in _COUNTS},
            first_reject=self.first_reject or other.first_reject,
            changes=(*self.changes, *other.changes),
        )


def result_of(
    place: str,
    before: TableManifest,
    after: TableManifest,
    results: Sequence[TaskResult],
    change: Change,
) -> TableResult:
    """Return the result of a stage.

    Args:
        place: Folder of the table.
        before: The manifest before it.
        after: The manifest that it has published, or the same.
        results: The results of its tasks.
        change: The change of the main table.
    """
    lost = sum(
        lost_count(before.progress(name), progress) for name, progress in after.brokers.items()
    )
    return TableResult(
        place,
        tuple(after.key),
        after.history,
        after.messages - before.messages,
        change.inserted,
        change.updated,
        change.deleted,
        after.rejected - before.rejected,
        after.skipped - before.skipped,
        lost,
        len(change.files) + sum(len(result.files[REJECTED]) for result in results),
        first_reject(results),
        after.schema.ddl,
        before.schema.widened(after.schema).changes,
        after.messages,
        after.rows,
        after.rejected,
        place + REJECTED_SUFFIX,
    )
