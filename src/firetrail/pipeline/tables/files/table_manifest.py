"""The manifest of a table: its identity, its options, its schema, and the messages that it has.

::

    LAKE/NAME/_firetrail/manifest.json   the published state, replaced as a whole
    LAKE/NAME/_firetrail/pending.json    the next manifest, and the commits that lead to it
    LAKE/NAME/data/<sequence>-<number>-<token>.parquet
    LAKE/NAME__rejected/…                the messages that do not fit

A run writes and syncs its files under hidden names, and then the pending manifest. From then on the
run is certain to be completed, by itself or by the next one: files get their names, the tables
commit with the sequence of the manifest as the version of a transaction, which tells whether that
has happened already, and the manifest is published. A run that is killed before that leaves
hidden files, which the next one removes.

Files that are replaced are named by their bucket, not by their paths: somebody else may merge them
(OPTIMIZE) at any time, which changes no row and keeps buckets apart.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import pyarrow as pa

from firetrail.errors import LakeError
from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.decoding.schema.table_schema import EMPTY, TableSchema
from firetrail.pipeline.lakes.lake_manifest import FOLDER
from firetrail.pipeline.tables.files.format_rules import TableFormat
from firetrail.pipeline.tables.files.stored_file import TableFile
from firetrail.pipeline.tables.files.table_columns import BUCKET, REJECTED_SCHEMA, TableColumns
from firetrail.pipeline.tables.messages.broker_progress import BrokerProgress

VERSION = 1
_KEY = "firetrail_table"
LOCK = f"{FOLDER}/lock"
MAIN, REJECTED = "main", "rejected"
"""The tables that a run commits to, in this order."""


DATABASE, MEMBER = "database", "member"
"""The option of databases and of their tables, and the member of the latter with their folder."""


class MemberTable(NamedTuple):
    """A table of a database."""

    name: TableName
    folder: str
    """Its folder relative to that of the database."""
    messages: int
    """The number of messages of the topic that belong to it."""


@dataclass(frozen=True)
class TableManifest:
    """The published state of a table; ``sequence`` counts its changes."""

    table_id: str
    topic: str
    options: Mapping[str, Any]
    """The options that a table keeps: its decoder, message columns, key and history."""
    sequence: int = 0
    schema: TableSchema = EMPTY
    brokers: Mapping[str, BrokerProgress] = field(default_factory=dict)
    source_table: str = ""
    """The table of a database whose CDC events the topic has."""
    rows: int = 0
    rejected: int = 0
    skipped: int = 0
    deletes: Mapping[int, str] = field(default_factory=dict)
    """The files of deletes by bucket."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The versions of the tables after the last commits of this job."""
    tables: Sequence[MemberTable] = ()
    """The tables of a database, of which this is the manifest."""

    @classmethod
    def new(cls, topic: str, options: Mapping[str, Any], schema: TableSchema) -> Self:
        """Return the manifest of an empty table."""
        return cls(uuid.uuid4().hex[:16], topic, options, schema=schema)

    @property
    def key(self) -> list[str]:
        """The columns of the key, as the decoder names them; none for a table that only grows."""
        return list(self.options["upsert"])

    @property
    def database(self) -> Mapping[str, Any] | None:
        """The options of a database, or the folder of a table in it; None for a table alone."""
        found: Mapping[str, Any] | None = self.options.get(DATABASE)
        return found

    @property
    def prefix(self) -> str | None:
        """The prefix of the message columns; None for a table without them."""
        return str(self.options["prefix"]) if self.options["message_columns"] else None

    @property
    def history(self) -> bool:
        """Whether the table keeps all versions of each key."""
        return bool(self.options["history"])

    @property
    def format(self) -> TableFormat:
        """The format of the table."""
        return TableFormat(self.options.get("format", TableFormat.DELTA))

    @property
    def catalog(self) -> str:
        """The name of an Iceberg table with that of its catalog; empty without a catalog."""
        return str(self.options.get("catalog", ""))

    def columns_of(self, schema: TableSchema) -> TableColumns:
        """Return the columns of the table for a schema of the bodies."""
        return TableColumns(schema, self.prefix, self.history, self.format)

    def schema_of(self, table: str) -> pa.Schema:
        """Return the columns of one of the tables, with that of its buckets."""
        if table == REJECTED:
            return REJECTED_SCHEMA
        schema = self.columns_of(self.schema).schema
        return schema.append(pa.field(BUCKET, pa.int32())) if self.key else schema

    def fixed_columns(self, table: str) -> list[str]:
        """Return the names of the columns that one of the tables has from the beginning."""
        names: list[str] = self.schema_of(table).names
        return names if table == REJECTED else names[len(self.schema.names) :]

    @property
    def messages(self) -> int:
        """The number of messages that were read."""
        return sum(progress.messages for progress in self.brokers.values())

    def progress(self, broker: str) -> BrokerProgress:
        """Return the messages of a broker that the table has."""
        return self.brokers.get(broker, BrokerProgress())

    def with_versions(self, versions: Mapping[str, int]) -> Self:
        """Return a manifest with the versions of some tables."""
        return replace(self, versions={**self.versions, **versions})

    def as_json(self) -> dict[str, Any]:
        """Return the manifest as a value of JSON."""
        return {
            _KEY: VERSION,
            "table_id": self.table_id,
            "topic": self.topic,
            "options": dict(self.options),
            "sequence": self.sequence,
            "schema": json.loads(self.schema.to_json()),
            "brokers": {name: each.as_json() for name, each in sorted(self.brokers.items())},
            "source_table": self.source_table,
            "rows": self.rows,
            "rejected": self.rejected,
            "skipped": self.skipped,
            "deletes": {str(bucket): path for bucket, path in sorted(self.deletes.items())},
            "versions": dict(self.versions),
            "tables": [[*each.name, each.folder, each.messages] for each in self.tables],
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any], place: str) -> Self:
        """Return the manifest that :meth:`as_json` returned as a value.

        Args:
            value: The value.
            place: The file, for errors.

        Raises:
            LakeError: It is not the manifest of a table, or one of another version.
        """
        try:
            if value[_KEY] != VERSION:
                raise LakeError(
                    f"{place}: was written by another version of Firetrail (manifest version "
                    f"{value[_KEY]}, this one reads {VERSION}); upgrade Firetrail"
                )
            return cls(
                str(value["table_id"]),
                str(value["topic"]),
                dict(value["options"]),
                int(value["sequence"]),
                TableSchema.from_json(json.dumps(value["schema"])),
                {name: BrokerProgress.of_json(each) for name, each in value["brokers"].items()},
                str(value["source_table"]),
                int(value["rows"]),
                int(value["rejected"]),
                int(value["skipped"]),
                {int(bucket): str(path) for bucket, path in value["deletes"].items()},
                dict(value["versions"]),
                [
                    MemberTable(TableName(database, name), folder, int(messages))
                    for database, name, folder, messages in value.get("tables", ())
                ],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"{place}: is not the manifest of a table ({error}); choose another folder, or "
                "restore the file from a backup"
            ) from error


