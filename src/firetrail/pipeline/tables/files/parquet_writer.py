"""The Parquet table that a job writes: plain files, and the list of those that belong to it.

::

    LAKE/NAME/_firetrail/files.json   the list, replaced as a whole: a commit

Rows are only added. When a type of a column becomes wider, other files replace all files; the old
ones, and those that were merged, stay for programs that read them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.lakes.lake_manifest import FOLDER
from firetrail.pipeline.tables.files.file_merges import merge_files, small_files
from firetrail.pipeline.tables.files.stored_file import NO_BUCKET, StoredFile, TableFile
from firetrail.pipeline.tables.files.table_files import DATA
from firetrail.system import SYSTEM

FILES = f"{FOLDER}/files.json"
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class FileList:
    """The files of a table; ``version`` counts its commits."""

    table_id: str
    version: int = 0
    sequence: int = -1
    """The sequence of the manifest at the last commit that was not a merge."""
    schema: str = ""
    """The columns, as the hexadecimal form of Arrow's message."""
    files: tuple[tuple[str, int], ...] = ()
    """Paths and sizes, in the order in which they were added."""
    replaced: dict[str, int] = field(default_factory=dict)
    """When files were replaced that programs may still read."""

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps(asdict(self), indent=0).encode()

    @classmethod
    def decode(cls, content: bytes, place: str) -> Self:
        """Decode the file, which errors name as ``place``."""
        try:
            found: dict[str, Any] = json.loads(content)
            files = tuple((str(path), int(size)) for path, size in found.pop("files"))
            return cls(**found, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LakeError(
                f"{place}: is not the list of files of a table ({error}); restore the file from a "
                "backup"
            ) from error

    def changed(self, kept: Iterable[tuple[str, int]], added: Iterable[TableFile]) -> Self:
        """Return the next version, with some of these files and others."""
        files = (*kept, *((file.path, file.size) for file in added))
        now_ms = SYSTEM.clock.now_ms()
        paths = {path for path, _ in files}
        gone = {path: now_ms for path, _ in self.files if path not in paths}
        return replace(
            self, version=self.version + 1, files=files, replaced={**self.replaced, **gone}
        )

    @property
    def arrow(self) -> pa.Schema:
        """The columns."""
        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self.schema)))


class ParquetTableWriter:
    """Commits to the list of the files in the folder of a lake.

    Args:
        lake: The folder.
        table_id: The id of the manifest that the table belongs to.
    """

    def __init__(self, lake: LakeFolder, table_id: str) -> None:
        self._lake = lake
        self._id = table_id

    def exists(self) -> bool:
        """Whether there is a table."""
        return self.found() is not None

    def found(self) -> FileList | None:
        """Return the list; None if there is no table."""
        content = self._lake.read(FILES)
        return None if content is None else FileList.decode(content, self._lake.show(FILES))

    def has_committed(self, sequence: int) -> bool:
        """Whether the table has the commit with the sequence of a manifest."""
        found = self.found()
        return found is not None and found.sequence >= sequence

    def check(self, version: int | None) -> None:
        """Check that the table is the one that this job wrote, and that its files exist."""
        found = self.found()
        if found is None:
            if version is not None:
                raise LakeError(
                    f"{self._lake.place}: the list of files {FILES} is missing, but the manifest "
                    "of the table exists; restore it, or remove the folder to begin a new table"
                )
            return
        if found.table_id != self._id or found.version < (version or 0):
            raise LakeError(
                f"{self._lake.place}: the table was replaced, {FILES} is not that of its "
                "manifest; restore it, or begin a new table"
            )
        present = set(self._lake.names())
        for path, _ in found.files:
            if path not in present:
                raise LakeError(
                    f"{self._lake.show(path)}: is missing, but belongs to the table; restore it, "
                    "or begin a new table"
                )

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a data file, which are those of the table."""
        return schema

    def commit(
        self,
        schema: pa.Schema,
        files: Iterable[TableFile],
        sequence: int,
        known: int | None,
        *,
        buckets: Collection[int] = (),
        rewritten: bool = False,
    ) -> int:
        """Add and replace files, unless the transaction was committed before."""
        found = self.found() or FileList(self._id)
        if found.sequence < sequence:
            new = found.changed(() if rewritten else found.files, files)
            columns = schema.serialize().to_pybytes().hex()
            found = replace(new, sequence=sequence, schema=columns)
            self._lake.publish(FILES, found.encode())
        return found.version

    def maintain(self, sequence: int, keep_hours: int) -> None:
        """Merge small files, and remove those that were replaced long ago."""
        found = self.found()
        if found is None:
            return
        for group in small_files(self.files()):
            paths = {file.path for file in group}
            merged = merge_files(self._lake, group, found.arrow, sequence)
            found = found.changed([file for file in found.files if file[0] not in paths], merged)
            self._lake.reveal([file.path for file in merged])
            self._lake.publish(FILES, found.encode())
        self._remove(found, SYSTEM.clock.now_ms() - keep_hours * _HOUR_MS)

    def _remove(self, found: FileList, before_ms: int) -> None:
        """Remove files that were replaced before a time, and those of killed merges."""
        old = {path for path, since_ms in found.replaced.items() if since_ms <= before_ms}
        known = {path for path, _ in found.files} | set(found.replaced)
        data = [name for name in self._lake.names(before_ms) if name.startswith(f"{DATA}/")]
        for path in sorted(old | (set(data) - known)):
            self._lake.remove(path)
        if old:
            kept = {path: at for path, at in found.replaced.items() if path not in old}
            new = replace(found, version=found.version + 1, replaced=kept)
            self._lake.publish(FILES, new.encode())

    def files(self) -> list[StoredFile]:
        """Return the files of the table."""
        found = self.found()
        return [] if found is None else [StoredFile(*file, NO_BUCKET) for file in found.files]
