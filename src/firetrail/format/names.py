"""The names of files, folders, topics and users. Only this module builds and parses them.

::

    abort  checkpoint  lock  epochFileCheckpoint
    firetrail.watermark  firetrail.confirmed  firetrail.inventory  firetrail.sink
    firetrail.archived.<lake id>
    firetrail.replayed.<replay id>
    commitlog/00000000000000000000              start offset of the file, 20 digits
    consumequeue/<topic>/<queue id>/000000…     the same, offset in bytes of the queue
    index/20261115065856335                     local time of creation, yyyyMMddHHmmssSSS
    config/*.json

Parsers return None for other names, because a folder may contain anything.
"""

import re
from datetime import datetime

from firetrail.errors import FormatError, IllegalMessageError
from firetrail.format.layout import MAX_TOPIC_V1
from firetrail.format.values.integers import INT32_MAX, INT64_MAX

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
CONSUME_QUEUE_EXT = "consumequeue_ext"
BATCH_CONSUME_QUEUE = "batchconsumequeue"
"""The folder of Java's batch queues, whose units are for several messages each."""
INDEX = "index"
CONFIG = "config"
TOPICS_JSON = "topics.json"
TOPICS_FILE = f"{CONFIG}/{TOPICS_JSON}"
GROUPS_JSON = "subscriptionGroup.json"
CONSUMER_OFFSETS = "consumerOffset.json"
LMQ_OFFSETS = "lmqConsumerOffset.json"
DELAY_OFFSETS = "delayOffset.json"
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"
EPOCHS = "epochFileCheckpoint"
"""The epochs of the log; brokers that are never replicated have none."""
EPOCHS_BACKUP = f"{EPOCHS}.bak"
WATERMARK = "firetrail.watermark"
"""Firetrail's durable watermark; the Java store ignores unknown files in the store's folder."""
CONFIRMED = "firetrail.confirmed"
"""The end of the part of the log that replicas have confirmed."""
LOG_PATHS = "firetrail.log-paths"
"""The folders of a commit log that is not in ``commitlog`` alone, in the syntax of broker.conf."""

ARCHIVED_PREFIX = "firetrail.archived."
"""The position up to which the log is archived; one file per lake, named after its id."""
REPLAYED_PREFIX = "firetrail.replayed."
"""The position up to which a replay copied the log to brokers; one file per replay."""
INVENTORY = "firetrail.inventory"
"""The queue, index and broker files of the store, so that missing ones are noticed."""
AUDIT = "audit"
"""The folder of a broker's audit log; the Java store ignores it."""
SINK = "firetrail.sink"
"""The commits of bulk writers, so that none writes the same messages twice."""

REPAIR_PREFIX = "repair-"
"""Folders in a store with the files that repairs removed."""
DROPPED_PREFIX = "dropped-"
"""Folders in a store with good records that recovery dropped from the end of its log."""

LOCK_CONTENT = b"lock"
"""The content of the lock file, as Java writes it; the lock is an fcntl lock on byte 0."""

SEGMENT_NAME_DIGITS = 20
INDEX_NAME_DIGITS = 17
OFFSET_MAX = INT64_MAX
QUEUE_ID_MAX = INT32_MAX

