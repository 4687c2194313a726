"""The catalogue of the files and folders in the root of a store.

Other modules derive from here which folder is a store, which names in it are
foreign, and in which order a backup copies them.
"""

from collections.abc import Iterable
from typing import NamedTuple

from firetrail.format import names
from firetrail.format.files import timer


class StoreFile(NamedTuple):
    """A file or folder in the root of a store."""

    name: str
    """Its name, or the beginning of its name if it ends with ``*``."""
    marks_store: bool = False
    """Whether a folder in which it exists is a store."""
    copy_first: int = 0
    """Its position in a backup, before those with 0, which follow in any order."""
    is_aside: bool = False
    """Whether it was set aside; a backup omits it."""


CATALOGUE = (
    # In a backup the inventory comes first: what it lists exists when the rest is copied. The
    # checkpoint comes before the watermark, which also has the slot before the newest one, for a
    # checkpoint that was just replaced. The copied log has what was confirmed before.
    StoreFile(names.INVENTORY, copy_first=1),
    StoreFile(names.CHECKPOINT, marks_store=True, copy_first=2),
    StoreFile(names.WATERMARK, marks_store=True, copy_first=3),
    StoreFile(names.CONFIRMED, copy_first=4),
    StoreFile(names.CONFIG, marks_store=True, copy_first=5),
    StoreFile(names.CONSUME_QUEUE, marks_store=True, copy_first=6),
    StoreFile(names.INDEX, marks_store=True, copy_first=7),
    StoreFile(names.COMMIT_LOG, marks_store=True),
    StoreFile(names.LOG_PATHS, marks_store=True),
    StoreFile(names.ABORT, marks_store=True),
    StoreFile(names.LOCK, marks_store=True),
    StoreFile(names.CONSUME_QUEUE_EXT),
    StoreFile(names.BATCH_CONSUME_QUEUE),
    StoreFile(names.EPOCHS),
    StoreFile(names.EPOCHS_BACKUP),
    StoreFile(timer.WHEEL),
    StoreFile(timer.LOG),
    StoreFile(names.AUDIT),
    StoreFile(names.SINK),
    StoreFile(f"{names.ARCHIVED_PREFIX}*"),
    StoreFile(f"{names.REPLAYED_PREFIX}*"),
    StoreFile(f"{names.REPAIR_PREFIX}*", is_aside=True),
    StoreFile(f"{names.DROPPED_PREFIX}*", is_aside=True),
)
STORE_MARKS = frozenset(file.name for file in CATALOGUE if file.marks_store)
"""A folder that has one of these is a store."""
COPY_ORDER = tuple(
    file.name for file in sorted(CATALOGUE, key=lambda file: file.copy_first) if file.copy_first
)
"""The files that a backup copies first, in this order."""


def _matcher(files: Iterable[StoreFile]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the whole names, and the beginnings of others."""
    every = [file.name for file in files]
    whole = frozenset(name for name in every if not name.endswith("*"))
    return whole, tuple(name[:-1] for name in every if name.endswith("*"))


_NAMES, _PREFIXES = _matcher(CATALOGUE)
_ASIDE_NAMES, _ASIDE_PREFIXES = _matcher(file for file in CATALOGUE if file.is_aside)


def is_of_store(name: str) -> bool:
    """Return whether a name in the root of a store belongs to the store."""
    return name in _NAMES or name.startswith(_PREFIXES)


def is_aside(name: str) -> bool:
    """Return whether a name in the root of a store is that of a file or folder that was set
    aside."""
    return name in _ASIDE_NAMES or name.startswith(_ASIDE_PREFIXES)
