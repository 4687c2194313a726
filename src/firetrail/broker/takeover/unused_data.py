"""Data in the folder of a Java broker that Firetrail does not use.

The broker starts nevertheless and logs a line about each kind. A folder with data that it would
need is refused instead (:mod:`firetrail.broker.unsupported`).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from firetrail.broker.state.attributes import unsupported_value
from firetrail.format.names import BATCH_CONSUME_QUEUE
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.system import Files
from firetrail.text import some_of

COMPACTION = "compaction"


def topic_remarks(topics: Iterable[TopicConfig]) -> Iterator[str]:
    """Yield the topics of each kind that Firetrail does not support."""
    closed: dict[str, list[str]] = {}
    for topic in topics:
        if value := unsupported_value(topic.attributes or {}):
            closed.setdefault(value, []).append(topic.topic_name)
    for value, owners in sorted(closed.items()):
        yield f"topics with {value} ({some_of(sorted(owners))})"


def remarks(files: Files, root: Path, topics: Iterable[TopicConfig]) -> Iterator[str]:
    """Yield a line about each kind of unused data, and about topics that refuse sends."""
    names = set(files.names(root))
    for remark in topic_remarks(topics):
        yield f"{remark}: sends to them are refused"
    if set(files.names(root / COMPACTION)) - {"position-checkpoint"}:  # RocketMQ creates that one
        yield f"{COMPACTION}/: compacted topics of RocketMQ are neither read nor changed"
    if BATCH_CONSUME_QUEUE in names:
        yield f"{BATCH_CONSUME_QUEUE}/: queues of batches are neither read nor changed"
    if "kvStore" in names:
        yield "kvStore/: pops that RocketMQ keeps in RocksDB are not read; they are redelivered"
    if "brokerIdentity" in names:
        yield "brokerIdentity: the broker belonged to a controller; Firetrail has none"
