"""The SQL92 filters of consumer groups, evaluated when messages arrive.

RocketMQ calls this ConsumerFilterManager. With ``enableCalcFilterBitMap`` the dispatcher evaluates
the filters of all groups for each message, and the extended unit of the message gets a Bloom filter
of the groups that match. A pull then skips the messages that its bitmap rules out, without reading
them.

A bitmap proves something only about groups whose filter was known when it was made. So each filter
has the time since when it is known: messages that were stored later have it in their bitmaps. After
an unclean stop the file may lack the last changes, and the bitmaps until then prove nothing.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from firetrail.broker.filter.sql92 import SqlFilter, parse
from firetrail.broker.state.saver import Saver
from firetrail.errors import FormatError
from firetrail.format.record import decode_message
from firetrail.format.values.bloom import BloomFilter
from firetrail.remoting.messages.bodies import SubscriptionData
from firetrail.remoting.messages.filter_bodies import (
    BloomFilterData,
    ConsumerFilterData,
    ConsumerFilterTable,
    TopicFilters,
)
from firetrail.settings.config_file import ConfigFile
from firetrail.store.queues.filter_bits import FilterBits

DEAD_FOR_MS = 24 * 3_600_000
"""The time for which the filter of a group without consumers is kept, as in RocketMQ."""
FILTERS_PER_TOPIC_MAX = 256
"""Maximum number of groups per topic whose filters are evaluated for each message."""
FILTERS_MAX = 20_000
"""The same limit for all topics together. Filters of disconnected consumers count for a day."""
ASSUMED_DEAD_MS = 30_000
"""The time since which the consumers in a loaded file are assumed to have left, as in RocketMQ."""

_log = logging.getLogger(__name__)


class CompiledFilter:
    """The filter of a group, ready to be evaluated."""

    __slots__ = ("data", "filter", "positions")

    def __init__(self, data: ConsumerFilterData, positions: tuple[int, ...]) -> None:
        self.data = data
        self.filter: SqlFilter = parse(data.expression)
        self.positions = positions

    @property
    def is_dead(self) -> bool:
        return self.data.dead_time >= self.data.born_time


class ConsumerFilters:
    """The filters of all groups.

    The event loop changes them; the dispatcher's thread evaluates them.
    """

    def __init__(
        self,
        file: ConfigFile,
        bloom: BloomFilter,
        now_ms: Callable[[], int],
        newest_ms: Callable[[], int],
        *,
        clean: bool,
    ) -> None:
        """Load the filters.

        Args:
            file: ``consumerFilter.json``.
            bloom: The size of bitmaps.
            now_ms: Returns the time.
            newest_ms: Returns the store time of the newest message.
            clean: Whether the broker was stopped cleanly, so that the file has all changes.
        """
        self._bloom = bloom
        self._now_ms = now_ms
        self._newest_ms = newest_ms
        self._proved_after = 0 if clean else newest_ms()
        self._topics: dict[str, dict[str, CompiledFilter]] = {}
        self._load(file.load(ConsumerFilterTable))
        self.saver = Saver(file, self.content)

    def _load(self, table: ConsumerFilterTable) -> None:
        """Use the filters of a file; with other bits than those of the settings, none of them."""
        loaded: dict[str, dict[str, CompiledFilter]] = {}
        for topic, filters in table.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                positions = self._bloom.positions(_name(group, topic))
                if data.bloom_filter_data != BloomFilterData(self._bloom.bits, list(positions)):
                    _log.info("the filters in consumerFilter.json are of other settings")
                    return
                if data.dead_time == 0:
                    dead = max(self._now_ms() - ASSUMED_DEAD_MS, data.born_time)
                    data = replace(data, dead_time=dead)
                try:
                    loaded.setdefault(topic, {})[group] = CompiledFilter(data, positions)
                except FormatError as error:
                    _log.warning("the filter of %s for %s is dropped: %s", group, topic, error)
        self._topics = loaded

    def content(self) -> ConsumerFilterTable:
        """Return the filters for the file, without those that have been dead for a day."""
        limit = self._now_ms() - DEAD_FOR_MS
        for topic, groups in list(self._topics.items()):
            kept = {
                group: known
                for group, known in groups.items()
                if not known.is_dead or known.data.dead_time > limit
            }
            self._replace(topic, kept)
        return ConsumerFilterTable(
            {
                topic: TopicFilters({group: known.data for group, known in groups.items()}, topic)
                for topic, groups in self._topics.items()
            }
        )

    def _replace(self, topic: str, groups: dict[str, CompiledFilter]) -> None:
        """Replace the filters of a topic. The dispatcher never sees a dict that is being
        changed."""
        if groups:
            self._topics[topic] = groups
        else:
            self._topics.pop(topic, None)

    # -- consumers ----------------------------------------------------------------------------

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Note the subscriptions of a group's consumers."""
        subscribed = set()
        for subscription in subscriptions:
            subscribed.add(subscription.topic)
            if not subscription.is_by_tag and subscription.sub_string:
                self._register(group, subscription)
        for topic, groups in self._topics.items():
            if topic not in subscribed and group in groups:
                self._die(groups[group])

    def _register(self, group: str, wanted: SubscriptionData) -> None:
        topic = wanted.topic
        groups = self._topics.get(topic, {})
        known = groups.get(group)
        if known is not None and (
            wanted.sub_version < known.data.client_version
            or (known.data.expression == wanted.sub_string)
        ):
            version = max(known.data.client_version, wanted.sub_version)
            if known.is_dead or version != known.data.client_version:
                known.data = replace(known.data, dead_time=0, client_version=version)
                self.saver.changed()
            return
        if known is None and not self._has_room(groups):
            return
        positions = self._bloom.positions(_name(group, topic))
        data = ConsumerFilterData(
            consumer_group=group,
            topic=topic,
            expression=wanted.sub_string,
            expression_type=wanted.expression_type,
            born_time=2**63 - 1,  # no bitmap counts until the dispatcher knows the filter
            dead_time=0,
            client_version=wanted.sub_version,
            bloom_filter_data=BloomFilterData(self._bloom.bits, list(positions)),
        )
        try:
            added = CompiledFilter(data, positions)
        except FormatError:  # its pulls are refused with the reason
            self._replace(topic, {g: k for g, k in groups.items() if g != group})
            self.saver.changed()
            return
        self._replace(topic, groups | {group: added})
        # From here on the dispatcher evaluates it. All messages stored later are dispatched later.
        added.data = replace(data, born_time=max(self._now_ms(), self._newest_ms()))
        self.saver.changed()

    def _has_room(self, groups: Mapping[str, CompiledFilter]) -> bool:
        """Return whether a topic, and all topics together, may have one more filter."""
        count = sum(map(len, self._topics.values()))
        return len(groups) < FILTERS_PER_TOPIC_MAX and count < FILTERS_MAX

    def unregister(self, group: str) -> None:
        """Note that the last consumer of a group has left."""
        for groups in self._topics.values():
            if group in groups:
                self._die(groups[group])

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the filters of a topic, of a group, or of a group in a topic."""
        for name, groups in list(self._topics.items()):
            if topic in (None, name) and (group is None or group in groups):
                self._replace(name, {g: k for g, k in groups.items() if group not in (None, g)})
                self.saver.changed()

    async def saved(self) -> None:
        """Return when all changes so far are in the file."""
        await self.saver.saved()

    def _die(self, known: CompiledFilter) -> None:
        if not known.is_dead:
            dead = max(self._now_ms(), known.data.born_time)
            known.data = replace(known.data, dead_time=dead)
            self.saver.changed()

    # -- messages -----------------------------------------------------------------------------

    def bitmap(self, topic: str, record: memoryview) -> bytes:
        """Return the bitmap for a record: empty if its topic has no filters."""
        groups = self._topics.get(topic)
        if not groups:
            return b""
        try:
            properties = decode_message(record).properties
        except FormatError:
            return b""  # without a bitmap every filter looks at the record itself
        matching = (known for known in groups.values() if known.filter.matches(properties))
        return self._bloom.bitmap(bit for known in matching for bit in known.positions)

    def bits(self, topic: str, group: str, expression: str) -> FilterBits | None:
        """Return the filter bits of a group; None if its filter is not this one."""
        known = self._topics.get(topic, {}).get(group)
        if known is None or known.data.expression != expression:
            return None
        since = max(known.data.born_time, self._proved_after)
        return FilterBits(known.positions, self._bloom.bits, since)

    async def stop(self) -> None:
        """Save the filters."""
        await self.saver.stop()


def _name(group: str, topic: str) -> str:
    return f"{group}#{topic}"
