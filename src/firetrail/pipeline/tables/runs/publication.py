"""The publication of a run: its files, commits and manifest, all of them or none.

A run that is killed in between is completed by the next one.
"""

from __future__ import annotations

import pyarrow as pa

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.lake_manifest import FOLDER, MANIFEST, PENDING
from firetrail.pipeline.lakes.location import local_place, open_folder
from firetrail.pipeline.tables.files.format_rules import FormatWriter, TableFormat
from firetrail.pipeline.tables.files.format_writers import check_format_opens, writer_of
from firetrail.pipeline.tables.files.stored_file import StoredFile
from firetrail.pipeline.tables.files.table_files import remove_unfinished
from firetrail.pipeline.tables.files.table_manifest import (
    MAIN,
    MEMBER,
    REJECTED,
    PendingCommit,
    TableManifest,
    decode_manifest,
    decode_pending,
    encode_manifest,
)
from firetrail.pipeline.tables.files.table_place import check_new_place, suffix_of
from firetrail.pipeline.tables.keyed.bucket_content import DELETES
from firetrail.pipeline.tables.keyed.bucket_rows import STAGED
from firetrail.pipeline.tables.table_options import TableOptions

KEPT_HOURS = 7 * 24
"""The time for which replaced files are kept for readers of older versions of a table."""
KEYED_KEPT_HOURS = 1
"""The same for a table with a key, of which each run replaces a large part."""
MAINTAINED_EVERY = 100
"""Commits after which small files are merged and replaced ones are removed."""
KEYED_MAINTAINED_EVERY = 10


