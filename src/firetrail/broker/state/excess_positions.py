"""Positions beyond the end of their queue, and how they are set back.

A log can become shorter: a repair truncates it, a crash loses the end of a log that was not synced,
or a queue is removed by hand. Then some saved positions are beyond the end of their queues. A queue
numbers new messages from its end, so a group with such a position would silently skip them until
the queue is longer than the position. The start of a broker and a repair set such positions back,
except in queues that a Java broker keeps in a format that Firetrail does not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from firetrail.broker.state.offset_files import GroupOffsets, change_offsets
from firetrail.broker.unsupported import unread_topics
from firetrail.errors import StoreError
from firetrail.format.names import DELAY_OFFSETS, SCHEDULE_TOPIC, parse_group_key
from firetrail.format.system_topics import REVIVE_PREFIX
from firetrail.remoting.messages.bodies import DelayOffsets
from firetrail.remoting.messages.pop.pop_bodies import OrderInfo, OrderInfos
from firetrail.settings.config_file import ORDERS, change_file
from firetrail.store.broker_store import BrokerStore
from firetrail.system import System

LOGGED_MAX = 20
"""Maximum number of excess positions that a start logs one by one; the others are counted."""

Overshoot = Callable[[str, int, int], int | None]
"""Returns the end of a queue that ends before a queue offset; None if the queue reaches that far,
or if its end is not known."""

Pop = TypeVar("Pop")

_log = logging.getLogger(__name__)


class ExcessPosition(NamedTuple):
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
    """Return the function for an open store. Positions in queues that are not read are kept."""

    def overshoot(topic: str, queue_id: int, offset: int) -> int | None:
        try:
            if offset <= 0 or store.queues.reaches(topic, queue_id, offset) or is_unread(topic):
                return None
            end = store.queues.max_offset(topic, queue_id)
        except StoreError as error:
            _log.warning(
                "positions in %s/%d cannot be checked and are kept: %s", topic, queue_id, error
            )
            return None
        return end if end < offset else None

    return overshoot


def set_back_groups(offsets: GroupOffsets, overshoot: Overshoot) -> list[ExcessPosition]:
    """Set the offsets of groups back, by ``topic@group`` and queue id, that are too large."""
    found = []
    for key, queues in offsets.items():
        topic, group = parse_group_key(key)
        # The position of the broker itself in the internal topic of pops is the last record that
        # is settled, not the next one.
        to_next = 1 if topic.startswith(REVIVE_PREFIX) else 0
        for queue_id, old in list(queues.items()):
            end = overshoot(topic, queue_id, old + to_next)
            if end is None:
                continue
            new = end - to_next
            if new < 0:
                del queues[queue_id]
            else:
                queues[queue_id] = new
            found.append(
                ExcessPosition(f"group {group}", topic, queue_id, old, None if new < 0 else new)
            )
    return found


def set_back_delays(offsets: dict[int, int], overshoot: Overshoot) -> list[ExcessPosition]:
    """Set the positions of delay levels back that are too large."""
    found = []
    for level, old in offsets.items():
        end = overshoot(SCHEDULE_TOPIC, level - 1, old) if level > 0 else None
        if end is not None:
            offsets[level] = end
            found.append(
                ExcessPosition(f"delay level {level}", SCHEDULE_TOPIC, level - 1, old, end)
            )
    return found


def drop_orders(
    pops: dict[str, dict[int, Pop]], last: Callable[[Pop], int], overshoot: Overshoot
) -> list[ExcessPosition]:
    """Remove the ordered pops, by ``topic@group`` and queue id, whose ``last`` message is lost.

    Their acknowledgement would move the group beyond the end again. Without them, the group pops
    the remaining messages again.
    """
    found = []
    for key, queues in pops.items():
        topic, group = parse_group_key(key)
        for queue_id, pop in list(queues.items()):
            if overshoot(topic, queue_id, last(pop) + 1) is not None:
                del queues[queue_id]
                owner = f"ordered pop of group {group}"
                found.append(ExcessPosition(owner, topic, queue_id, last(pop), None))
    return found


def log_excess_positions(excess: list[ExcessPosition]) -> None:
    """Log a line for each of the first positions, and one for the rest."""
    for position in excess[:LOGGED_MAX]:
        _log.warning("%s", position)
    if len(excess) > LOGGED_MAX:
        _log.warning("%d more positions were beyond their queues", len(excess) - LOGGED_MAX)


def set_back_files(system: System, root: Path, ends: Callable[[str, int], int | None]) -> list[str]:
    """Set positions back in the files of a broker that is not running; return a line per change.

    ``ends`` returns the end of a queue: 0 if it does not exist, None if it cannot be read. A file
    that cannot be read is not changed; the returned lines then name it.
    """

    is_unread = unread_topics(system.files, root)

    def overshoot(topic: str, queue_id: int, offset: int) -> int | None:
        end = None if is_unread(topic) else ends(topic, queue_id)
        return end if end is not None and end < offset else None

    def groups(offsets: GroupOffsets) -> list[ExcessPosition]:
        return set_back_groups(offsets, overshoot)

    def delays(table: DelayOffsets) -> list[ExcessPosition]:
        return set_back_delays(table.offset_table, overshoot)

    def orders(table: OrderInfos) -> list[ExcessPosition]:
        return drop_orders(table.table, _last_popped, overshoot)

    return [
        *change_offsets(system, root, groups),
        *change_file(system, root, DELAY_OFFSETS, DelayOffsets, delays),
        *change_file(system, root, ORDERS, OrderInfos, orders),
    ]


def _last_popped(info: OrderInfo) -> int:
    """Return the last queue offset of a pop, -1 for one without messages."""
    first, *differences = info.offsets or [-1]
    return first + max(differences, default=0)
