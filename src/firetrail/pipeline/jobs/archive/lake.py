"""The archive in the folder of a lake: its data files and its published manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from firetrail.errors import LakeError
from firetrail.pipeline.jobs.archive.manifest import (
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

SUFFIX = ".parquet"
FOLDERS = ("topic=", "day=")
"""Prefixes of the folders of data files."""
LOCK = f"{FOLDER}/lock"


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

    def data_files(self) -> list[str]:
        """Return every data file in the folder, in the manifest or not, complete or not."""
        ends = (SUFFIX, SUFFIX + UNFINISHED)
        return [n for n in self.folder.names() if n.endswith(ends) and n.startswith(FOLDERS)]

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
        """Publish a manifest; raise LakeError unless it follows the published one."""
        old = self.folder.stored(MANIFEST)
        found = decode_manifest(old.content, self.folder.show(MANIFEST)) if old else None
        if (found.sequence if found else -1) != manifest.sequence - 1 or (
            found and found.lake_id != manifest.lake_id
        ):
            raise LakeError(
                f"{self.place}: another job changed the archive at the same time; run this job "
                "again"
            )
        self.folder.exchange(MANIFEST, old, manifest.encode())
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
