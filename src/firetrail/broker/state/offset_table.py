"""The offsets of consumer groups, as in RocketMQ's ``consumerOffset.json``."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from firetrail.broker.state.excess_positions import ExcessPosition, Overshoot, set_back_groups
from firetrail.broker.state.group_table import GroupTable, check_group
from firetrail.broker.state.offset_files import GroupOffsets, OffsetFiles
from firetrail.broker.state.saver import Saver
from firetrail.broker.state.topic_table import QUEUES_MAX, TopicTable
from firetrail.errors import RequestError
from firetrail.format.names import group_key, parse_group_key
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import ConsumerOffsets
from firetrail.remoting.messages.headers import ConsumerOffsetHeader, OffsetResponse
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.broker_store import BrokerStore

PULLED_MAX = 1_000_000
"""Maximum number of pairs of a queue and a group whose pull offsets are kept in memory: about 200
MiB."""
_NONE: Mapping[int, int] = MappingProxyType({})


class OffsetTable:
    """Queue offsets by topic, group and queue id: the next message for the group."""

    def __init__(
        self, file: OffsetFiles, store: BrokerStore, topics: TopicTable, groups: GroupTable
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = file.load()
        self._count = sum(map(len, self._offsets.values()))
        self.is_ours = file.is_ours
        """Whether Firetrail has saved the offsets that were loaded at the start."""
        self._resets: dict[tuple[str, str, int], int] = {}  # not announced to a pull yet
        self._pulled: dict[tuple[str, str, int], int] = {}
        self.before_saving: Callable[[], None] = lambda: None
        """Called before the offsets are copied to be saved, to add offsets of the same moment."""
        self.saver = Saver(file, self._saved_content)
        self.handlers: dict[int, Handler] = {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update,
        }

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset, None if the group has none in this queue."""
        queues = self._offsets.get(group_key(topic, group))
        return None if queues is None else queues.get(queue_id)

    def in_topic(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of a group in the queues of a topic, as they are at the moment."""
        return self._offsets.get(group_key(topic, group)) or _NONE

    @property
    def has_resets(self) -> bool:
        """Whether :meth:`take_reset` would find an offset for any group."""
        return bool(self._resets)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group. Clients that do not know it yet send -1, which is ignored.

        Raises:
            RequestError: The group has no offset in this queue, and there are too many offsets.
        """
        if self._count >= self._groups.offsets_max and offset >= 0:
            self.require_room(group, {topic: (queue_id,)})
        self.keep(group, topic, queue_id, offset)

    def require_room(self, group: str, queues: Mapping[str, Iterable[int]]) -> None:
        """Raise RequestError if there are too many offsets to keep those of a group in queues.

        Args:
            group: The name of the group.
            queues: The ids of the queues, by topic.
        """
        new = [
            (topic, queue_id)
            for topic, queue_ids in queues.items()
            for queue_id in queue_ids
            if queue_id not in self.in_topic(group, topic)
        ]
        if new and self._count + len(new) > (most := self._groups.offsets_max):
            topic, queue_id = new[0]
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"the offset of group {group} in queue {queue_id} of {topic} is not kept: there "
                f"are {self._count} offsets, and offsets_max is {most}; delete unused groups or "
                "raise the limit",
            )

    def keep(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group of the broker itself, or of one that is recovered, without the
        limit."""
        if offset < 0:
            return
        key = group_key(topic, group)
        queues = self._offsets.get(key)
        if queues is None:
            check_group(group)
            self._offsets[key] = queues = {}
        known = queues.get(queue_id)
        if known != offset:
            self._count += known is None
            queues[queue_id] = offset
            self.saver.note_change()

    def mark(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset without causing a save; the next save includes it."""
        queues = self._offsets.setdefault(group_key(topic, group), {})
        self._count += queue_id not in queues
        queues[queue_id] = offset

    def confirm(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset from a consumer, unless a reset was not announced to it yet."""
        if not self._resets or (group, topic, queue_id) not in self._resets:
            self.commit(group, topic, queue_id, offset)

    def reset(
        self, group: str, topic: str, queue_id: int, offset: int, *, announce: bool = True
    ) -> None:
        """Set the offset for an administrator; the next pull announces it if ``announce``."""
        self.commit(group, topic, queue_id, offset)
        self._pulled.pop((group, topic, queue_id), None)
        if announce:
            self._resets[group, topic, queue_id] = offset

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note up to which offset a group has pulled. This is kept in memory only."""
        if len(self._pulled) >= PULLED_MAX:
            self._pulled.clear()
        self._pulled[group, topic, queue_id] = next_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which a group has pulled, at least its committed offset."""
        committed = self.get(group, topic, queue_id) or 0
        return max(self._pulled.get((group, topic, queue_id), 0), committed)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and remove the offset of a reset that was not announced yet, None if none is."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    def set_back(self, overshoot: Overshoot) -> list[ExcessPosition]:
        """Set the offsets back that are beyond the end of their queues."""
        excess = set_back_groups(self._offsets, overshoot)
        if excess:
            self.saver.note_change()
        return excess

    def adopt(self, offsets: GroupOffsets, gone: Iterable[str]) -> bool:
        """Take over offsets of a master; return whether anything has changed.

        Args:
            offsets: The offsets by ``topic@group`` and queue id. They replace those of the same
                queues.
            gone: Keys, as ``topic@group``, that the master no longer has.
        """
        changed = False
        for key in gone:
            changed |= self._offsets.pop(key, None) is not None
        for key, queues in offsets.items():
            known = self._offsets.setdefault(key, {})
            if known.items() >= queues.items():
                continue
            known.update(queues)
            changed = True
        if changed:
            self._count = sum(map(len, self._offsets.values()))
            self.saver.changed()
        return changed

    def of_group(self, group: str) -> dict[str, dict[int, int]]:
        """Return the offsets of a group by topic and queue id."""
        return {topic: dict(queues) for topic, name, queues in self._entries() if name == group}

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have an offset in a topic."""
        return sorted(self.of_topic(topic))

    def of_topic(self, topic: str) -> dict[str, dict[int, int]]:
        """Return the offsets in a topic by group and queue id."""
        return {group: dict(queues) for name, group, queues in self._entries() if name == topic}

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics in which each group has an offset."""
        found: dict[str, list[str]] = {}
        for topic, group, _ in self._entries():
            found.setdefault(group, []).append(topic)
        return found

    def _entries(self) -> list[tuple[str, str, dict[int, int]]]:
        return [(*parse_group_key(key), queues) for key, queues in self._offsets.items()]

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Delete all offsets of a topic, of a group, or of a group in a topic."""
        for name, owner, _ in self._entries():
            if topic in (None, name) and group in (None, owner):
                self._count -= len(self._offsets.pop(group_key(name, owner)))
                self.saver.note_change()
        for table in (self._resets, self._pulled):
            for owner, name, queue_id in list(table):
                if topic in (None, name) and group in (None, owner):
                    del table[owner, name, queue_id]

    def content(self) -> ConsumerOffsets:
        """Return the whole table."""
        return ConsumerOffsets({key: dict(queues) for key, queues in self._offsets.items()})

    def _saved_content(self) -> ConsumerOffsets:
        self.before_saving()
        return self.content()

    async def saved(self) -> None:
        """Return when all changes so far are in the file."""
        await self.saver.saved()

    async def stop(self) -> None:
        """Save unsaved changes."""
        await self.saver.stop()

    # -- requests -----------------------------------------------------------------------------

    def _query(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = ConsumerOffsetHeader.decode(request.fields)
        offset = self.get(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            offset = self._initial_offset(header)
        return request.answer(fields=OffsetResponse(offset).encode())

    def _initial_offset(self, header: ConsumerOffsetHeader) -> int:
        """Return 0 for a new group if the queue still has its first message, likely in memory.

        Otherwise raise RequestError: the client decides where to begin.
        """
        store, queue = self._store, (header.topic, header.queue_id)
        if (
            store.queues.min_offset(*queue) > 0
            or not store.queues.is_recent(*queue, 0)
            or header.set_zero_if_not_found is False
        ):
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"group {header.consumer_group} has no offset in this queue yet",
            )
        return 0

    def _update(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = ConsumerOffsetHeader.decode(request.fields)
        if header.commit_offset is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the field commitOffset is missing")
        topic = self._topics.require(header.topic)
        self._groups.require(header.consumer_group)
        if header.queue_id not in topic.queues and not self._had_queue(header):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"queueId[{header.queue_id}] is illegal: no such queue"
            )
        self.confirm(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return request.answer()

    def _had_queue(self, header: ConsumerOffsetHeader) -> bool:
        """Whether a topic had a queue before the number of its queues was reduced."""
        if not 0 <= header.queue_id < QUEUES_MAX:
            return False
        return self._store.queues.max_offset(header.topic, header.queue_id) > 0
