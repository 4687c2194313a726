"""What a ``broker.conf`` or the folder of a Java broker asks for and this broker does not do.

Some of it would only look as if it worked: a broker that replicates nothing, lets everybody in, or
shows an empty log where the messages are in other files. With that the broker refuses to start,
unless it is told by name that this is known. The rest is said at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from firetrail.broker.state.attributes import unsupported_value
from firetrail.errors import UnsupportedError
from firetrail.format.java_properties import Entry
from firetrail.format.names import BATCH_CONSUME_QUEUE, COMMIT_LOG, CONFIG, CONSUME_QUEUE
from firetrail.remoting.bodies import TopicConfig
from firetrail.system import Files

FLAG = "--ignore-unsupported"
TOPICS_SHOWN = 5
_ON = ("true",)
_REPLICATES = "no message is copied to or from another broker: it is lost with this machine"
_LETS_IN = (
    "nobody is asked who they are: whoever reaches the port may read, send, change and delete"
)
_CONTROLLER = "no controller and no replica takes over when this broker fails"
_ROCKSDB = "queues, topics or progress in RocksDB are not read: the broker would not know them"

REFUSED_SETTINGS: Mapping[str, tuple[Sequence[str], str]] = {
    "brokerRole": (("SYNC_MASTER", "SLAVE"), _REPLICATES),
    "duplicationEnable": (_ON, _REPLICATES),
    "aclEnable": (_ON, _LETS_IN),
    "authenticationEnabled": (_ON, _LETS_IN),
    "authorizationEnabled": (_ON, _LETS_IN),
    "enableControllerMode": (_ON, _CONTROLLER),
    "enableDLegerCommitLog": (_ON, _CONTROLLER),
    "enableSlaveActingMaster": (_ON, _CONTROLLER),
    "storeType": (("defaultRocksDB",), _ROCKSDB),
}
"""Settings by key: the values that are refused, and what would happen instead."""

SEVERAL_FOLDERS, ROCKSDB, DLEDGER = "storePathCommitLog", "rocksdb", "dledger"
NAMES = (*REFUSED_SETTINGS, SEVERAL_FOLDERS, ROCKSDB, DLEDGER)
"""All that the flag takes."""

_log = logging.getLogger(__name__)


class Unsupported(NamedTuple):
    """Something that the broker does not start with, unless it is told to."""

    name: str
    """That the flag takes."""
    found: str
    meaning: str


def refused_settings(entries: Mapping[str, Entry]) -> list[Unsupported]:
    """Settings of a ``broker.conf`` that ask for what nobody would do."""
    found = []
    for key, (values, meaning) in REFUSED_SETTINGS.items():
        value = entries[key].text.strip() if key in entries else ""
        if value.lower() in (refused.lower() for refused in values):
            found.append(Unsupported(key, f"{entries[key].place}{key}={value}", meaning))
    paths = entries.get(SEVERAL_FOLDERS)
    if paths is not None and "," in paths.text:
        what = f"{paths.place}{SEVERAL_FOLDERS} has several folders"
        meaning = "a log over several folders is not read: only what is in the store's own is there"
        found.append(Unsupported(SEVERAL_FOLDERS, what, meaning))
    return found


def refused_files(files: Files, root: Path) -> list[Unsupported]:
    """Files of a Java broker that hold messages, queues or settings which are not read."""
    found = []
    settings = (f"{CONFIG}/{name}" for name in ("topics", "subscriptionGroups", "consumerOffsets"))
    for folder in (CONSUME_QUEUE, *settings):
        if "CURRENT" in files.names(root / folder):
            found.append(Unsupported(ROCKSDB, f"{root / folder} is a RocksDB", _ROCKSDB))
    if dledger := [name for name in files.names(root) if name.startswith("dledger-")]:
        what = f"{root / dledger[0]} is a log of DLedger"
        meaning = f"messages in it are not read: only those of {COMMIT_LOG}/ are there"
        found.append(Unsupported(DLEDGER, what, meaning))
    return found


def unread_topics(files: Files, root: Path) -> Callable[[str], bool]:
    """Tells of a topic whether its queues may be in files of a Java broker that are not read."""
    everything = bool(refused_files(files, root))
    batches = frozenset(files.names(root / BATCH_CONSUME_QUEUE))
    return lambda topic: everything or topic in batches


def check(found: Iterable[Unsupported], ignored: Collection[str]) -> None:
    """Raise UnsupportedError for what is not ignored, and say loudly what is."""
    found = list(found)
    if refused := [each for each in found if each.name not in ignored]:
        lines = [
            f"{each.found}: Firetrail does not support this; {each.meaning}" for each in refused
        ]
        flags = " ".join(f"{FLAG} {name}" for name in dict.fromkeys(each.name for each in refused))
        raise UnsupportedError("\n  ".join([*lines, f"to start without it: {flags}"]))
    for each in found:
        _log.warning(
            "WARNING: %s is IGNORED, as %s %s demands: %s",
            each.found,
            FLAG,
            each.name,
            each.meaning,
        )


def remarks(files: Files, root: Path, topics: Iterable[TopicConfig]) -> Iterator[str]:
    """What else stands in the folder of a Java broker, and what becomes of it here."""
    names = set(files.names(root))
    closed: dict[str, list[str]] = {}
    for topic in topics:
        if value := unsupported_value(topic.attributes or {}):
            closed.setdefault(value, []).append(topic.topic_name)
    for value, owners in sorted(closed.items()):
        shown = ", ".join(sorted(owners)[:TOPICS_SHOWN])
        more = f" and {len(owners) - TOPICS_SHOWN} more" if len(owners) > TOPICS_SHOWN else ""
        yield f"topics with {value} ({shown}{more}): sends to them are refused"
    if "compaction" in names:
        yield "compaction/: what RocketMQ has compacted is left alone, and not read"
    if BATCH_CONSUME_QUEUE in names:
        yield f"{BATCH_CONSUME_QUEUE}/: queues of batches are left alone, and not read"
    if "consumequeue_ext" in names:
        yield "consumequeue_ext/: extended units are left alone; messages are filtered without them"
    if "kvStore" in names:
        yield "kvStore/: pops that RocketMQ keeps in RocksDB are not read; they are redelivered"
    if names & {"epochFileCheckpoint", "brokerIdentity"}:
        yield "epochFileCheckpoint: the broker was one of a controller; here it is alone"