AUTO_CREATE_TOPIC = "TBW102"
"""New topics inherit the settings of this one, if the broker creates them on demand."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages wait here, in queue ``level - 1``."""
SYSTEM_PREFIX = "rmq_sys_"
"""Prefix of the internal topics of RocketMQ 5.x; some older ones have it in capitals."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""The topic that clients send message traces to; only its name is that of an internal topic."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
"""Prefix of the groups with which brokers read their own topics."""
RETRY_PREFIX = "%RETRY%"
RETRY_SEPARATOR_V2 = "+"
"""The separator of group and topic in the second form of a retry topic; no other topic contains
it."""
DLQ_PREFIX = "%DLQ%"
MAX_RETRY_TOPIC = 255
"""Retry and dead-letter topics hold a group and a topic name; they need v2 records."""
TOPIC_PATTERN = r"[%|a-zA-Z0-9_-]+"

TOPIC_RULE = f"1 to {MAX_TOPIC_V1} letters, digits and % | _ - are allowed"
GROUP_MAX = 120
"""Maximum length of the name of a group, which with a prefix is the name of a topic."""
GROUP_RULE = f"1 to {GROUP_MAX} letters, digits and % | _ - are allowed"

USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
"""The pattern of user names. Other characters would break lists, keys or lines of a log."""

_TOPIC = re.compile(TOPIC_PATTERN)
_DIGITS = re.compile(r"[0-9]+")
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_FOLDER_BYTES_MAX = 255  # NAME_MAX of the file systems in use


_NAMESRV = "namesrv="


def name_server(store: str) -> str | None:
    """Return the address in ``namesrv=HOST:PORT``, which means brokers; None for a folder."""
    return store.removeprefix(_NAMESRV) if store.startswith(_NAMESRV) else None


def reply_topic(cluster: str) -> str:
    """Return the topic for the replies to requests in a cluster."""
    return f"{cluster}_REPLY_TOPIC"


def segment_name(offset: int) -> str:
    """Return the file name of the segment that starts at ``offset``: 20 digits."""
    if not 0 <= offset <= OFFSET_MAX:
        raise FormatError("segment start", 0, f"{offset} is not in 0..{OFFSET_MAX}")
    return f"{offset:020d}"


def parse_segment_name(name: str) -> int | None:
    """Return the start offset of the segment ``name``; None if it is not the name of a segment."""
    if len(name) != SEGMENT_NAME_DIGITS or not _DIGITS.fullmatch(name):
        return None
    offset = int(name)
    return offset if offset <= OFFSET_MAX else None


def index_name(created: datetime) -> str:
    """Return the name of an index file created at ``created``: local time to the ms, 17 digits."""
    return f"{created:%Y%m%d%H%M%S}".zfill(14) + f"{created.microsecond // 1000:03d}"


def parse_index_name(name: str) -> datetime | None:
    """Return the local creation time in the name of an index file; None for another name."""
    if len(name) != INDEX_NAME_DIGITS or not _DIGITS.fullmatch(name):
        return None
    year, month, day, hour, minute, second = (
        int(name[a:b]) for a, b in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14))
    )
    try:
        return datetime(year, month, day, hour, minute, second, int(name[14:]) * 1000)
    except ValueError:
        return None


def extension_folder(topic: str, queue_id: int) -> str:
    """Return the folder of a queue's extension files: ``consumequeue_ext/<topic>/<queue id>``."""
    return CONSUME_QUEUE_EXT + queue_folder(topic, queue_id).removeprefix(CONSUME_QUEUE)


def queue_folder(topic: str, queue_id: int) -> str:
    """Return the folder of a consume queue in the store: ``consumequeue/<topic>/<queue id>``.

    This is the last check before a topic becomes a path. It accepts more than :func:`check_topic`,
    because a log of Java may contain topics that a put would reject, but no path outside.
    """
    if not is_folder_name(topic):
        raise IllegalMessageError("topic", f"{topic!r} cannot be the name of a folder")
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise IllegalMessageError("queue id", f"{queue_id} is not in 0..{QUEUE_ID_MAX}")
    return f"{CONSUME_QUEUE}/{topic}/{queue_id}"


def parse_queue_id(name: str) -> int | None:
    """Return the queue id in the name of a queue's folder; None for another name."""
    if not _QUEUE_ID.fullmatch(name):
        return None
    queue_id = int(name)
    return queue_id if queue_id <= QUEUE_ID_MAX else None


def is_folder_name(name: str) -> bool:
    """Return whether ``name`` is one component of a path, and stays below its parent."""
    if name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= _FOLDER_BYTES_MAX


