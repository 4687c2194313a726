"""The names of files, folders and topics: built and parsed here and nowhere else.

::

    abort  checkpoint  lock  firetrail.watermark  firetrail.inventory  firetrail.sink
    firetrail.archived.<lake id>
    firetrail.replayed.<replay id>
    commitlog/00000000000000000000              start offset of the file, 20 digits
    consumequeue/<topic>/<queue id>/000000…     the same, offset in bytes of the queue
    index/20261115065856335                     local time of creation, yyyyMMddHHmmssSSS
    config/*.json

Parsers return None for a name that is not theirs, because a folder may hold anything.
"""

from __future__ import annotations

import re
from datetime import datetime

from firetrail.errors import FormatError, IllegalMessageError
from firetrail.format.layout import MAX_TOPIC_V1

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
BATCH_CONSUME_QUEUE = "batchconsumequeue"
"""The folder of Java's queues in which a unit is for a batch of messages."""
INDEX = "index"
CONFIG = "config"
TOPICS_JSON = "topics.json"
GROUPS_JSON = "subscriptionGroup.json"
CONSUMER_OFFSETS = "consumerOffset.json"
LMQ_OFFSETS = "lmqConsumerOffset.json"
DELAY_OFFSETS = "delayOffset.json"
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"
WATERMARK = "firetrail.watermark"
"""Firetrail's own durable watermark; the Java store leaves unknown files of the root alone."""

ARCHIVED_PREFIX = "firetrail.archived."
"""Up to where the log is in a lake; one such file for each lake, named after its id."""
REPLAYED_PREFIX = "firetrail.replayed."
"""Up to where the log was copied to brokers; one such file for each replay."""
INVENTORY = "firetrail.inventory"
"""Which queue, index and broker files the store has, so that missing ones are noticed."""
SINK = "firetrail.sink"
"""What bulk writers have committed, so that none writes the same twice."""

REPAIR_PREFIX = "repair-"
"""Folders in a store with what repairs have taken out of it."""
DROPPED_PREFIX = "dropped-"
"""Folders in a store with good records that recovery has dropped from the end of its log."""

LOCK_CONTENT = b"lock"
"""What the Java store writes into the lock file; the lock itself is an fcntl lock on byte 0."""

SEGMENT_NAME_DIGITS = 20
INDEX_NAME_DIGITS = 17
OFFSET_MAX = 2**63 - 1
QUEUE_ID_MAX = 2**31 - 1

AUTO_CREATE_TOPIC = "TBW102"
"""New topics inherit the settings of this one, if the broker creates them on demand."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages wait here, in queue ``level - 1``."""
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
MAX_RETRY_TOPIC = 255
"""Retry and dead-letter topics hold a group and a topic name; they need v2 records."""
TOPIC_PATTERN = r"[%|a-zA-Z0-9_-]+"

GROUP_MAX = 120
"""Bytes in the name of a group: with a prefix it is the name of a topic."""
GROUP_RULE = f"1 to {GROUP_MAX} letters, digits and % | _ - are allowed"

_TOPIC = re.compile(TOPIC_PATTERN)
_DIGITS = re.compile(r"[0-9]+")
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_FOLDER_BYTES_MAX = 255  # NAME_MAX of the file systems in use


_NAMESRV = "namesrv="


def name_server(store: str) -> str | None:
    """The address in ``namesrv=HOST:PORT``, where brokers stand for a store; None for a folder."""
    return store.removeprefix(_NAMESRV) if store.startswith(_NAMESRV) else None


def reply_topic(cluster: str) -> str:
    """The topic that carries the replies to requests in a cluster."""
    return f"{cluster}_REPLY_TOPIC"


def segment_name(offset: int) -> str:
    """File name of the segment that starts at ``offset``: 20 digits."""
    if not 0 <= offset <= OFFSET_MAX:
        raise FormatError("segment start", 0, f"{offset} is not in 0..{OFFSET_MAX}")
    return f"{offset:020d}"


