"""The archive in the folder of a lake: its data files and its published manifest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from firetrail.errors import LakeConflictError, LakeError
from firetrail.pipeline.lakes.lake_manifest import (
    FOLDER,
    MANIFEST,
    PENDING,
    DataFile,
    LakeLayout,
    Manifest,
    decode_manifest,
)
from firetrail.pipeline.lakes.local_folder import UNFINISHED
from firetrail.pipeline.lakes.location import open_folder
from firetrail.system import SYSTEM

SUFFIX = ".parquet"
FOLDERS = ("topic=", "day=")
"""Prefixes of the folders of data files."""
LOCK = f"{FOLDER}/lock"
GRACE_MS = 86_400_000
"""Age at which an object that no manifest names is taken for that of a killed job."""


class Lake:
    """An archive, or the folder of a new one."""

    def __init__(self, place: str) -> None:
        self.folder = open_folder(place)
        self.place = self.folder.place

    def __reduce__(self) -> tuple[type[Lake], tuple[str]]:
        return Lake, (self.place,)

    def new_name(self, folder: str, stem: str, token: str) -> str:
        """Return a name for a data file of an attempt at a task."""
        return self.folder.new_name(folder, stem, token, SUFFIX)

    def reveal(self, files: Iterable[DataFile]) -> None:
        """Give complete data files their names, durably; those that have them keep them."""
        self.folder.reveal([file.path for file in files])

    def data_files(self, changed_before_ms: float = math.inf) -> list[str]:
        """Return the data files in the folder, in the manifest or not, complete or not.

        Args:
            changed_before_ms: As for the names of the folder; infinity by default.
        """
        ends = (SUFFIX, SUFFIX + UNFINISHED)
        names = self.folder.names(changed_before_ms)
        return [name for name in names if name.endswith(ends) and name.startswith(FOLDERS)]

    def strays(self, known: set[str]) -> set[str]:
        """Return the data files that a killed job has left, which are not among the ``known``.

        Where nothing is locked, files younger than GRACE_MS may be those of a running job.
        """
        if not self.folder.has_conditional_writes:
            return set(self.data_files()) - known
        return set(self.data_files(SYSTEM.clock.now_ms() - GRACE_MS)) - known

    def is_empty(self) -> bool:
        """Whether the folder is empty or does not exist."""
        return not self.folder.top_names() - {FOLDER} and self.folder.read(MANIFEST) is None

    def manifest(self) -> Manifest | None:
        """Return the published manifest; None if the folder holds no archive."""
        content = self.folder.read(MANIFEST)
        return None if content is None else decode_manifest(content, self.folder.show(MANIFEST))

    def require_manifest(self) -> Manifest:
        """Return the published manifest; raise LakeError if the folder holds no archive."""
        found = self.manifest()
        if found is None:
            raise LakeError(
                f"{self.place}: is not an archive, it has no file {MANIFEST}; check the path"
            )
        return found

    def publish(self, manifest: Manifest) -> None:
        """Publish a manifest; raise LakeConflictError unless it follows the published one."""
        old = self.folder.stored(MANIFEST)
        found = decode_manifest(old.content, self.folder.show(MANIFEST)) if old else None
        if (found.sequence if found else -1) != manifest.sequence - 1 or (
            found and found.lake_id != manifest.lake_id
        ):
            raise LakeConflictError(
                f"{self.place}: another job changed the archive at the same time; run this job "
                "again"
            )
        self.folder.exchange(MANIFEST, old, manifest.encode())
        if not self.folder.has_conditional_writes:
            self.folder.remove(PENDING)

    @contextmanager
    def locked(self, token: str) -> Iterator[None]:
        """Lock a local lake; the job's token in the lock file lets tasks recognize the lake."""
        with self.folder.locked(LOCK, token):
            yield

    def check_shared(self, token: str) -> None:
        """Raise NotSharedError unless this worker sees the lake that a job has locked."""
        self.folder.check_shared(LOCK, token)

    def check_arrived(self, files: Iterable[DataFile], worker: str) -> None:
        """Raise NotSharedError unless the driver sees the files that a task has written."""
        for file in files:
            self.folder.check_arrived(file.path, file.size, worker)


def partition(layout: LakeLayout, topic: str, day: str) -> str:
    """Return the folder of a topic and day, with names escaped as in Hive."""
    return (
        f"topic={quote(topic, safe='')}/day={day}" if layout is LakeLayout.TOPIC else f"day={day}"
    )