def is_queue(topic: str, queue_id: int) -> bool:
    """Return whether there can be a folder for this queue, see :func:`queue_folder`."""
    return is_folder_name(topic) and 0 <= queue_id <= QUEUE_ID_MAX


def check_topic(name: str) -> None:
    """Raise :class:`IllegalMessageError`, naming the rule, unless ``name`` may be a topic.

    The pattern allows no path separator, dot or control character.
    """
    if not isinstance(name, str):
        raise IllegalMessageError("topic", f"a str is needed, not {type(name).__name__}")
    if not name:
        raise IllegalMessageError("topic", "is empty")
    if not _TOPIC.fullmatch(name):
        raise IllegalMessageError(
            "topic", f"{shortened(name)} has a character other than letters, digits and % | _ -"
        )
    retry = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    limit = MAX_RETRY_TOPIC if retry else MAX_TOPIC_V1
    if len(name) > limit:  # ASCII by the pattern: characters are bytes
        raise IllegalMessageError(
            "topic", f"{shortened(name)} has {len(name)} bytes, the limit is {limit}"
        )


def is_topic(name: str) -> bool:
    """Return whether clients may give a topic this name, by :data:`TOPIC_RULE`.

    The topics that brokers create for retries and dead letters may be longer (:func:`check_topic`).
    """
    return len(name) <= MAX_TOPIC_V1 and _TOPIC.fullmatch(name) is not None


def is_group(name: str) -> bool:
    """Return whether ``name`` may be the name of a group, by :data:`GROUP_RULE`."""
    return len(name) <= GROUP_MAX and _TOPIC.fullmatch(name) is not None


def retry_topic(group: str) -> str:
    """Return the topic that redelivers the messages a group could not consume."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic with the messages that a group was given too often."""
    return DLQ_PREFIX + group


def group_of_retries(topic: str) -> str | None:
    """Return the group that a retry topic belongs to; None for another topic.

    The first form of a retry topic for pops does not show where the name of the group ends. All of
    it counts as the group.
    """
    if not topic.startswith(RETRY_PREFIX):
        return None
    return topic.removeprefix(RETRY_PREFIX).partition(RETRY_SEPARATOR_V2)[0]


def group_of_dead_letters(topic: str) -> str | None:
    """Return the group that a topic of dead letters belongs to; None for another topic."""
    return topic.removeprefix(DLQ_PREFIX) if topic.startswith(DLQ_PREFIX) else None


def pop_retry_topic(topic: str, group: str, separator: str = "_") -> str:
    """Return the topic that redelivers the messages a group popped but did not acknowledge."""
    return f"{RETRY_PREFIX}{group}{separator}{topic}"


def pop_retry_topic_v2(topic: str, group: str) -> str:
    """Return the topic in which Java brokers with ``enableRetryTopicV2`` have these messages."""
    return pop_retry_topic(topic, group, RETRY_SEPARATOR_V2)


def is_retry_topic_v2(name: str) -> bool:
    """Return whether a topic was named by :func:`pop_retry_topic_v2`."""
    return name.startswith(RETRY_PREFIX) and RETRY_SEPARATOR_V2 in name


def popped_topic(topic: str, group: str) -> str:
    """Return the topic whose messages ``topic`` redelivers, or the topic itself."""
    for separator in ("_", RETRY_SEPARATOR_V2):
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


def group_key(topic: str, group: str) -> str:
    """Return the key of a group in a topic, in the tables and statistics of a broker."""
    return f"{topic}@{group}"


def parse_group_key(key: str) -> tuple[str, str]:
    """Return topic and group of a key; the group is empty if the key names none."""
    topic, _, group = key.partition("@")
    return topic, group


def shortened(name: str) -> str:
    """Return the literal of a name for a message, with an ellipsis if it is long."""
    return repr(name) if len(name) <= 64 else f"{name[:64]!r}…"
