"""The position up to which the log is archived: a small file in the store for each lake.

::

    firetrail.archived.<lake id>    {"lake": "<where it is>", "archived_to": <physical offset>}

The archive job writes the file after its manifest. Retention reads it if it is configured to delete
only archived files. To stop waiting for a lake, remove its file.
"""

import json
from pathlib import Path
from typing import NamedTuple

from firetrail.format.names import ARCHIVED_PREFIX
from firetrail.system import System


class ArchiveMark(NamedTuple):
    """The content of one lake: all records before ``archived_to``."""

    lake: str
    archived_to: int


def read_mark(system: System, root: Path, lake_id: str) -> ArchiveMark | None:
    """Return the mark of a lake, or None if it is missing or unreadable."""
    try:
        found = json.loads(system.files.read(root / f"{ARCHIVED_PREFIX}{lake_id}"))
        return ArchiveMark(str(found["lake"]), int(found["archived_to"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def write_mark(system: System, root: Path, lake_id: str, mark: ArchiveMark) -> None:
    """Record durably how far a lake has come; raise OSError if the store is not writable."""
    content = json.dumps(mark._asdict()).encode()
    system.files.replace(root / f"{ARCHIVED_PREFIX}{lake_id}", content)


def archived_offset(system: System, root: Path) -> int:
    """Return the offset before which every lake has all; 0 without lakes or for a bad mark."""
    ids = [
        name.removeprefix(ARCHIVED_PREFIX)
        for name in system.files.names(root)
        if name.startswith(ARCHIVED_PREFIX) and not name.endswith(".tmp")
    ]
    marks = [read_mark(system, root, lake_id) for lake_id in ids]
    return min((mark.archived_to if mark else 0 for mark in marks), default=0)
