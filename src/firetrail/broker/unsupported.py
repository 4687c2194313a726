"""Features that a ``broker.conf`` or the folder of a Java broker asks for and Firetrail lacks.

With some of them the broker would only seem to work: it would replicate nothing, or show an empty
log because the messages are in other files. The broker refuses to start with such a feature, unless
the user names it to be ignored. The others are logged at the start.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from firetrail.errors import UnsupportedError
from firetrail.format.files.java_properties import Entry
from firetrail.format.names import BATCH_CONSUME_QUEUE, COMMIT_LOG, CONFIG, CONSUME_QUEUE
from firetrail.system import Files

FLAG = "--ignore-unsupported"
_ON = ("true",)
_REPLICATES = "messages are not replicated: they are lost with this machine"
_CONTROLLER = "no controller and no replica takes over when this broker fails"
_ROCKSDB = "queues, topics and offsets in RocksDB are not read: the broker would not know them"

REFUSED_SETTINGS: Mapping[str, tuple[Sequence[str], str]] = {
    "duplicationEnable": (_ON, _REPLICATES),
    "enableControllerMode": (_ON, _CONTROLLER),
    "enableDLegerCommitLog": (_ON, _CONTROLLER),
    "enableSlaveActingMaster": (_ON, _CONTROLLER),
    "storeType": (("defaultRocksDB",), _ROCKSDB),
}
"""Settings by key: the refused values, and the consequence of ignoring them."""

ROCKSDB, DLEDGER = "rocksdb", "dledger"
NAMES = (*REFUSED_SETTINGS, ROCKSDB, DLEDGER)
"""All values of the flag."""

_log = logging.getLogger(__name__)


class Unsupported(NamedTuple):
    """A feature with which the broker does not start unless it is ignored by the flag."""

    name: str
    """The value of the flag that ignores it."""
    found: str
    """The setting or file that asks for it."""
    meaning: str
    """The effect of ignoring it."""


def refused_settings(entries: Mapping[str, Entry]) -> list[Unsupported]:
    """Return the settings of a ``broker.conf`` that ask for an unsupported feature."""
    found = []
    for key, (values, meaning) in REFUSED_SETTINGS.items():
        value = entries[key].text.strip() if key in entries else ""
        if value.lower() in (refused.lower() for refused in values):
            found.append(Unsupported(key, f"{entries[key].place}{key}={value}", meaning))
    return found


def refused_files(files: Files, root: Path) -> list[Unsupported]:
    """Return the files of a Java broker with messages, queues or settings that are not read."""
    found = []
    settings = (f"{CONFIG}/{name}" for name in ("topics", "subscriptionGroups", "consumerOffsets"))
    for folder in (CONSUME_QUEUE, *settings):
        if "CURRENT" in files.names(root / folder):
            found.append(Unsupported(ROCKSDB, f"{root / folder} is a RocksDB", _ROCKSDB))
    if dledger := [name for name in files.names(root) if name.startswith("dledger-")]:
        log = f"{root / dledger[0]} is a log of DLedger"
        meaning = f"messages in it are not read: the broker has only those in {COMMIT_LOG}/"
        found.append(Unsupported(DLEDGER, log, meaning))
    return found


def unread_topics(files: Files, root: Path) -> Callable[[str], bool]:
    """Return a function: whether the queues of a topic may be in files that are not read."""
    everything = bool(refused_files(files, root))
    batches = frozenset(files.names(root / BATCH_CONSUME_QUEUE))
    return lambda topic: everything or topic in batches


def check(found: Iterable[Unsupported], ignored: Collection[str]) -> None:
    """Raise UnsupportedError for features that are not ignored; log those that are."""
    found = list(found)
    if refused := [each for each in found if each.name not in ignored]:
        lines = [
            f"{each.found}: Firetrail does not support this; {each.meaning}" for each in refused
        ]
        flags = " ".join(f"{FLAG} {name}" for name in dict.fromkeys(each.name for each in refused))
        raise UnsupportedError("\n  ".join([*lines, f"to start without it: {flags}"]))
    for each in found:
        _log.warning(
            "WARNING: %s is IGNORED because of %s %s: %s", each.found, FLAG, each.name, each.meaning
        )