class Publication:
    """The folders of a table and of its rejected messages.

    Args:
        place: The folder of the table.

    Raises:
        LakeError: It is a URL.
    """

    def __init__(self, place: str) -> None:
        place = local_place(place)
        if "://" in place:
            scheme, _, rest = place.partition("://")
            raise LakeError(
                f"{scheme}://{rest.rpartition('@')[2]}: a table needs a local or mounted folder, "
                "because a lock keeps its jobs apart; choose such a folder"
            )
        self.lake = open_folder(place.rstrip("/") or place)
        self.lakes = {
            table: open_folder(self.lake.place + suffix_of(table)) for table in (MAIN, REJECTED)
        }
        self._manifest: TableManifest | None = None
        self._writers: dict[tuple[str, str], FormatWriter] = {}

    def check_folder(self, options: TableOptions, *, database: bool = False) -> None:
        """Check that the folder has a table of this job, or can have a new one.

        Args:
            options: The options of the run.
            database: Whether it is that of a database. Default: False.

        Raises:
            LakeError: It has other files.
            ConfigError: No table can be there.
        """
        found = self.manifest()
        kind = TableFormat.named(options.format or TableFormat.DELTA)
        check_format_opens(self.lake, kind if found is None else found.format)
        if found is not None:
            if not database:
                self.check_alone(found)
            return
        check_new_place(self.lake.place)
        self.check_new()

    def check_alone(self, manifest: TableManifest) -> None:
        """Raise LakeError if a manifest is that of a database or of a table in one."""
        if manifest.database is None:
            return
        if MEMBER in manifest.database:
            raise LakeError(
                f"{self.lake.place}: is a table of a database, which only a run for the whole "
                f"database writes; name the folder of the database, and --database"
            )
        raise LakeError(f"{self.lake.place}: is a database of tables; add --database")

    def check_new(self) -> None:
        """Raise LakeError if a folder without a manifest has files."""
        for lake in self.lakes.values():
            if lake.top_names() - {FOLDER}:
                raise LakeError(
                    f"{lake.place}: has files, but no manifest of a table ({MANIFEST}); choose a "
                    "new or empty folder"
                )

    def manifest(self) -> TableManifest | None:
        """Return the published manifest; None if the folder has none."""
        content = self.lake.read(MANIFEST)
        return None if content is None else decode_manifest(content, self.lake.show(MANIFEST))

    def require_manifest(self) -> TableManifest:
        """Return the published manifest; raise LakeError if the folder has none."""
        found = self.manifest()
        if found is None:
            raise LakeError(f"{self.lake.place}: has no table; check the path")
        return found

    def settle(self) -> TableManifest | None:
        """Complete a run that was killed, remove the leftovers of others, return the manifest.

        Raises:
            LakeError: Somebody else changed one of the tables.
        """
        self._manifest = manifest = self.manifest()
        if manifest is None:
            return None
        for name in self.lakes:
            self._writer(manifest, name).check(manifest.versions.get(name))
        pending = self._pending(manifest)
        if pending is not None:
            self._complete(pending)
        else:
            self.lake.remove(PENDING)
        self.remove_unfinished()
        return self._manifest

    def remove_unfinished(self) -> None:
        """Remove files that were written, but not published."""
        for lake in self.lakes.values():
            remove_unfinished(lake)
        self.clean()

    def peek(self) -> tuple[TableManifest | None, list[StoredFile]]:
        """Return the manifest and the files of the main table that a next run finds.

        Nothing is changed: a run that was killed is completed in these values only.

        Raises:
            LakeError: Somebody else changed one of the tables.
        """
        manifest = self.manifest()
        if manifest is None:
            return None, []
        for name in self.lakes:
            self._writer(manifest, name).check(manifest.versions.get(name))
        files = self.files(manifest)
        pending = self._pending(manifest)
        if pending is not None:
            manifest = pending.manifest
            new = [StoredFile(f.path, f.size, f.bucket) for f in pending.added[MAIN]]
            gone = {file.path for file in new}  # they may be committed already
            gone |= {f.path for f in files if pending.rewritten or f.bucket in pending.buckets}
            files = [file for file in files if file.path not in gone] + new
        return manifest, files

    def check_settled(self, manifest: TableManifest) -> None:
        """Raise LakeError if a run was killed, whose commits the manifest does not have."""
        if self._pending(manifest) is not None:
            raise LakeError(
                f"{self.lake.place}: a run was killed before all of it was published; run the job "
                "once more first"
            )

    @property
    def has_pending(self) -> bool:
        """Whether a run was killed after it had begun to publish."""
        return self.lake.read(PENDING) is not None

    def _pending(self, manifest: TableManifest) -> PendingCommit | None:
        """Return the publication that a killed run has begun; None if there is none."""
        content = self.lake.read(PENDING)
        if content is None:
            return None
        pending = decode_pending(content, self.lake.show(PENDING))
        return pending if manifest.sequence < pending.manifest.sequence else None

    def clean(self) -> None:
        """Remove staged rows, and files of deletes that the manifest does not name."""
        if self._manifest is None or not self._manifest.key:
            return
        current = set(self._manifest.deletes.values())
        for name in self.lake.names():
            if name.startswith((STAGED, DELETES)) and name not in current:
                self.lake.remove(name)

    def begin(self, manifest: TableManifest) -> None:
        """Publish the manifest of a new table, before its first files exist.

        Raises:
            LakeError: Another table has its name in the catalog.
            ConfigError: PyIceberg is not configured for the catalog.
        """
        for name in self.lakes:
            self._writer(manifest, name).check(None)
        self.lake.replace(MANIFEST, encode_manifest(manifest))
        self._manifest = manifest

    def publish(self, pending: PendingCommit) -> TableManifest:
        """Publish a manifest and its files; from the first step on, this is certain to happen."""
        self.sync_names(pending)
        self.lake.replace(PENDING, pending.encode())
        return self._complete(pending)

    def sync_names(self, pending: PendingCommit) -> None:
        """Make the names of new files durable."""
        for name, lake in self.lakes.items():
            names = [file.path for file in pending.added[name]]
            if name == MAIN:
                names += pending.manifest.deletes.values()
            if names:
                lake.sync_folders(names)

    def maintain(self, keep_hours: int | None) -> None:
        """Merge small files and remove replaced ones, after a number of commits."""
        manifest = self._manifest
        if manifest is None:
            return
        every = KEYED_MAINTAINED_EVERY if manifest.key else MAINTAINED_EVERY
        if manifest.sequence % every == 0:
            default = KEYED_KEPT_HOURS if manifest.key else KEPT_HOURS
            for name in self.lakes:
                keep = default if keep_hours is None else keep_hours
                self._writer(manifest, name).maintain(manifest.sequence, keep)

    def files(self, manifest: TableManifest, table: str = MAIN) -> list[StoredFile]:
        """Return the files of a table."""
        return self._writer(manifest, table).files()

    def file_schemas(self, manifest: TableManifest) -> dict[str, pa.Schema]:
        """Return the columns of the files of the tables, for a next manifest."""
        return {
            name: self._writer(manifest, name).file_schema(manifest.schema_of(name))
            for name in self.lakes
        }

    def _complete(self, pending: PendingCommit) -> TableManifest:
        manifest = pending.manifest
        versions: dict[str, int] = {}
        self.lake.reveal(manifest.deletes.values())
        for name in (MAIN, REJECTED):
            files = pending.added[name]
            buckets = pending.buckets if name == MAIN else ()
            rewritten = pending.rewritten if name == MAIN else pending.retried
            if not files and not buckets and not rewritten:
                continue
            writer = self._writer(manifest, name)
            if not writer.has_committed(manifest.sequence):
                self.lakes[name].reveal([file.path for file in files])
            versions[name] = writer.commit(
                manifest.schema_of(name),
                files,
                manifest.sequence,
                manifest.versions.get(name),
                buckets=buckets,
                rewritten=rewritten,
            )
        self._manifest = manifest = manifest.with_versions(versions)
        self.lake.replace(MANIFEST, encode_manifest(manifest))
        self.lake.remove(PENDING)
        return manifest

    def _writer(self, manifest: TableManifest, name: str) -> FormatWriter:
        key = manifest.table_id, name
        if key not in self._writers:
            self._writers[key] = writer_of(self.lakes[name], manifest, name)
        return self._writers[key]