def parse_segment_name(name: str) -> int | None:
    """Start offset of the segment called ``name``, or None if this is no segment name."""
    if len(name) != SEGMENT_NAME_DIGITS or not _DIGITS.fullmatch(name):
        return None
    offset = int(name)
    return offset if offset <= OFFSET_MAX else None


def index_name(created: datetime) -> str:
    """File name of an index file created at ``created`` (local time): 17 digits, to the ms."""
    return f"{created:%Y%m%d%H%M%S}".zfill(14) + f"{created.microsecond // 1000:03d}"


def parse_index_name(name: str) -> datetime | None:
    """Local creation time in the name of an index file, or None if this is no such name."""
    if len(name) != INDEX_NAME_DIGITS or not _DIGITS.fullmatch(name):
        return None
    year, month, day, hour, minute, second = (
        int(name[a:b]) for a, b in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14))
    )
    try:
        return datetime(year, month, day, hour, minute, second, int(name[14:]) * 1000)
    except ValueError:
        return None


def queue_folder(topic: str, queue_id: int) -> str:
    """Folder of a consume queue below the store root: ``consumequeue/<topic>/<queue id>``.

    The last gate before a topic becomes a path. It is wider than :func:`check_topic` (a log
    written by Java may hold topics that a put would refuse) but never leaves the folder.
    """
    if not is_folder_name(topic):
        raise IllegalMessageError("topic", f"{topic!r} cannot be the name of a folder")
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise IllegalMessageError("queue id", f"{queue_id} is not in 0..{QUEUE_ID_MAX}")
    return f"{CONSUME_QUEUE}/{topic}/{queue_id}"


def parse_queue_id(name: str) -> int | None:
    """Queue id in the name of a queue's folder, or None if this is no such name."""
    if not _QUEUE_ID.fullmatch(name):
        return None
    queue_id = int(name)
    return queue_id if queue_id <= QUEUE_ID_MAX else None


def is_folder_name(name: str) -> bool:
    """Whether ``name`` is one component of a path that stays below its parent."""
    if name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= _FOLDER_BYTES_MAX


def is_queue(topic: str, queue_id: int) -> bool:
    """Whether there can be a folder for this queue, see :func:`queue_folder`."""
    return is_folder_name(topic) and 0 <= queue_id <= QUEUE_ID_MAX


def check_topic(name: str) -> None:
    """Raise :class:`IllegalMessageError`, naming the rule, unless ``name`` may be a topic.

    The pattern leaves no room for a path separator, a dot or a control character.
    """
    if not isinstance(name, str):
        raise IllegalMessageError("topic", f"a str is needed, not {type(name).__name__}")
    if not name:
        raise IllegalMessageError("topic", "is empty")
    if not _TOPIC.fullmatch(name):
        raise IllegalMessageError(
            "topic", f"{_shortened(name)} has a character other than letters, digits and % | _ -"
        )
    retry = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    limit = MAX_RETRY_TOPIC if retry else MAX_TOPIC_V1
    if len(name) > limit:  # ASCII by the pattern: characters are bytes
        raise IllegalMessageError(
            "topic", f"{_shortened(name)} has {len(name)} bytes, the limit is {limit}"
        )


def is_group(name: str) -> bool:
    """Whether ``name`` may be the name of a group, by :data:`GROUP_RULE`."""
    return len(name) <= GROUP_MAX and _TOPIC.fullmatch(name) is not None


def pop_retry_topic(topic: str, group: str, separator: str = "_") -> str:
    """Where messages of a topic come again that a group has popped and not acknowledged."""
    return f"{RETRY_PREFIX}{group}{separator}{topic}"


def popped_topic(topic: str, group: str) -> str:
    """The topic whose messages come again in ``topic``, or the topic itself."""
    return topic.removeprefix(f"{RETRY_PREFIX}{group}_")


def _shortened(name: str) -> str:
    return repr(name) if len(name) <= 64 else f"{name[:64]!r}…"
