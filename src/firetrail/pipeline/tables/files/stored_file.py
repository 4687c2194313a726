"""The data files of a table, as tasks have written them and as the table has them."""

from __future__ import annotations

from typing import NamedTuple

NO_BUCKET = -1


class TableFile(NamedTuple):
    """A data file of a table."""

    path: str
    """Its path relative to the table."""
    size: int
    rows: int
    stats: str
    """Lowest and highest values, as Delta keeps them in JSON."""
    bucket: int = NO_BUCKET


class StoredFile(NamedTuple):
    """A data file that a table has."""

    path: str
    size: int
    bucket: int