class PendingCommit(NamedTuple):
    """The next manifest, and the files that the tables gain."""

    manifest: TableManifest
    added: dict[str, list[TableFile]]
    buckets: Sequence[int] = ()
    """The buckets of the main table whose files are replaced."""
    rewritten: bool = False
    """Whether the files of the main table replace all others, because a type has changed."""
    retried: bool = False
    """The same for the table of rejected messages, because all of them were decoded again."""

    def encode(self) -> bytes:
        """Return the content of the file."""
        added = {table: [each._asdict() for each in files] for table, files in self.added.items()}
        content: dict[str, Any] = {"manifest": self.manifest.as_json(), "added": added}
        content |= {"buckets": list(self.buckets), "rewritten": self.rewritten}
        return json.dumps(content | {"retried": self.retried}).encode()


def encode_manifest(manifest: TableManifest) -> bytes:
    """Return the content of the manifest's file."""
    return json.dumps(manifest.as_json(), indent=1).encode()


def decode_manifest(content: bytes, place: str) -> TableManifest:
    """Decode the manifest's file; ``place`` names it in errors."""
    return TableManifest.of_json(_json(content, place), place)


def decode_pending(content: bytes, place: str) -> PendingCommit:
    """Decode the file of a pending manifest; ``place`` names it in errors."""
    found = _json(content, place)
    added = found.get("added", {})
    return PendingCommit(
        TableManifest.of_json(found.get("manifest", {}), place),
        {table: [TableFile(**each) for each in files] for table, files in added.items()},
        [int(bucket) for bucket in found.get("buckets", ())],
        bool(found.get("rewritten")),
        bool(found.get("retried")),
    )


def _json(content: bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise LakeError(f"{place}: is not JSON; restore the file from a backup")
    return found
