"""The table formats of a lake: plain Parquet files, a Delta table or an Iceberg table.

A Delta or Iceberg table has its own list of files, which must agree with the manifest. Therefore
the next manifest is first written as ``pending.json``. Then the new files get their names, the
table commits with the manifest's sequence number, and finally the pending manifest is published. A
job that finds a pending manifest looks for its number in the table, and publishes or discards it.
Plain Parquet files have no other commit than their names, so a job that finds a pending manifest
names the remaining files and publishes it.

Where jobs are kept apart by conditional writes, the manifest is published first and decides which
job goes on.

The manifest decides which files the archive has. A run that finds a table without its newest number
commits what the table lacks: a job was killed after it had published the manifest, or a power
failure has taken a commit that was not synced.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa

from firetrail.errors import ConfigError, LakeConflictError, LakeError
from firetrail.pipeline.lakes.delta_log import DELTA_LOG, sync_delta_commits
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_libraries import first_line, library
from firetrail.pipeline.lakes.lake_manifest import (
    FOLDER,
    PENDING,
    DataFile,
    LakeLayout,
    Manifest,
    decode_manifest,
)
from firetrail.pipeline.lakes.lake_schema import DAY, file_schema
from firetrail.pipeline.lakes.location import check_delta_opens
from firetrail.pipeline.tables.files.file_statistics import INDEXED_COLUMNS
from firetrail.system import SYSTEM

_PARTITIONS = {LakeLayout.DAY: ["day"], LakeLayout.TOPIC: ["topic", "day"]}
_INDEXED = {LakeLayout.DAY: ["topic", "physical_offset"], LakeLayout.TOPIC: ["physical_offset"]}
"""The columns with statistics."""
_COMMITS = 5
"""Maximum attempts at a commit to a Delta table that other jobs change at the same time."""
_SEQUENCE = "firetrail.sequence"
_CATALOG = "catalog.db"
_WITHOUT_METRICS = ("body", "record", "keys.element", "properties.key", "properties.value")


class LakeTable(Protocol):
    """Makes data files visible to readers."""

    kind: str
    topic_column: bool
    """Whether files must contain the topic even if it is part of their path."""
    has_history: bool
    """Whether older versions can be read, so that replaced files must be kept for a while."""

    def settle(self) -> None:
        """Complete or undo a publication that a killed job has begun."""

    def publish(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        """Publish a manifest that differs from the previous one by these files."""


class _PublishedTable:
    """The common part of all formats: the pending manifest, and names for complete files."""

    kind = ""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def settle(self) -> None:
        """Publish the pending manifest, or discard it if it was not committed; heal the table."""
        published = self._lake.manifest()
        if self._lake.folder.has_conditional_writes:
            if published is not None:
                self._follow(published)
            return
        content = self._lake.folder.read(PENDING)
        found = published
        if content is not None:
            pending = decode_manifest(content, self._lake.folder.show(PENDING))
            is_new = published is None or published.sequence < pending.sequence
            if is_new and self._complete(pending):
                found = pending
        if found is not None:
            self._follow(found, is_doubtful=content is not None)
            if found is not published:
                self._lake.publish(found)
        self._lake.folder.remove(PENDING)

    def publish(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        """Write the pending manifest, commit to the table, then publish the manifest."""
        if self._lake.folder.has_conditional_writes:
            self._publish_first(manifest, added)
            return
        self._lake.folder.replace(PENDING, manifest.encode())
        self._lake.reveal(added)
        self._commit(manifest, added, removed)
        self._lake.publish(manifest)

    def _publish_first(self, manifest: Manifest, added: list[DataFile]) -> None:
        """Publish the manifest, then commit to the table what it lacks.

        If the manifest with this number is that of another job, this one removes its files.
        """
        try:
            self._lake.publish(manifest)
        except LakeConflictError:
            winner = self._lake.manifest()
            if winner is not None and winner.sequence == manifest.sequence:
                for file in added:
                    self._lake.folder.remove(file.path)
            raise
        self._follow(manifest)

    def _follow(self, manifest: Manifest, *, is_doubtful: bool = False) -> None:
        """Commit to the table what it lacks of a published manifest, if that has a newer number.

        Args:
            manifest: The manifest.
            is_doubtful: Whether files are compared also if the table has the number: a part of its
                newest commit may be missing. Default: False.
        """
        raise NotImplementedError

    def _complete(self, manifest: Manifest) -> bool:
        """Complete a publication that a killed job has begun; return False if it cannot be."""
        raise NotImplementedError

    def _commit(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        raise NotImplementedError


class ParquetFiles(_PublishedTable):
    """Files in Hive-style folders, which programs read by listing the folders.

    Such readers see files one by one, as they get their names. So files are only added, unless the
    user asks for a compaction.
    """

    kind = "parquet"
    topic_column = False
    has_history = False

    def _complete(self, manifest: Manifest) -> bool:
        """Name the remaining files; programs may be reading those that have their names."""
        published = self._lake.manifest()
        known = {file.path for file in published.files} if published else set()
        self._lake.reveal(file for file in manifest.files if file.path not in known)
        return True

    def _commit(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        """Do nothing: there is no commit but the manifest."""

    def _follow(self, manifest: Manifest, *, is_doubtful: bool = False) -> None:
        """Do nothing: there is no table but the manifest."""

    def publish(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        """Publish as every table does, then remove the files that the manifest no longer names."""
        super().publish(manifest, added, removed)
        for file in removed:
            self._lake.folder.remove(file.path)


class DeltaFiles(_PublishedTable):
    """A Delta table partitioned by day, or by topic and day."""

    kind = "delta"
    topic_column = False
    has_history = True

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake)
        check_delta_opens(lake.folder)
        self._deltalake: Any = library("deltalake", self.kind)

    def settle(self) -> None:
        """Settle as every table does; explain errors of the library."""
        with self._explained():
            super().settle()

    def publish(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        """Publish as every table does; explain errors of the library."""
        with self._explained():
            super().publish(manifest, added, removed)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise LakeError, which names the table and the remedy, for errors of delta-rs."""
        try:
            yield
        except self._deltalake.exceptions.DeltaError as error:
            raise LakeError(
                f"{self._lake.place}: the Delta table cannot be read or changed "
                f"({first_line(error)}). If a power failure has cut the newest file of "
                f"{DELTA_LOG}, remove that file. Then run the job again: it commits what the table "
                "lacks"
            ) from error

    def _table(self, layout: LakeLayout) -> Any:
        schema = file_schema(topic=False).append(pa.field("topic", pa.string())).append(DAY)
        return self._deltalake.DeltaTable.create(
            self._lake.place,
            schema=schema,
            mode="ignore",
            partition_by=_PARTITIONS[layout],
            configuration={INDEXED_COLUMNS: ",".join(_INDEXED[layout])},
            raise_if_key_not_exists=False,
            storage_options=self._lake.folder.storage_options(),
        )

    def _complete(self, manifest: Manifest) -> bool:
        table = self._table(manifest.layout)
        found = table.transaction_version(manifest.lake_id)
        if found is None or found < manifest.sequence:
            return False
        sync_delta_commits(self._lake.folder, -1, table.version())
        return True

    def _commit(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        layout = manifest.layout
        self._write(
            self._table(layout),
            manifest,
            [*self._adds(added, layout, bool(removed)), *self._removes(removed, layout)],
        )

    def _write(self, table: Any, manifest: Manifest, actions: list[Any]) -> None:
        """Commit durably to a version of the table, as the one job that commits this manifest."""
        known = table.version()
        transaction = self._deltalake.Transaction(manifest.lake_id, manifest.sequence)
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=_PARTITIONS[manifest.layout],
            commit_properties=self._deltalake.CommitProperties(app_transactions=[transaction]),
        )
        if self._lake.folder.is_local:
            table.update_incremental()
            # Version 0 is the creation of the table, which this job may have done.
            sync_delta_commits(self._lake.folder, known or -1, table.version())

    def _follow(self, manifest: Manifest, *, is_doubtful: bool = False) -> None:
        """Commit the difference, with the number of the manifest.

        Commits with the lake's id conflict with each other, also if they only add files. So if
        several jobs do this at the same time, one commits, and the others find its number.
        """
        problem: Exception | None = None
        for _ in range(_COMMITS):
            try:
                table = self._table(manifest.layout)
                done = table.transaction_version(manifest.lake_id)
                if not is_doubtful and done is not None and done >= manifest.sequence:
                    return
                actions = self._difference(table, manifest)
                if actions:
                    self._write(table, manifest, actions)
                return
            except (self._deltalake.exceptions.DeltaError, OSError) as error:
                if not self._lake.folder.has_conditional_writes:
                    raise
                problem = error
        raise LakeError(
            f"{self._lake.place}: the archive is complete, but its Delta table does not have the "
            f"newest files ({first_line(problem)}); the next run adds them"
        ) from problem

    def _difference(self, table: Any, manifest: Manifest) -> list[Any]:
        """Return the actions after which the table has the files of the manifest."""
        found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        present = {unquote(row["path"]): row for row in found}
        wanted = {file.path for file in manifest.files}
        added = [file for file in manifest.files if file.path not in present]
        removed = [(path, row) for path, row in present.items() if path not in wanted]
        transaction = import_module("deltalake.transaction")
        actions = list(self._adds(added, manifest.layout, bool(removed)))
        now_ms = SYSTEM.clock.now_ms()
        for path, row in removed:
            columns = _PARTITIONS[manifest.layout]
            partition = {name: str(row[f"partition.{name}"]) for name in columns}
            size = row["size_bytes"]
            actions.append(transaction.RemoveAction(path, False, now_ms, size, partition))
        return actions

    def _adds(
        self, files: Iterable[DataFile], layout: LakeLayout, rearranged: bool
    ) -> Iterable[Any]:
        transaction = import_module("deltalake.transaction")
        for file in files:
            lowest: dict[str, Any] = {"physical_offset": file.start, "topic": file.topic}
            highest: dict[str, Any] = {"physical_offset": file.last, "topic": file.last_topic}
            lowest, highest = (
                {name: bound[name] for name in _INDEXED[layout]} for bound in (lowest, highest)
            )
            stats = {
                "numRecords": file.messages,
                "minValues": lowest,
                "maxValues": highest,
                "nullCount": dict.fromkeys(lowest, 0),
            }
            yield transaction.AddAction(
                file.path,
                file.size,
                _partition_of(file, layout),
                0,
                not rearranged,
                json.dumps(stats),
            )

    def _removes(self, files: Iterable[DataFile], layout: LakeLayout) -> Iterable[Any]:
        transaction = import_module("deltalake.transaction")
        for file in files:
            yield transaction.RemoveAction(
                file.path, False, SYSTEM.clock.now_ms(), file.size, _partition_of(file, layout)
            )


