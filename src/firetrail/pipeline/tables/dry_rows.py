"""The counters of a dry run, in the places of the writers of rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from firetrail.pipeline.decoding.body_decoder import Decoded
from firetrail.pipeline.decoding.decoder_spec import DecoderSpec
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.tables.files.stored_file import TableFile
from firetrail.pipeline.tables.keyed.bucket_rows import BucketRows
from firetrail.pipeline.tables.keyed.keys import bucket_of

OTHER_REASONS = "other reasons"
_REASONS_MAX = 50
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|(?<=: )-?\d\S*|(?<=line |byte |char )\d+|(?<=column )\d+")
"""Values and positions in reasons, which differ from message to message."""


class RowCounter:
    """Takes the place of a :class:`TableWriter`."""

    def __init__(self) -> None:
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows

    def close(self) -> list[TableFile]:
        """Return the rows as a file without a name."""
        return [TableFile("", 0, self._rows, "")] if self._rows else []

    def abandon(self) -> None:
        """Do nothing: there is no file."""


class BucketCounter:
    """Takes the place of a :class:`BucketStager`."""

    def __init__(self, buckets: int, rows: RowCounter) -> None:
        self._buckets = buckets
        self._rows = rows
        self._found: set[int] = set()

    def add(self, rows: pa.Table, keys: Sequence[str]) -> None:
        self._rows.write(rows)
        self._found.update(bucket_of(key, self._buckets) for key in keys)

    def finish(self) -> dict[int, BucketRows]:
        """Return the buckets, without rows."""
        return {bucket: BucketRows() for bucket in self._found}


class VersionCounter:
    """Counts messages by what they add to a schema.

    Args:
        spec: The decoder.
        base: The schema.
    """

    def __init__(self, spec: DecoderSpec, base: TableSchema) -> None:
        self._base = base
        self._decoder = spec.decoder(base)
        self.counts: Counter[tuple[str, ...]] = Counter()

    def add(self, bodies: pa.Array) -> None:
        """Add messages, which are decoded one by one if some of them add something."""
        found = self._decoder.decode(bodies)
        if all(part.rows.schema == self._base.arrow for part in found.parts):
            self.counts[()] += _messages(found)
            return
        for body in bodies.to_pylist():
            found = self._decoder.decode([body])
            if _messages(found):
                schemas = [part.schema for part in found.parts if part.rows.num_rows]
                changes = (
                    each for schema in schemas for each in self._base.widened(schema).changes
                )
                self.counts[tuple(dict.fromkeys(changes))] += 1


def _messages(found: Decoded) -> int:
    return len({at for part in found.parts for at in part.messages.to_pylist()})


def add_reasons(counts: Counter[str], reasons: Sequence[str]) -> None:
    """Count reasons without the values that they quote; rare ones together."""
    for reason in reasons:
        kind = _VALUES.sub("…", reason)
        counts[kind if kind in counts or len(counts) < _REASONS_MAX else OTHER_REASONS] += 1
