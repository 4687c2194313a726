"""The messages of a stage by table, and their division into parts that tasks decode."""

from __future__ import annotations

from collections.abc import Sequence

from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.lakes.lake_folder import LakeFolder
from firetrail.pipeline.tables.databases.route_task import (
    RoutedMessages,
    RouteResult,
    TableMessages,
)
from firetrail.pipeline.tables.runs.table_job import INLINE_BYTES

PART_BYTES = 128 << 20
"""Bytes of messages of a table that one task decodes."""
_PARTS = 16
"""Tasks of a large table, of which there are more if parts would be larger than PART_BYTES."""


class RoutedStage:
    """The messages of a stage by table, as all tasks have found them.

    Args:
        results: The results of the tasks.
        lake: The folder with their files.
        split_bytes: Bytes of messages that one task decodes; None for a share of the table.
    """

    def __init__(
        self, results: Sequence[RouteResult], lake: LakeFolder, split_bytes: int | None
    ) -> None:
        self._lake = lake
        self._split_bytes = split_bytes
        self._found: dict[TableName | None, list[tuple[str, TableMessages]]] = {}
        self.skipped = sum(result.skipped for result in results)
        for result in sorted(results, key=lambda result: result.number):
            for name, messages in result.found.items():
                self._found.setdefault(name, []).append((result.broker, messages))

    @property
    def names(self) -> list[TableName]:
        """The tables, in the order of their names."""
        return sorted(name for name in self._found if name is not None)

    def key(self, name: TableName) -> tuple[str, ...]:
        """Return the primary key that the first messages of a table name."""
        return next((each.key for _, each in self._found[name] if each.key), ())

    def count(self, name: TableName) -> int:
        """Return the number of messages of a table."""
        return sum(each.count for _, each in self._found[name])

    def size(self, name: TableName | None) -> int:
        """Return the bytes of the messages of a table in memory."""
        return sum(each.size for _, each in self._found.get(name, ()))

    def are_statements(self, name: TableName) -> bool:
        """Whether all messages of a table only declare columns."""
        return all(each.count == each.statements for _, each in self._found[name])

    def parts(
        self, name: TableName | None, *, key: tuple[str, ...] = (), reason: str = ""
    ) -> list[RoutedMessages]:
        """Return the messages of a table as parts, which tasks decode."""
        share_of_all = max(self.size(name) // _PARTS, INLINE_BYTES)
        most = self._split_bytes or min(share_of_all, PART_BYTES)
        parts: list[RoutedMessages] = []
        by_broker: dict[str, list[TableMessages]] = {}
        for broker, each in self._found.get(name, ()):
            by_broker.setdefault(broker, []).append(each)
        for broker, some in by_broker.items():
            share: list[TableMessages] = []
            size = 0
            for each in some:
                if share and size + each.size > most:
                    parts.append(self._part(broker, share, key, reason))
                    share, size = [], 0
                share.append(each)
                size += each.size
            parts.append(self._part(broker, share, key, reason))
        return parts

    def _part(
        self, broker: str, share: Sequence[TableMessages], key: tuple[str, ...], reason: str
    ) -> RoutedMessages:
        pieces, size = tuple(each.messages for each in share), sum(each.size for each in share)
        return RoutedMessages(broker, self._lake, pieces, size, key, reason)
