"""Filters on extended units, which rule out messages before their records are read."""

from typing import NamedTuple

from firetrail.format.files.extended_unit import ExtendedUnit
from firetrail.format.values.bloom import has_bits
from firetrail.store.queues.extension import QueueExtension

MAYBE = 1
_NO = 0
_MAYBE_ONLY = frozenset({MAYBE})

UNITS_TRANSLATED = 256
"""Maximum number of units of a queue with extension files that one read with a filter examines."""


class FilterBits(NamedTuple):
    """The filter of a consumer group, as bits of the bitmaps in extended units."""

    positions: tuple[int, ...]
    bits: int
    """The length of a bitmap; those of another length prove nothing, because the settings were
    different."""
    since: int
    """Bitmaps of messages that were stored at this time (ms) or before do not know the group."""

    def rules_out(self, unit: ExtendedUnit) -> bool:
        """Return whether a message certainly does not match the filter."""
        return (
            unit.store_time > self.since
            and len(unit.bitmap) * 8 == self.bits
            and not has_bits(unit.bitmap, self.positions)
        )


def translated(
    extension: QueueExtension,
    units: memoryview,
    tags: frozenset[int] | None,
    bits: FilterBits | None,
) -> tuple[memoryview, frozenset[int] | None]:
    """Return units with tags codes that can be compared, and the codes that match.

    They are the tags codes of the messages, or for a filter by ``bits`` whether a message may
    match. A unit whose extended unit is missing matches.
    """
    if bits is None:
        found = extension.translated(units, lambda code, unit: unit.tags_code if unit else code)
        return found, tags
    rules_out = bits.rules_out
    found = extension.translated(
        units, lambda code, unit: _NO if unit is not None and rules_out(unit) else MAYBE
    )
    return found, _MAYBE_ONLY
