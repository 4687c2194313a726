"""Positions beyond the end of their queue, and how they are set back.

A log that became shorter (a repair has cut it, a crash took the end of a log that was not synced, a
queue was removed by hand) leaves positions that its queues no longer reach. A queue numbers new
messages from its end on, so that a group with such a position would skip them, without an error,
until the queue is longer than the position. The start of a broker and a repair set them back, but
not those in queues that a Java broker keeps in files which are not read here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from firetrail.broker.state.config_file import ORDERS, change_file
from firetrail.broker.state.offset_files import Offsets, change_offsets
from firetrail.broker.state.topics import REVIVE_PREFIX
from firetrail.broker.takeover.unsupported import unread_topics
from firetrail.errors import StoreError
from firetrail.format.names import DELAY_OFFSETS, SCHEDULE_TOPIC
from firetrail.remoting.bodies import DelayOffsets
from firetrail.remoting.pop_bodies import OrderInfo, OrderInfos
from firetrail.store.broker_store import BrokerStore
from firetrail.system import System

LOGGED_MAX = 20
"""Overruns that a start logs one by one; the others are counted."""

Overshoot = Callable[[str, int, int], int | None]
"""Tells the end of a queue that ends before a queue offset; None if it reaches that far, or if
nobody can say."""

Pop = TypeVar("Pop")

_log = logging.getLogger(__name__)


class Overrun(NamedTuple):
    """A position beyond the end of its queue; ``new`` is None if it was removed."""

    owner: str
    topic: str
    queue_id: int
    old: int
    new: int | None

    def __str__(self) -> str:
        outcome = "removed" if self.new is None else f"set back to {self.new}"
        return (
            f"{self.owner}: offset {self.old} of {self.topic}/{self.queue_id} is beyond the end of "
            f"the queue: {outcome}"
        )


def overshoot_in(store: BrokerStore, is_unread: Callable[[str], bool]) -> Overshoot:
    """For an open store. Queues that cannot be read, or are not, keep their positions."""

    def overshoot(topic: str, queue_id: int, offset: int) -> int | None:
        try:
            if offset <= 0 or store.reaches(topic, queue_id, offset) or is_unread(topic):
                return None
            end = store.max_offset(topic, queue_id)
        except StoreError as error:
            _log.warning("positions in %s/%d cannot be checked: %s", topic, queue_id, error)
            return None
        return end if end < offset else None

    return overshoot


def set_back_groups(offsets: Offsets, overshoot: Overshoot) -> list[Overrun]:
    """Change the offsets of groups, by ``topic@group`` and queue id, that are too far."""
    found = []
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        # The position of the broker itself in its notes of pops is the last one that it is done
        # with, not the next one.
        behind = 1 if topic.startswith(REVIVE_PREFIX) else 0
        for queue_id, old in list(queues.items()):
            end = overshoot(topic, queue_id, old + behind)
            if end is None:
                continue
            new = end - behind
            if new < 0:
                del queues[queue_id]
            else:
                queues[queue_id] = new
            found.append(Overrun(f"group {group}", topic, queue_id, old, None if new < 0 else new))
    return found


def set_back_delays(offsets: dict[int, int], overshoot: Overshoot) -> list[Overrun]:
    """Change the positions of delay levels that are too far."""
    found = []
    for level, old in offsets.items():
        end = overshoot(SCHEDULE_TOPIC, level - 1, old) if level > 0 else None
        if end is not None:
            offsets[level] = end
            found.append(Overrun(f"delay level {level}", SCHEDULE_TOPIC, level - 1, old, end))
    return found


def drop_orders(
    pops: dict[str, dict[int, Pop]], last: Callable[[Pop], int], overshoot: Overshoot
) -> list[Overrun]:
    """Remove the pops in order, by ``topic@group`` and queue id, whose ``last`` message is gone.

    Acknowledged, they would move their group beyond the end again. Without them, the group pops
    what is left once more.
    """
    found = []
    for key, queues in pops.items():
        topic, _, group = key.partition("@")
        for queue_id, pop in list(queues.items()):
            if overshoot(topic, queue_id, last(pop) + 1) is not None:
                del queues[queue_id]
                owner = f"ordered pop of group {group}"
                found.append(Overrun(owner, topic, queue_id, last(pop), None))
    return found


def log_overruns(overruns: list[Overrun]) -> None:
    """A line for each of the first, and one for the rest."""
    for overrun in overruns[:LOGGED_MAX]:
        _log.warning("%s", overrun)
    if len(overruns) > LOGGED_MAX:
        _log.warning("%d more positions were beyond their queues", len(overruns) - LOGGED_MAX)


def set_back_files(system: System, root: Path, ends: Callable[[str, int], int | None]) -> list[str]:
    """Set back what the files of a broker that is not running say; a sentence for each change.

    ``ends`` tells the end of a queue, 0 for one that is not there, None if it cannot be read. A
    file that cannot be read either is left alone and named.
    """

    is_unread = unread_topics(system.files, root)

    def overshoot(topic: str, queue_id: int, offset: int) -> int | None:
        end = None if is_unread(topic) else ends(topic, queue_id)
        return end if end is not None and end < offset else None

    def groups(offsets: Offsets) -> list[Overrun]:
        return set_back_groups(offsets, overshoot)

    def delays(table: DelayOffsets) -> list[Overrun]:
        return set_back_delays(table.offset_table, overshoot)

    def orders(table: OrderInfos) -> list[Overrun]:
        return drop_orders(table.table, _last_popped, overshoot)

    return [
        *change_offsets(system, root, groups),
        *change_file(system, root, DELAY_OFFSETS, DelayOffsets, delays),
        *change_file(system, root, ORDERS, OrderInfos, orders),
    ]


def _last_popped(info: OrderInfo) -> int:
    """The last queue offset of a pop, -1 of one without messages."""
    first, *differences = info.offsets or [-1]
    return first + max(differences, default=0)
