"""A check of a database against its topic, with the check of a table alone for each table.

The sources are read once. What names the table of a message is decided as in the job, like the
decoding of its body; all other code is not that of the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from firetrail.errors import ConfigError, DataLostError, LakeError
from firetrail.format.layout import COMPRESSED
from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.source.schema import TEXTS
from firetrail.pipeline.tables.databases.database_commit import COMMITS, member_publication
from firetrail.pipeline.tables.databases.database_members import read_member
from firetrail.pipeline.tables.databases.database_options import routing_rules
from firetrail.pipeline.tables.databases.message_routes import MessageRouter
from firetrail.pipeline.tables.files.library_errors import names_table
from firetrail.pipeline.tables.files.table_manifest import DATABASE, TableManifest
from firetrail.pipeline.tables.messages.open_sources import OpenSources
from firetrail.pipeline.tables.messages.table_sources import source_list
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.pipeline.tables.runs.verification import TableCheck, Verification

_SHOWN = 10
_SUMS = ("rows", "rejected", "missing", "repeated", "unexpected")


class DatabaseVerification(NamedTuple):
    """The result: the sums of all tables, and the result of each of them."""

    database: str
    tables: tuple[Verification, ...]
    messages: int  # of the sources that the database should have
    rows: int
    rejected: int  # by tables, and those of no table
    unassigned: int  # of these, messages of no table
    unreadable: int  # messages that the sources no longer have
    missing: int
    repeated: int
    unexpected: int
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all tables have exactly the messages that they should have."""
        return not self.missing and not self.repeated and not self.unexpected

    def as_json(self) -> dict[str, Any]:
        """Return the result as a value of JSON."""
        tables = [each._asdict() | {"ok": each.ok} for each in self.tables]
        return self._asdict() | {"tables": tables, "ok": self.ok}


@names_table
def verify_database(
    source: str | Path | Sequence[str | Path],
    to: str | Path,
    *,
    source_options: Mapping[str, str] | None = None,
) -> DatabaseVerification:
    """Compare a database with the messages of its topic.

    Args:
        source: The sources, as for :func:`~firetrail.pipeline.table`.
        to: Folder of the database, which no job may be writing.
        source_options: As for :func:`~firetrail.pipeline.table`. Default: none.

    Returns:
        The numbers of messages and rows, and what differs, by table and in all.

    Raises:
        LakeError: The folder has no database, or a run was killed and has to be completed first.
        ConfigError: The tables have no message columns.
        DataLostError: The tables have a key, and the sources lack messages.
    """
    home = Publication(str(to))
    manifest = home.manifest()
    if manifest is None or manifest.database is None or "by" not in manifest.database:
        raise LakeError(f"{home.lake.place}: has no database; check the path")
    check_completed(home)
    if manifest.prefix is None:
        raise ConfigError("message_columns", False, "without them, rows cannot be compared")
    with OpenSources(source_list(source), source_options) as opened:
        return _verified(home, manifest, opened)


def _verified(
    home: Publication, manifest: TableManifest, opened: OpenSources
) -> DatabaseVerification:
    own = TableCheck(home, manifest, opened)
    checks: dict[TableName | None, TableCheck] = {}
    for member in manifest.tables:
        publication, known = member_publication(home, member.folder), read_member(home, member)
        publication.check_settled(known)
        check = TableCheck(publication, replace(known, brokers=manifest.brokers), opened)
        checks[member.name] = check
        check.seen = own.seen  # so that rows in the wrong table are found
    counts: Counter[TableName | None] = Counter()
    router = MessageRouter(routing_rules(manifest.options))
    for place in opened.found(manifest.topic, manifest.brokers):
        for messages in own.new_messages(place):
            found: dict[TableName | None, list[Any]] = {}
            for message, route in zip(messages, router.routes(_batch(messages)), strict=True):
                name, is_rejected = route.table, own.has_rejected(message.place)
                if name in checks and not is_rejected:
                    found.setdefault(name, []).append(message)
                    counts[name] += 1
                elif is_rejected or route.reason or (name is not None and not route.is_statement):
                    own.expect_reject(message.place)
            for name, some in found.items():
                checks[name].expect(some)
    unreadable = manifest.messages - len(own.seen)
    if manifest.options[DATABASE]["upsert"] and unreadable > 0:
        raise DataLostError(
            f"{home.lake.place}: the sources no longer have {unreadable} messages that the "
            "database has read, so the newest versions are not known; name an archive, too"
        )
    results = tuple(
        check.result()._replace(messages=counts[name], unreadable=0)
        for name, check in checks.items()
    )
    return _summed(own.result(), results, max(unreadable, 0))


def check_completed(home: Publication) -> None:
    """Raise LakeError if a run was killed, whose commits some tables do not have."""
    if home.lake.read(COMMITS) is not None:
        raise LakeError(
            f"{home.lake.place}: a run was killed before all of it was published; run the job "
            "once more first"
        )


def _batch(messages: Sequence[Any]) -> pa.RecordBatch:
    """Return messages with the columns that name their tables."""
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([each.body for each in messages], pa.binary()),
            "tags": pa.array([each.tags for each in messages], pa.string()),
            "keys": pa.array([list(each.keys or ()) for each in messages], TEXTS),
            "sys_flag": pa.array(
                [COMPRESSED if each.body is None else 0 for each in messages], pa.int32()
            ),
        }
    )


def _summed(
    own: Verification, tables: tuple[Verification, ...], unreadable: int
) -> DatabaseVerification:
    sums = {name: sum(getattr(each, name) for each in (*tables, own)) for name in _SUMS}
    examples = [
        f"{each.table.removeprefix(own.table).lstrip('/') or 'no table'}: {example}"
        for each in (*tables, own)
        for example in each.examples
    ]
    return DatabaseVerification(
        own.table,
        tables,
        messages=own.messages,
        unassigned=own.rejected,
        unreadable=unreadable,
        examples=tuple(examples[:_SHOWN]),
        **sums,
    )
