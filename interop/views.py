"""The contents of a store as each side sees them, and its files, in comparable forms."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from interop.messages import encoded
from interop.peer import Json

from firetrail import Record, Store
from firetrail.format.values.hosts import format_host

CRC_PROPERTY = "__CRC32#"
QueueName = tuple[str, int]


class QueueView(NamedTuple):
    """A queue: its bounds and its messages."""

    min_offset: int
    max_offset: int
    messages: list[Json]


def described(record: Record) -> Json:
    """Return a record in the form in which the Java peer prints it."""
    return {
        "physical_offset": record.physical_offset,
        "size": record.size,
        "magic": record.magic,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "born_time": record.born_time,
        "born_host": format_host(record.born_host),
        "store_time": record.store_time,
        "store_host": format_host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_offset,
        "body_crc": record.body_crc,
        "properties": record.properties,
        "body": encoded(record.body),
    }


def log_of(store: Store) -> list[Json]:
    """Return every record in the order of the log, as Firetrail reads it."""
    found = []
    offset, end = store.log_range
    size = store.config.commit_log_file_size
    while offset < end:
        record = store.at(offset)
        if record is None:  # the rest of the file is blank
            offset += size - offset % size
        else:
            found.append(described(record))
            offset += record.size
    return found


def queues_of(store: Store) -> dict[QueueName, QueueView]:
    """Return every queue that has had a message, as Firetrail reads it."""
    return {
        (topic, queue_id): QueueView(
            store.min_offset(topic, queue_id),
            store.max_offset(topic, queue_id),
            [described(record) for record in store.read(topic, queue_id)],
        )
        for topic in store.topics()
        for queue_id in store.queues(topic)
        if store.max_offset(topic, queue_id)
    }


def java_queues(answer: list[Json]) -> dict[QueueName, QueueView]:
    """Return the same from the answer to the peer's ``read``."""
    queues: dict[QueueName, QueueView] = {}
    messages: list[Json] = []
    for line in answer:
        if "queue" not in line:
            messages.append(line)
            continue
        messages = []
        bounds = line["queue"]
        if bounds["max_offset"]:
            queues[bounds["topic"], bounds["queue_id"]] = QueueView(
                bounds["min_offset"], bounds["max_offset"], messages
            )
    return queues


def without_crc(records: list[Json]) -> list[Json]:
    """Return the records without the checksum property, whose value a plain model cannot know."""
    return [
        {
            **record,
            "properties": {k: v for k, v in record["properties"].items() if k != CRC_PROPERTY},
        }
        for record in records
    ]


def queue_files(root: Path) -> dict[str, bytes]:
    """Content of every consume-queue file by its path below the store."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted((root / "consumequeue").rglob("*"))
        if path.is_file()
    }


def index_files(root: Path) -> list[bytes]:
    """Return the content of the index files, oldest first; their names are creation times."""
    return [path.read_bytes() for path in sorted((root / "index").glob("*"))]
