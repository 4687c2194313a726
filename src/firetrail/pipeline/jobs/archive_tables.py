"""What kind of table a lake is: plain Parquet files, a Delta or an Iceberg table."""

from __future__ import annotations

from typing import Protocol

from firetrail.errors import ConfigError
from firetrail.pipeline.jobs.archive_lake import Lake
from firetrail.pipeline.jobs.archive_manifest import DataFile, Manifest


class Table(Protocol):
    """How data files become visible."""

    kind: str
    topic_column: bool
    """Whether the topic must be in the files, and not in their path alone."""

    def settle(self) -> None:
        """Finish or undo what a killed job has begun to publish."""

    def known_files(self) -> set[str]:
        """Files that are in use although the manifest does not name them."""

    def publish(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        """Let a manifest count, which differs from the one before by these files."""


class ParquetFiles:
    """Files in Hive's folders; the manifest alone says which of them count."""

    kind = "parquet"
    topic_column = False

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def settle(self) -> None:
        """Nothing: the manifest is replaced as a whole."""

    def known_files(self) -> set[str]:
        """None."""
        return set()

    def publish(self, manifest: Manifest, added: list[DataFile], removed: list[DataFile]) -> None:
        """Replace the manifest, then remove what it no longer names."""
        self._lake.publish(manifest)
        for file in removed:
            self._lake.remove(file.path)


def table_of(kind: str, lake: Lake) -> Table:
    """The table of a lake."""
    kinds: dict[str, type[Table]] = {ParquetFiles.kind: ParquetFiles}
    if kind not in kinds:
        raise ConfigError("format", kind, f"there is {', '.join(kinds)}")
    return kinds[kind](lake)  # type: ignore[call-arg]
