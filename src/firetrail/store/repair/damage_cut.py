"""The first damage of a log: whether queues can be rebuilt in spite of it, and where to cut."""

from contextlib import closing
from typing import NamedTuple

from firetrail.errors import StoreDamagedError, StoreError
from firetrail.format.columns import Check
from firetrail.store.inspect.log_tail import check_end
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.walk import Damage
from firetrail.store.problems import LOG_REMEDY
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.repair.losses import LogFaults, find_faults, known_end


class DamageCut(NamedTuple):
    """The position at which a damaged log is cut."""

    damage: Damage
    queues_after: frozenset[QueueKey]
    """Queues that begin after the damage."""


def check_log(view: StoreView) -> None:
    """Raise StoreDamagedError unless queues and index can be created from the log.

    Bodies do not matter, because nothing is derived from them.
    """
    check_end(view)
    faults = find_faults(view, Check.NONE)
    damage = faults.first(view)
    if damage is None or damage.physical_offset >= view.end:
        return
    detail = damage.detail
    if damage.physical_offset not in faults.misplaced:
        detail = f"no good record here, so the log cannot be read further: {detail}"
    raise StoreDamagedError(
        str(damage.path),
        damage.position,
        damage.physical_offset,
        detail,
        f"nothing was changed; {LOG_REMEDY}",
    )


def damage_to_cut(view: StoreView, faults: LogFaults | None = None) -> Damage:
    """Return the first damage of a log; raise StoreError if there is none, or no log file."""
    if not view.log.segments:
        check_end(view)
    damage = (faults or find_faults(view)).first(view)
    if damage is None:
        what = "the log is good to its end, so there is nothing to cut or salvage"
        raise StoreError(f"{view.root}: {what}")
    return damage


def find_cut(view: StoreView, faults: LogFaults | None = None) -> DamageCut:
    """Return the position at which to cut a log; raise StoreError if it is not damaged."""
    damage = damage_to_cut(view, faults)
    begin = damage.physical_offset
    return DamageCut(
        damage, frozenset(key for key in view.tails if _begins_after(view, key, begin))
    )


def _begins_after(view: StoreView, pair: QueueKey, place: int) -> bool:
    """Return whether all messages of a queue, with message 0, are at or after a position."""
    with closing(view.open_queue(*pair)) as queue:
        unit = queue.unit(0)
        if unit is None or not place <= unit.physical_offset < known_end(view):
            return False
        return queue.first_where(0, queue.max_offset, lambda u: u.physical_offset >= place) == 0
