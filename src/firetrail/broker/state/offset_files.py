"""The files with the offsets of consumer groups, and which of the two is used.

A Java broker keeps them in ``consumerOffset.json``. With ``enableLmq=true`` it keeps those of all
groups in ``lmqConsumerOffset.json`` instead, and neither reads nor writes the other file. A folder
can therefore have both, of which one is stale. The newer one is read. Saved are the one that a Java
broker with the same setting would read and, if it is there, the other one as well, so that no stale
file is left behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from firetrail.broker.state.config_file import ConfigFile, left_alone
from firetrail.errors import StoreError
from firetrail.format.light import LIGHT_QUEUE_ID, is_light
from firetrail.format.names import CONSUMER_OFFSETS, LMQ_OFFSETS
from firetrail.remoting.bodies import ConsumerOffsets, LmqConsumerOffsets
from firetrail.system import System
from firetrail.text import human_time

Offsets = dict[str, dict[int, int]]
"""Queue offsets by ``topic@group`` and queue id."""

_log = logging.getLogger(__name__)


class _Member(NamedTuple):
    """One of the two files."""

    file: ConfigFile
    is_lmq: bool
    modified_ms: int | None

    def load(self) -> Offsets:
        if self.is_lmq:
            return joined(self.file.load(LmqConsumerOffsets))
        return dict(self.file.load(ConsumerOffsets).offset_table)

    def save(self, offsets: Offsets) -> None:
        table = split(offsets) if self.is_lmq else ConsumerOffsets(offsets)
        self.file.save(table.to_json())


class OffsetFiles:
    """Reads the newer of the two files, and saves to those that matter."""

    def __init__(
        self,
        system: System,
        root: Path,
        before: Callable[[], None] | None = None,
        *,
        light_queues: bool = False,
    ) -> None:
        """``before`` is done before each write; ``light_queues`` is Java's ``enableLmq``."""
        plain, lmq = (
            ConfigFile(system, root, name, before) for name in (CONSUMER_OFFSETS, LMQ_OFFSETS)
        )
        both = [_Member(plain, False, plain.modified_ms()), _Member(lmq, True, lmq.modified_ms())]
        main, other = reversed(both) if light_queues else both
        self._members = [main] if other.modified_ms is None else [main, other]
        # On a tie, the main one, as in Java.
        self._source = max(self._members, key=lambda each: each.modified_ms or 0)
        self.path = main.file.path
        """The file that a Java broker with the same settings reads."""

    def load(self) -> Offsets:
        """The offsets in the newer file; StoreError if it cannot be understood."""
        offsets = self._source.load()
        for other in self._members:
            if other is not self._source:
                self._say_which(offsets, other)
        return offsets

    @property
    def is_ours(self) -> bool:
        """Whether Firetrail has written what was loaded, or nobody has written anything."""
        return self._source.file.is_ours

    def save(self, value: dict[str, Any]) -> None:
        """Write ``{"offsetTable": …}`` to the files, durably."""
        for member in self._members:
            member.save(value["offsetTable"])

    def _say_which(self, offsets: Offsets, other: _Member) -> None:
        """Unless the other file says the same, as after a broker that has saved both."""
        source, name = self._source, other.file.path.name
        if other.modified_ms is None:
            why = f"there is no {name}"
        else:
            try:
                if other.load() == offsets:
                    return
                why = f"it is newer than {name} ({human_time(other.modified_ms)})"
            except StoreError as error:
                why = f"it is newer than {name}, which cannot be understood: {error}"
        _log.warning(
            "%s (%s): the offsets of consumer groups are read from this file, because %s; from now "
            "on both files are kept up to date",
            source.file.path,
            human_time(source.modified_ms),
            why,
        )


def joined(table: LmqConsumerOffsets) -> Offsets:
    """The offsets of all groups in ``lmqConsumerOffset.json``.

    Of a group whose name begins with ``%LMQ%`` Java keeps a single offset for each topic.
    """
    offsets = {key: dict(queues) for key, queues in table.offset_table.items()}
    for key, offset in table.lmq_offset_table.items():
        offsets.setdefault(key, {})[LIGHT_QUEUE_ID] = offset
    return offsets


def split(offsets: Offsets) -> LmqConsumerOffsets:
    """The reverse of :func:`joined`."""
    table = LmqConsumerOffsets()
    for key, queues in offsets.items():
        rest = dict(queues)
        if _is_light_group(key) and LIGHT_QUEUE_ID in rest:
            table.lmq_offset_table[key] = rest.pop(LIGHT_QUEUE_ID)
        if rest or not _is_light_group(key):
            table.offset_table[key] = rest
    return table


def _is_light_group(key: str) -> bool:
    return is_light(key.partition("@")[2])


def change_offsets(
    system: System, root: Path, change: Callable[[Offsets], Sequence[object]]
) -> list[str]:
    """Change the offsets of a broker that is not running: those in the newer file.

    ``change`` says what it has done, and both files, if they are there, get the result: none of
    them is stale then.
    """
    files = OffsetFiles(system, root)
    try:
        offsets = files.load()
    except StoreError as error:
        return [left_alone(error)]
    done = [str(line) for line in change(offsets)]
    if done:
        files.save(ConsumerOffsets(offsets).to_json())
    return done
