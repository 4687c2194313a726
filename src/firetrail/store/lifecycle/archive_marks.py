"""Up to where the log is archived: a small file in the store for each lake that it goes to.

::

    firetrail.archived.<lake id>    {"lake": "<where it is>", "archived_to": <physical offset>}

The archive job writes it after its manifest; retention reads it if it is told to delete only what
is archived. To stop waiting for a lake, remove its file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from firetrail.format.names import ARCHIVED_PREFIX
from firetrail.system import System


class ArchiveMark(NamedTuple):
    """What is in one lake: all records before ``archived_to``."""

    lake: str
    archived_to: int


def read_mark(system: System, root: Path, lake_id: str) -> ArchiveMark | None:
    """The mark of a lake; None if there is none, or one that says nothing."""
    try:
        found = json.loads(system.files.read(root / f"{ARCHIVED_PREFIX}{lake_id}"))
        return ArchiveMark(str(found["lake"]), int(found["archived_to"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def write_mark(system: System, root: Path, lake_id: str, mark: ArchiveMark) -> None:
    """Note durably how far a lake has come. Raises OSError where the store cannot be written."""
    content = json.dumps(mark._asdict()).encode()
    system.files.replace(root / f"{ARCHIVED_PREFIX}{lake_id}", content)


def archived_offset(system: System, root: Path) -> int:
    """Physical offset before which every lake has all; 0 if there is no lake, or one unknown."""
    ids = [
        name.removeprefix(ARCHIVED_PREFIX)
        for name in system.files.names(root)
        if name.startswith(ARCHIVED_PREFIX) and not name.endswith(".tmp")
    ]
    marks = [read_mark(system, root, lake_id) for lake_id in ids]
    return min((mark.archived_to if mark else 0 for mark in marks), default=0)
