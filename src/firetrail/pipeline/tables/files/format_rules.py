"""The rules of the formats of tables: which columns they allow, and what a job needs of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.schema.arrow_types import list_of, members_of, struct_of
from firetrail.pipeline.tables.files.stored_file import StoredFile, TableFile

_DELTA_NAMES = re.compile(r"[ ,;{}()\n\t=]")
_ICEBERG_NAMES = re.compile(r"\.")
_SMALL = (pa.int8(), pa.int16())
_PROMOTED = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}


class TableFormat(StrEnum):
    """The format of a table."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"

    @classmethod
    def named(cls, name: str) -> TableFormat:
        """Return the format with a name; raise ConfigError if there is none."""
        try:
            return cls(name)
        except ValueError:
            raise ConfigError("format", name, f"must be one of {', '.join(cls)}") from None

    @property
    def _refused(self) -> re.Pattern[str]:
        """The characters that no name of a column has.

        Delta refuses some, and older readers of Parquet the same ones. Libraries of Iceberg find
        members of structs by names with dots.
        """
        return _ICEBERG_NAMES if self is TableFormat.ICEBERG else _DELTA_NAMES

    def allowed_name(self, name: str) -> str:
        """Return a name without the characters that the format refuses."""
        return self._refused.sub("_", name)

    def check_prefix(self, prefix: str) -> str:
        """Return a prefix of message columns; raise ConfigError if the format refuses it."""
        if self._refused.search(prefix):
            named = "space, comma, semicolon, brace, parenthesis, tab or equals sign"
            refused = "dot" if self is TableFormat.ICEBERG else named
            raise ConfigError("prefix", prefix, f"must have no {refused}")
        return prefix

    def stored_type(self, kind: pa.DataType) -> pa.DataType:
        """Return the type with which files have a column. Iceberg has no small whole numbers."""
        if self is not TableFormat.ICEBERG:
            return kind
        if pa.types.is_list(kind):
            return list_of(self.stored_type(kind.value_type))
        if pa.types.is_map(kind):
            return pa.map_(kind.key_type, self.stored_type(kind.item_type))
        if pa.types.is_struct(kind):
            return struct_of((name, self.stored_type(each)) for name, each in members_of(kind))
        return pa.int32() if kind in _SMALL else kind

    def reads_as(self, kind: pa.DataType, wider: pa.DataType) -> bool:
        """Whether files with a type need not be written again when it becomes a wider one."""
        kind, wider = self.stored_type(kind), self.stored_type(wider)
        return kind == wider or (self is TableFormat.ICEBERG and promotes(kind, wider))


def promotes(kind: pa.DataType, wider: pa.DataType) -> bool:
    """Whether Iceberg reads files with a type as a wider one, with the same members and more."""
    if kind == wider or _PROMOTED.get(kind) == wider:
        return True
    if pa.types.is_struct(kind) and pa.types.is_struct(wider):
        members = dict(members_of(wider))
        return all(name in members and promotes(k, members[name]) for name, k in members_of(kind))
    if pa.types.is_list(kind) and pa.types.is_list(wider):
        return promotes(kind.value_type, wider.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(wider):
        return promotes(kind.item_type, wider.item_type)
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wider):
        return bool(kind.scale == wider.scale and kind.precision <= wider.precision)
    return False


class FormatWriter(Protocol):
    """Commits to one table of a format, and checks that nobody else changed it."""

    def exists(self) -> bool:
        """Whether there is a table."""

    def has_committed(self, sequence: int) -> bool:
        """Whether the table has the commit with the sequence of a manifest."""

    def check(self, version: int | None) -> None:
        """Check that the table is the one that this job wrote.

        Args:
            version: Its version after the last commit of this job; None before the first one.

        Raises:
            LakeError: Somebody else changed or replaced the table.
        """

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a data file of the table, if the table has these columns."""

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
        """Add and replace files, unless the transaction ``sequence`` was committed before.

        The table is created if it does not exist, and gets the columns that it lacks.

        Args:
            schema: The columns of the table.
            files: The files, which exist.
            sequence: The sequence of the manifest.
            known: The version after the last commit of this job.
            buckets: The buckets whose files are replaced. Default: none.
            rewritten: Whether the files replace all others. Default: False.

        Returns:
            The version of the table.

        Raises:
            LakeError: Somebody else changed the table at the same time.
        """

    def maintain(self, sequence: int, keep_hours: int) -> None:
        """Merge small files, and remove those that were replaced more than ``keep_hours`` ago.

        This changes no row, and a kill does no harm.

        Args:
            sequence: The sequence of the published manifest.
            keep_hours: The hours.
        """

    def files(self) -> list[StoredFile]:
        """Return the files of the table."""
