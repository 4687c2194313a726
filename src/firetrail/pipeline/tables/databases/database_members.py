"""The tables of a database: their manifests, and what a run has prepared for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firetrail.errors import LakeError
from firetrail.pipeline.tables.databases.database_commit import member_publication
from firetrail.pipeline.tables.files.table_manifest import (
    MemberTable,
    PendingCommit,
    TableManifest,
)
from firetrail.pipeline.tables.keyed.bucket_change import Change
from firetrail.pipeline.tables.messages.broker_progress import BrokerProgress
from firetrail.pipeline.tables.row_task import TaskResult
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.table_result import TableResult, result_of


@dataclass(frozen=True)
class PreparedTable:
    """A table with its new rows, which is not published yet."""

    folder: str
    """Its folder in the database; empty for the database itself."""
    before: TableManifest
    pending: PendingCommit
    results: Sequence[TaskResult]
    change: Change
    messages: int

    def result(self, place: str) -> TableResult:
        """Return the result for the folder of the table."""
        done = result_of(place, self.before, self.pending.manifest, self.results, self.change)
        return done._replace(messages=self.messages) if self.folder else done


class NoTableError(Exception):
    """The messages of a new table cannot become one.

    Args:
        reason: The reason.
        is_skipped: Whether they are skipped instead of rejected. Default: False.
    """

    def __init__(self, reason: str, *, is_skipped: bool = False) -> None:
        super().__init__(reason)
        self.is_skipped = is_skipped


def settled_member(publication: Publication, is_new: bool) -> TableManifest | None:
    """Return the manifest of a table, without leftovers; None for a new one.

    Raises:
        LakeError: The folder of a new table has other files, or a table is missing or changed.
    """
    if is_new:
        found = publication.manifest()
        if found is None:
            publication.check_new()
        elif found.sequence or found.database is None:
            raise LakeError(
                f"{publication.lake.place}: has a table that is not in the manifest of its "
                "database; remove it, or begin a new database"
            )
        publication.remove_unfinished()
        return None
    manifest = publication.settle()
    if manifest is None:
        raise LakeError(
            f"{publication.lake.place}: the table is missing, but its database has it; restore "
            "it, or begin a new database"
        )
    return manifest


def read_member(home: Publication, member: MemberTable) -> TableManifest:
    """Return the manifest of a table of a database; raise LakeError if it is missing."""
    publication = member_publication(home, member.folder)
    manifest = publication.manifest()
    if manifest is None:
        raise LakeError(
            f"{publication.lake.place}: the table is missing, but its database has it; restore "
            "it, or begin a new database"
        )
    return manifest


def newest_messages(
    before: TableManifest, results: Sequence[TaskResult]
) -> dict[str, BrokerProgress]:
    """Return the newest message of each broker in a table; the database has the offsets."""
    brokers = dict(before.brokers)
    for result in results:
        known = brokers.get(result.broker, BrokerProgress())
        brokers[result.broker] = known.extended((), 0, result.anchor)
    return brokers
