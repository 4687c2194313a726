"""Files and folders in a store that do not belong to it."""

from collections.abc import Iterator
from pathlib import Path

from firetrail.format.files.store_files import is_of_store
from firetrail.format.names import (
    CONSUME_QUEUE,
    INDEX,
    is_folder_name,
    parse_index_name,
    parse_queue_id,
    parse_segment_name,
    queue_folder,
)
from firetrail.store.log.paths import log_folders, shown_path
from firetrail.store.queues.queue_table import QueueKey
from firetrail.system import Files


def foreign_names(files: Files, root: Path, queues: list[QueueKey]) -> Iterator[str]:
    """Yield relative paths that do not belong to a store with these queues."""
    names = files.names
    folders = log_folders(files, root)
    logs = {shown_path(root, folder).partition("/")[0] for folder in folders}
    for name in names(root):
        if name not in logs and not is_of_store(name):
            yield name
    for log_folder in folders:
        for name in names(log_folder):
            if parse_segment_name(name) is None:
                yield shown_path(root, log_folder / name)
    for name in names(root / INDEX):
        if parse_index_name(name) is None:
            yield f"{INDEX}/{name}"
    base = root / CONSUME_QUEUE
    for topic in names(base):
        if not is_folder_name(topic) or not (base / topic).is_dir():
            yield f"{CONSUME_QUEUE}/{topic}"
            continue
        for name in names(base / topic):
            if parse_queue_id(name) is None or not (base / topic / name).is_dir():
                yield f"{CONSUME_QUEUE}/{topic}/{name}"
    for topic, queue_id in queues:
        folder = queue_folder(topic, queue_id)
        if (root / folder).is_dir():
            for name in names(root / folder):
                if parse_segment_name(name) is None:
                    yield f"{folder}/{name}"
