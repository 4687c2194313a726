"""The two files with the offsets of consumer groups, and the choice between them.

A Java broker keeps the offsets in ``consumerOffset.json``. With ``enableLmq=true`` it keeps those
of all groups in ``lmqConsumerOffset.json`` instead, and neither reads nor writes the other file. A
folder can therefore have both, one of which is stale. The newer one is read. A save writes the file
that a Java broker with the same setting would read and also the other one if it exists, so that
neither is stale.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from firetrail.errors import StoreError
from firetrail.format.light import LIGHT_QUEUE_ID, is_light
from firetrail.format.names import CONSUMER_OFFSETS, LMQ_OFFSETS, parse_group_key
from firetrail.remoting.messages.bodies import ConsumerOffsets, LmqConsumerOffsets
from firetrail.settings.config_file import ConfigFile, unchanged
from firetrail.system import System
from firetrail.text import human_time

GroupOffsets = dict[str, dict[int, int]]
"""Queue offsets by ``topic@group`` and queue id."""

_log = logging.getLogger(__name__)


class _OffsetFile(NamedTuple):
    """One of the two files."""

    file: ConfigFile
    is_lmq: bool
    modified_ms: int | None

    def load(self) -> GroupOffsets:
        if self.is_lmq:
            return joined(self.file.load(LmqConsumerOffsets))
        return dict(self.file.load(ConsumerOffsets).offset_table)

    def save(self, offsets: GroupOffsets) -> None:
        table = split(offsets) if self.is_lmq else ConsumerOffsets(offsets)
        self.file.save(table.to_json())


class OffsetFiles:
    """Reads the newer of the two files, and saves both if both exist."""

    def __init__(
        self,
        system: System,
        root: Path,
        before: Callable[[], None] | None = None,
        *,
        light_queues: bool = False,
    ) -> None:
        """``before`` is called before each write; ``light_queues`` is Java's ``enableLmq``."""
        plain, lmq = (
            ConfigFile(system, root, name, before) for name in (CONSUMER_OFFSETS, LMQ_OFFSETS)
        )
        both = [
            _OffsetFile(plain, False, plain.modified_ms()),
            _OffsetFile(lmq, True, lmq.modified_ms()),
        ]
        main, other = reversed(both) if light_queues else both
        self._members = [main] if other.modified_ms is None else [main, other]
        # If both are equally old, the main one is read, as in Java.
        self._source = max(self._members, key=lambda each: each.modified_ms or 0)
        self.path = main.file.path
        """The file that a Java broker with the same settings reads."""

    def load(self) -> GroupOffsets:
        """Return the offsets in the newer file; raise StoreError if it cannot be decoded."""
        offsets = self._source.load()
        for other in self._members:
            if other is not self._source:
                self._log_choice(offsets, other)
        return offsets

    @property
    def is_ours(self) -> bool:
        """Whether Firetrail has written the loaded offsets, or there is no file yet."""
        return self._source.file.is_ours

    def save(self, value: dict[str, Any]) -> None:
        """Write ``{"offsetTable": …}`` to the files durably."""
        for member in self._members:
            member.save(value["offsetTable"])

    def _log_choice(self, offsets: GroupOffsets, other: _OffsetFile) -> None:
        """Log which file is read, unless both are equal, as after a broker that saves both."""
        source, name = self._source, other.file.path.name
        if other.modified_ms is None:
            why = f"there is no {name}"
        else:
            try:
                if other.load() == offsets:
                    return
                why = f"it is newer than {name} ({human_time(other.modified_ms)})"
            except StoreError as error:
                why = f"it is newer than {name}, which cannot be decoded: {error}"
        _log.warning(
            "%s (%s): the offsets of consumer groups are read from this file, because %s; from now "
            "on both files are kept up to date",
            source.file.path,
            human_time(source.modified_ms),
            why,
        )


def joined(table: LmqConsumerOffsets) -> GroupOffsets:
    """Return the offsets of all groups in ``lmqConsumerOffset.json``.

    For a group whose name begins with ``%LMQ%``, Java keeps a single offset per topic.
    """
    offsets = {key: dict(queues) for key, queues in table.offset_table.items()}
    for key, offset in table.lmq_offset_table.items():
        offsets.setdefault(key, {})[LIGHT_QUEUE_ID] = offset
    return offsets


def split(offsets: GroupOffsets) -> LmqConsumerOffsets:
    """Reverse :func:`joined`."""
    table = LmqConsumerOffsets()
    for key, queues in offsets.items():
        rest = dict(queues)
        if _is_light_group(key) and LIGHT_QUEUE_ID in rest:
            table.lmq_offset_table[key] = rest.pop(LIGHT_QUEUE_ID)
        if rest or not _is_light_group(key):
            table.offset_table[key] = rest
    return table


def _is_light_group(key: str) -> bool:
    return is_light(parse_group_key(key)[1])


def change_offsets(
    system: System, root: Path, change: Callable[[GroupOffsets], Sequence[object]]
) -> list[str]:
    """Change the offsets of a broker that is not running, which are those in the newer file.

    ``change`` returns a line for each change. If there is any, the result is written to both files,
    as far as they exist, so that neither is stale.
    """
    files = OffsetFiles(system, root)
    try:
        offsets = files.load()
    except StoreError as error:
        return [unchanged(error)]
    done = [str(line) for line in change(offsets)]
    if done:
        files.save(ConsumerOffsets(offsets).to_json())
    return done