def _partition_of(file: DataFile, layout: LakeLayout) -> dict[str, str]:
    values = {"topic": file.topic, "day": file.day}
    return {name: values[name] for name in _PARTITIONS[layout]}


class IcebergFiles(_PublishedTable):
    """An Iceberg table partitioned by the day of the store time, or by topic and day.

    The catalog is a SQLite file in the lake, so the lake must be a local folder. Its connections
    are closed after each step; the catalog opens new ones when it needs them.
    """

    kind = "iceberg"
    topic_column = True
    has_history = True
    name = "firetrail.messages"

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake)
        catalogs: Any = library("pyiceberg.catalog.sql", self.kind)
        if not lake.folder.is_local:
            raise LakeError(
                f"{lake.place}: an Iceberg archive needs a local folder for its catalog; use "
                "--format delta"
            )
        self._files: Any = import_module("firetrail.pipeline.lakes.iceberg_files")
        self._files.check_iceberg_opens(lake.folder)
        folder = Path(lake.folder.path(FOLDER))
        folder.mkdir(parents=True, exist_ok=True)
        self._invalid: Any = import_module("pyiceberg.exceptions").ValidationError
        self._catalog = catalogs.SqlCatalog(
            "firetrail",
            uri=f"sqlite:///{folder / _CATALOG}",
            warehouse=self._files.address_of(lake.folder),
            **self._files.FILE_ACCESS,
        )
        self._catalog.close()

    def settle(self) -> None:
        """Settle as every table does, then close the connections to the catalog."""
        try:
            super().settle()
        finally:
            self._catalog.close()

    def publish(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        """Publish as every table does, then close the connections to the catalog."""
        try:
            super().publish(manifest, added, removed)
        finally:
            self._catalog.close()

    def _table(self, layout: LakeLayout) -> Any:
        found = self._found()
        if found is not None:
            return found
        self._catalog.create_namespace_if_not_exists("firetrail")
        table = self._catalog.create_table(
            self.name,
            schema=file_schema(topic=True),
            location=self._files.address_of(self._lake.folder),
            properties={
                f"write.metadata.metrics.column.{name}": "none" for name in _WITHOUT_METRICS
            },
        )
        with table.update_spec() as spec:
            if layout is LakeLayout.TOPIC:
                spec.add_identity("topic")
            spec.add_field("store_time", "day", "day")
        return table

    def _found(self) -> Any:
        """Return the table; None if there is none."""
        try:
            is_there = self._catalog.table_exists(self.name)
            return self._catalog.load_table(self.name) if is_there else None
        except (OSError, ValueError, self._invalid) as error:
            raise LakeError(
                f"{self._lake.place}: the Iceberg table cannot be read ({first_line(error)}). "
                f"Remove {FOLDER}/{_CATALOG} and the folder metadata, and run the job again: it "
                "creates the table again from the manifest, without its older snapshots"
            ) from error

    def _complete(self, manifest: Manifest) -> bool:
        return self._newest(self._table(manifest.layout), manifest) >= manifest.sequence

    def _newest(self, table: Any, manifest: Manifest) -> int:
        """Return the newest number of a manifest in the snapshots of the table, or -1."""
        prefix, newest = f"{manifest.lake_id}-", -1
        for snapshot in table.snapshots():
            number = snapshot.summary.get(_SEQUENCE, "") if snapshot.summary is not None else ""
            if number.startswith(prefix):
                newest = max(newest, int(number.removeprefix(prefix)))
        return newest

    def _commit(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        new, old = ([self._address(file) for file in files] for files in (added, removed))
        self._write(self._table(manifest.layout), manifest, new, set(old))

    def _write(self, table: Any, manifest: Manifest, new: list[str], old: set[str]) -> None:
        """Commit files, which are given by their addresses, with the number of the manifest."""
        properties = {_SEQUENCE: f"{manifest.lake_id}-{manifest.sequence}"}
        if not old:
            table.add_files(new, snapshot_properties=properties)
            return
        arrow: Any = import_module("pyiceberg.io.pyarrow")
        with table.transaction() as transaction:
            data_files = arrow.parquet_files_to_data_files(
                table.io, transaction.table_metadata, iter(new)
            )
            tasks = table.scan().plan_files()
            gone = [task.file for task in tasks if task.file.file_path in old]
            self._files.commit_files(transaction, properties, data_files, gone)

    def _follow(self, manifest: Manifest, *, is_doubtful: bool = False) -> None:
        table = self._table(manifest.layout)
        if not is_doubtful and self._newest(table, manifest) >= manifest.sequence:
            return
        present = {task.file.file_path for task in table.scan().plan_files()}
        wanted = {self._address(file) for file in manifest.files}
        if present != wanted:
            self._write(table, manifest, sorted(wanted - present), present - wanted)

    def _address(self, file: DataFile) -> str:
        return str(self._files.address_of(self._lake.folder, file.path))


KINDS: dict[str, type[ParquetFiles | DeltaFiles | IcebergFiles]] = {
    kind.kind: kind for kind in (ParquetFiles, DeltaFiles, IcebergFiles)
}


def table_of(kind: str, lake: Lake) -> LakeTable:
    """Return the table of a lake; raise MissingExtraError if its library is not installed."""
    if kind not in KINDS:
        raise ConfigError("format", kind, f"must be one of {', '.join(KINDS)}")
    return KINDS[kind](lake)
