"""The table formats of a lake: plain Parquet files, a Delta table or an Iceberg table.

A Delta or Iceberg table has its own list of files, which must agree with the manifest. Therefore
the next manifest is first written as ``pending.json``. Then the new files get their names, the
table commits with the manifest's sequence number, and finally the pending manifest is published. A
job that finds a pending manifest looks for its number in the table, and publishes or discards it.
Plain Parquet files have no other commit than their names, so a job that finds a pending manifest
names the remaining files and publishes it.

Where jobs are kept apart by conditional writes, the manifest is published first and decides which
job goes on. The table follows: a run that finds it without files of the manifest commits them.
"""

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa

from firetrail.errors import ConfigError, LakeConflictError, LakeError
from firetrail.pipeline.lakes.lake import Lake
from firetrail.pipeline.lakes.lake_libraries import library
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
from firetrail.system import SYSTEM

_PARTITIONS = {LakeLayout.DAY: ["day"], LakeLayout.TOPIC: ["topic", "day"]}
_COMMITS = 5
"""How often a commit to a Delta table is tried that other jobs try at the same time."""
_SEQUENCE = "firetrail.sequence"
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
        """Complete the pending manifest and publish it, or discard it if it was not committed."""
        if self._lake.folder.has_conditional_writes:
            found = self._lake.manifest()
            if found is not None:
                self._follow(found)
            return
        content = self._lake.folder.read(PENDING)
        if content is None:
            return
        manifest = decode_manifest(content, self._lake.folder.show(PENDING))
        published = self._lake.manifest()
        if published is not None and published.sequence >= manifest.sequence:
            self._lake.folder.remove(PENDING)
        elif self._complete(manifest):
            self._lake.publish(manifest)
        else:
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

    def _follow(self, manifest: Manifest) -> None:
        """Commit to the table what a published manifest has and the table lacks."""
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

    def _follow(self, manifest: Manifest) -> None:
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

    def _table(self, layout: LakeLayout) -> Any:
        schema = file_schema(topic=False).append(pa.field("topic", pa.string())).append(DAY)
        return self._deltalake.DeltaTable.create(
            self._lake.place,
            schema=schema,
            mode="ignore",
            partition_by=_PARTITIONS[layout],
            storage_options=self._lake.folder.storage_options(),
        )

    def _complete(self, manifest: Manifest) -> bool:
        found = self._table(manifest.layout).transaction_version(manifest.lake_id)
        return found is not None and found >= manifest.sequence

    def _commit(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        layout = manifest.layout
        self._write(
            self._table(layout),
            manifest,
            [*self._adds(added, layout, bool(removed)), *self._removes(removed, layout)],
        )

    def _write(self, table: Any, manifest: Manifest, actions: list[Any]) -> None:
        """Commit to a version of the table, as the one job that commits this manifest."""
        transaction = self._deltalake.Transaction(manifest.lake_id, manifest.sequence)
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=_PARTITIONS[manifest.layout],
            commit_properties=self._deltalake.CommitProperties(app_transactions=[transaction]),
        )

    def _follow(self, manifest: Manifest) -> None:
        """Commit the difference, with the number of the manifest.

        Commits with the lake's id conflict with each other, also if they only add files. So if
        several jobs do this at the same time, one commits, and the others find its number.
        """
        problem: Exception | None = None
        for _ in range(_COMMITS):
            try:
                table = self._table(manifest.layout)
                done = table.transaction_version(manifest.lake_id)
                if done is not None and done >= manifest.sequence:
                    return
                actions = self._difference(table, manifest)
                if actions:
                    self._write(table, manifest, actions)
                return
            except (self._deltalake.exceptions.DeltaError, OSError) as error:
                problem = error
        raise LakeError(
            f"{self._lake.place}: the archive is complete, but its Delta table does not have the "
            f"newest files ({str(problem).splitlines()[0]}); the next run adds them"
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
            lowest: dict[str, Any] = {"physical_offset": file.start}
            highest: dict[str, Any] = {"physical_offset": file.last}
            if layout is LakeLayout.DAY:
                lowest["topic"], highest["topic"] = file.topic, file.last_topic
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
        folder = Path(lake.folder.path(FOLDER))
        folder.mkdir(parents=True, exist_ok=True)
        self._catalog = catalogs.SqlCatalog(
            "firetrail",
            uri=f"sqlite:///{folder / 'catalog.db'}",
            warehouse=f"file://{lake.folder.path('')}",
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
        if self._catalog.table_exists(self.name):
            return self._catalog.load_table(self.name)
        self._catalog.create_namespace_if_not_exists("firetrail")
        table = self._catalog.create_table(
            self.name,
            schema=file_schema(topic=True),
            location=f"file://{self._lake.folder.path('')}",
            properties={
                f"write.metadata.metrics.column.{name}": "none" for name in _WITHOUT_METRICS
            },
        )
        with table.update_spec() as spec:
            if layout is LakeLayout.TOPIC:
                spec.add_identity("topic")
            spec.add_field("store_time", "day", "day")
        return table

    def _complete(self, manifest: Manifest) -> bool:
        number = f"{manifest.lake_id}-{manifest.sequence}"
        return any(
            snapshot.summary is not None and snapshot.summary.get(_SEQUENCE) == number
            for snapshot in self._table(manifest.layout).snapshots()
        )

    def _commit(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        properties = {_SEQUENCE: f"{manifest.lake_id}-{manifest.sequence}"}
        new = [self._address(file) for file in added]
        table = self._table(manifest.layout)
        if not removed:
            table.add_files(new, snapshot_properties=properties)
            return
        old = {self._address(file) for file in removed}
        arrow: Any = import_module("pyiceberg.io.pyarrow")
        with table.transaction() as transaction:
            data_files = arrow.parquet_files_to_data_files(
                table.io, transaction.table_metadata, iter(new)
            )
            with transaction.update_snapshot(properties).overwrite() as snapshot:
                for task in table.scan().plan_files():
                    if task.file.file_path in old:
                        snapshot.delete_data_file(task.file)
                for file in data_files:
                    snapshot.append_data_file(file)

    def _address(self, file: DataFile) -> str:
        return f"file://{self._lake.folder.path(file.path)}"


KINDS: dict[str, type[ParquetFiles | DeltaFiles | IcebergFiles]] = {
    kind.kind: kind for kind in (ParquetFiles, DeltaFiles, IcebergFiles)
}


def table_of(kind: str, lake: Lake) -> LakeTable:
    """Return the table of a lake; raise MissingExtraError if its library is not installed."""
    if kind not in KINDS:
        raise ConfigError("format", kind, f"must be one of {', '.join(KINDS)}")
    return KINDS[kind](lake)
