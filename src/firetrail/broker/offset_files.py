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

from firetrail.broker.files import ConfigFile, change_file
from firetrail.errors import StoreError
from firetrail.format.human import human_time
from firetrail.format.light import LIGHT_PREFIX
from firetrail.format.names import CONSUMER_OFFSETS, LMQ_OFFSETS
from firetrail.remoting.bodies import ConsumerOffsets, LmqConsumerOffsets
from firetrail.storage.system import System

LIGHT_QUEUE = 0
"""The only queue of a light topic."""

Offsets = dict[str, dict[int, int]]
"""Queue offsets by ``topic@group`` and queue id."""

_log = logging.getLogger(__name__)


class _Member(NamedTuple):
    """One of the two files."""

    file: ConfigFile
    is_lmq: bool
    modified_ms: int | None


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
        names = [CONSUMER_OFFSETS, LMQ_OFFSETS]
        files = [ConfigFile(system, root, name, before) for name in names]
        plain, lmq = (_Member(file, file is files[1], file.modified_ms()) for file in files)
        main, other = (lmq, plain) if light_queues else (plain, lmq)
        self._members = [main] if other.modified_ms is None else [main, other]
        # On a tie, the main one, as in Java.
        self._source = max(self._members, key=lambda each: each.modified_ms or 0)
        self.path = main.file.path
        """The file that a Java broker with the same settings reads."""

    def load(self) -> Offsets:
        """The offsets in the newer file; StoreError if it cannot be understood."""
        offsets = _read(self._source)
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
        for file, is_lmq, _ in self._members:
            if is_lmq:
                file.save(split(value["offsetTable"]).to_json())
            else:
                file.save(value)

    def _say_which(self, offsets: Offsets, other: _Member) -> None:
        """Unless the other file says the same, as after a broker that has saved both."""
        source, name = self._source, other.file.path.name
        if other.modified_ms is None:
            why = f"there is no {name}"
        else:
            try:
                if _read(other) == offsets:
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


def _read(member: _Member) -> Offsets:
    if member.is_lmq:
        return joined(member.file.load(LmqConsumerOffsets))
    return dict(member.file.load(ConsumerOffsets).offset_table)


def joined(table: LmqConsumerOffsets) -> Offsets:
    """The offsets of all groups in ``lmqConsumerOffset.json``.

    Of a group whose name begins with ``%LMQ%`` Java keeps a single offset for each topic.
    """
    offsets = {key: dict(queues) for key, queues in table.offset_table.items()}
    for key, offset in table.lmq_offset_table.items():
        offsets.setdefault(key, {})[LIGHT_QUEUE] = offset
    return offsets


def split(offsets: Offsets) -> LmqConsumerOffsets:
    """The reverse of :func:`joined`."""
    table = LmqConsumerOffsets()
    for key, queues in offsets.items():
        rest = dict(queues)
        if _is_light_group(key) and LIGHT_QUEUE in rest:
            table.lmq_offset_table[key] = rest.pop(LIGHT_QUEUE)
        if rest or not _is_light_group(key):
            table.offset_table[key] = rest
    return table


def _is_light_group(key: str) -> bool:
    return key.partition("@")[2].startswith(LIGHT_PREFIX)


def change_offsets(
    system: System, root: Path, change: Callable[[Offsets], Sequence[object]]
) -> list[str]:
    """Change the offsets in both files of a broker that is not running, if they are there.

    ``change`` says what it has done (:func:`firetrail.broker.files.change_file`).
    """

    def plain(table: ConsumerOffsets) -> Sequence[object]:
        return change(table.offset_table)

    def light(table: LmqConsumerOffsets) -> Sequence[object]:
        offsets = joined(table)
        done = change(offsets)
        changed = split(offsets)
        table.offset_table.clear()
        table.offset_table.update(changed.offset_table)
        table.lmq_offset_table.clear()
        table.lmq_offset_table.update(changed.lmq_offset_table)
        return done

    done = [
        *change_file(system, root, CONSUMER_OFFSETS, ConsumerOffsets, plain),
        *change_file(system, root, LMQ_OFFSETS, LmqConsumerOffsets, light),
    ]
    return list(dict.fromkeys(done))
