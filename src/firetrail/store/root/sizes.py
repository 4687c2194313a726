"""The file sizes of an existing store, derived from the files themselves."""

from itertools import islice
from pathlib import Path

from firetrail.errors import ConfigError, SegmentSizeError
from firetrail.format.files.index import IndexGeometry, find_geometry, index_file_size
from firetrail.format.files.unit import UNIT_SIZE
from firetrail.format.names import (
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    INDEX,
    parse_index_name,
    parse_segment_name,
)
from firetrail.storage.segment import Segment
from firetrail.storage.segment_queue import usual_size
from firetrail.store.log.paths import log_folders
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import System

QUEUES_SEEN = 16
"""Number of queues whose files are examined for the size of queue files; a store may have very
many."""


def adopt_sizes(system: System, root: Path, config: StoreConfig) -> StoreConfig:
    """Return ``config`` with the sizes of the store's files; SegmentSizeError if impossible."""
    sizes: dict[str, int] = {}
    log = log_file_size(system, root)
    if log:
        sizes["commit_log_file_size"] = log
    queue = _queue_size(system, root / CONSUME_QUEUE)
    if queue:
        sizes["consume_queue_file_size"] = queue
    extension = extension_file_size(system, root)
    if extension:
        sizes["extension_file_size"] = extension
    geometry = _index_geometry(
        system, root / INDEX, IndexGeometry(config.index_slots, config.index_entries)
    )
    if geometry is not None:
        sizes["index_slots"], sizes["index_entries"] = geometry
    changed = {name: size for name, size in sizes.items() if getattr(config, name) != size}
    try:
        return config.for_files(**changed) if changed else config
    except ConfigError as error:
        raise SegmentSizeError(
            f"{root}: no store has files of this size; they were truncated or are not files of a "
            f"store: {error}; restore them from a copy"
        ) from error


def log_file_size(system: System, root: Path) -> int:
    """Return the most common length of the log files of a store, 0 without any."""
    folders = log_folders(system.files, root)
    return usual_size(size for folder in folders for size in _sizes(system, folder))


def extension_file_size(system: System, root: Path) -> int:
    """Return the most common length of the extension files of a store's queues, 0 without any."""
    return _queue_size(system, root / CONSUME_QUEUE_EXT, step=1)


def _sizes(system: System, folder: Path) -> list[int]:
    names = system.files.names(folder)
    return [system.files.size(folder / n) for n in names if parse_segment_name(n) is not None]


def _queue_size(system: System, folder: Path, step: int = UNIT_SIZE) -> int:
    """Return the most common length of queue files, because a single one may be truncated."""
    names = system.files.names
    queues = (
        folder / topic / queue_id
        for topic in names(folder)
        if (folder / topic).is_dir()
        for queue_id in names(folder / topic)
        if (folder / topic / queue_id).is_dir()
    )
    sizes = (_sizes(system, queue) for queue in queues)
    found = islice((each for each in sizes if each), QUEUES_SEEN)
    return usual_size(size for each in found for size in each if size % step == 0)


def _index_geometry(system: System, folder: Path, expected: IndexGeometry) -> IndexGeometry | None:
    """Return slots and entries of the first index file that shows them.

    They are the expected ones if the size of the file fits, as in :meth:`IndexFile.load`.
    """
    for name in system.files.names(folder):
        size = system.files.size(folder / name) if parse_index_name(name) is not None else 0
        if not size:
            continue
        if size == index_file_size(*expected):
            return expected
        segment = Segment(system, folder / name, 0, size, writable=False)
        try:
            return find_geometry(segment.mapping)
        except ValueError:
            continue  # fsck and the index itself report such a file in detail
        finally:
            segment.close()
    return None
