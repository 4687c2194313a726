"""The damaged records of an open log: found by readers or by a scrub, and repaired or given up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from firetrail.errors import StoreDamagedError
from firetrail.settings.settings_table import Live
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import System

QueueUnit = tuple[str, int, int]
"""Topic, queue id and queue offset."""
PLACES_MAX = 10_000
"""Maximum number of remembered places. Further ones are counted, and found again after repairs."""


@dataclass(eq=False, slots=True)
class DamagedPlace:
    """A position in the log at which a good record should begin.

    Attributes:
        physical_offset: The position.
        error: File, offset and description of the damage.
        since: The time at which it was found, in monotonic seconds.
        is_given_up: Whether consumers skip it: it could not be repaired in time.
        queues: The queues with consumers that came across it.
        unit: The queue unit through which it was found; None if it was found without one. If the
            checksums of the record are right, it contradicts this unit.
    """

    physical_offset: int
    error: StoreDamagedError
    since: float
    is_given_up: bool = False
    queues: set[QueueKey] = field(default_factory=set)
    unit: QueueUnit | None = None


class DamageLedger:
    """Knows the damaged places of a log; all threads may use it.

    Attributes:
        found: The number of places that were found since the store was opened.
        repaired: The number of those that were repaired.
        on_found: Called for a new place, in the thread that found it, by a store whose damage is
            repaired. None if it is not: consumers then skip damaged messages at once.
    """

    def __init__(self, config: Live[StoreConfig], system: System) -> None:
        """Initialize."""
        self._live = config
        self._clock = system.clock
        self._guard = system.threads.lock()
        self._places: dict[int, DamagedPlace] = {}
        self.found = 0
        self.repaired = 0
        self.on_found: Callable[[DamagedPlace], None] | None = None

    def __len__(self) -> int:
        """Return the number of places that are damaged now, as far as they are remembered."""
        return len(self._places)

    def __iter__(self) -> Iterator[DamagedPlace]:
        """Iterate over the places that are damaged now, in the order of the log."""
        with self._guard:
            places = sorted(self._places)
            return iter([self._places[offset] for offset in places])

    def note(self, error: StoreDamagedError, unit: QueueUnit | None = None) -> DamagedPlace | None:
        """Note a damaged record; return its place, None if the damage is not that of a record.

        Args:
            error: The damage.
            unit: The queue unit through which it was found. Default: None.
        """
        offset = error.physical_offset
        if offset is None:
            return None
        with self._guard:
            known = self._places.get(offset)
            if known is not None:
                known.unit = known.unit or unit
                return known
            place = DamagedPlace(offset, error, self._clock.monotonic(), unit=unit)
            self.found += 1
            if len(self._places) < PLACES_MAX:
                self._places[offset] = place
        if self.on_found is not None:
            self.on_found(place)
        return place

    def awaits_repair(self, error: StoreDamagedError, unit: QueueUnit | None = None) -> bool:
        """Note a damaged record that a reader came across; return whether the reader waits.

        It does while the record may be repaired, for at most the time in the settings. If it is a
        consumer, which reads through ``unit``, it is woken for that queue then.
        """
        place = self.note(error, unit)
        if place is None or self.on_found is None or place.is_given_up:
            return False
        if unit is not None:
            place.queues.add(unit[:2])
        return not self.is_overdue(place)

    def is_overdue(self, place: DamagedPlace) -> bool:
        """Return whether consumers have waited long enough for the repair."""
        waited_s = self._clock.monotonic() - place.since
        return waited_s * 1000 >= self._live.current.repair_wait_ms

    def settle(self, place: DamagedPlace, *, is_repaired: bool) -> None:
        """Forget a place at which there is a good record again, or that the log lacks by now."""
        with self._guard:
            if self._places.pop(place.physical_offset, None) is not None and is_repaired:
                self.repaired += 1
