"""The topics of a broker, as in RocketMQ's ``topics.json``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.state.attributes import ADD, altered
from firetrail.broker.state.auto_creation import AutoCreation
from firetrail.broker.state.saver import Saver
from firetrail.errors import IllegalMessageError, RequestError
from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.light import is_light
from firetrail.format.message_types import TYPE_ATTRIBUTE, MessageType
from firetrail.format.names import (
    AUTO_CREATE_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    check_topic,
    reply_topic,
)
from firetrail.format.system_topics import (
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    is_fixed,
    own_topics,
    revive_topic,
)
from firetrail.remoting.messages.bodies import DataVersion, TopicConfig, TopicConfigTable
from firetrail.remoting.messages.headers import SendHeader
from firetrail.remoting.wire.codes import Permission, ResponseCode
from firetrail.settings.config_file import ConfigFile
from firetrail.settings.settings_table import Live

QUEUES_MAX = 10_000

READ_WRITE = Permission.READ | Permission.WRITE


class TopicTable:
    """The table of topics by name.

    ``on_change`` is called after each change, to update the routes: with the new or changed topics,
    or with None if a topic was deleted.

    The table of a slave is a copy of its master's: :meth:`adopt` replaces it, and nothing else adds
    a topic to it.

    Attributes:
        is_frozen: Whether no topic is created on demand, as in a copy.
        fence: Returns why another broker may be the master, so that no topic is created on demand;
            empty if none may.
    """

    def __init__(
        self,
        file: ConfigFile,
        config: Live[BrokerConfig],
        delay_levels: int,
        now_ms: Callable[[], int],
        *,
        is_copy: bool = False,
    ) -> None:
        self._live = config
        self._is_copy = is_copy
        self.is_frozen = False
        self.fence: Callable[[], str] = lambda: ""
        self._now_ms = now_ms
        kept = file.load(TopicConfigTable)
        self._topics = dict(kept.topic_config_table)
        self.version = kept.data_version
        self.revive = revive_topic(config.current.cluster)
        """The internal topic that records pops and acknowledgements."""
        self._own = own_topics(config.current.cluster, config.current.name)
        self._saver = Saver(file, self.content)
        self.on_change: Callable[[Sequence[TopicConfig] | None], None] = lambda topics: None
        self.has_light_queues = False
        """Whether light queues can be read, each as a topic with one queue."""
        self._delay_levels = delay_levels
        self._creation = AutoCreation(
            ResponseCode.TOPIC_NOT_EXIST,
            "auto_topics_max",
            lambda: config.current.auto_topics_max,
            lambda: config.current.auto_create_rate,
            now_ms,
        )
        if not is_copy:
            self._create_system_topics()

    def _create_system_topics(self) -> None:
        reply = reply_topic(self._live.current.cluster)
        inherited = READ_WRITE | Permission.INHERIT
        queues = self._live.current.default_topic_queues
        wanted = {
            SELF_TEST_TOPIC: (1, READ_WRITE),
            BENCHMARK_TOPIC: (1024, READ_WRITE),
            self._live.current.cluster: (16, inherited),
            self._live.current.name: (1, inherited),
            OFFSET_MOVED_TOPIC: (1, READ_WRITE),
            SCHEDULE_TOPIC: (self._delay_levels, READ_WRITE),
            reply: (1, READ_WRITE),
            HALF_TOPIC: (1, READ_WRITE),
            OP_TOPIC: (1, READ_WRITE),
            TIMER_TOPIC: (1, READ_WRITE),
            self.revive: (self._live.current.revive_queues, Permission.READ),
        }
        if self._live.current.auto_create_topics:
            wanted[AUTO_CREATE_TOPIC] = (queues, inherited)
        elif AUTO_CREATE_TOPIC in self._topics:
            # Left over from a time when auto-creation was on. RocketMQ keeps it, without INHERIT.
            self._topics[AUTO_CREATE_TOPIC] = replace(
                self._topics[AUTO_CREATE_TOPIC], perm=int(READ_WRITE)
            )
        if self._live.current.trace_topic:
            wanted[self._live.current.trace_topic_name] = (1, READ_WRITE)
        for name, (count, perm) in wanted.items():
            if name not in self._topics:
                self._topics[name] = TopicConfig(name, count, count, int(perm))

    def reconfigured(self) -> None:
        """Adapt the system topics to changed settings."""
        if self._is_copy:
            return
        self._topics.pop(AUTO_CREATE_TOPIC, None)
        self._create_system_topics()
        self._changed()

    # -- lookups ------------------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic, None if it does not exist."""
        return self._topics.get(name)

    def require(self, name: str) -> TopicConfig:
        """Return the topic; raise RequestError if it does not exist."""
        topic = self._topics.get(name)
        if topic is None and self.has_light_queues and is_light(name):
            # Light queues are not in the table.
            return TopicConfig(name, 1, 1, int(Permission.READ))
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name:.255}] not exist, apply first please!"
            )
        return topic

    def is_fixed(self, name: str) -> bool:
        """Return whether administrators can neither create, change nor delete a topic."""
        return name in self._own or is_fixed(name)

    def fixed(self) -> list[str]:
        """Return the sorted names of the topics of the system that administrators cannot change."""
        return sorted(self._own.union(filter(is_fixed, SYSTEM_TOPICS)))

    def names(self) -> list[str]:
        """Return the sorted names of all topics."""
        return sorted(self._topics)

    def content(self) -> TopicConfigTable:
        """Return the whole table."""
        return TopicConfigTable(dict(sorted(self._topics.items())), self.version)

    def offered(self, topics: Iterable[TopicConfig] | None = None) -> TopicConfigTable:
        """Return all topics, or some, as routes offer them (:meth:`offer`).

        This is the table that is registered with name servers.
        """
        if topics is None:
            topics = self.content().topic_config_table.values()
        chosen = {topic.topic_name: self.offer(topic) for topic in topics}
        return TopicConfigTable(chosen, self.version)

    def offer(self, topic: TopicConfig) -> TopicConfig:
        """Return a topic as routes offer it: with no permission that the broker does not have."""
        permission = self._live.current.permission
        if permission & READ_WRITE == READ_WRITE:
            return topic
        return replace(topic, perm=topic.perm & permission)

    # -- changes ------------------------------------------------------------------------------

    def for_send(self, header: SendHeader) -> TopicConfig:
        """Return the topic of a message; create it after the client's default topic if missing."""
        name = header.topic
        check_topic_name(name)
        if name.startswith(RETRY_PREFIX):
            return self.ensure(name, 1)
        model = self._topics.get(header.default_topic)
        if model is None or not model.perm & Permission.INHERIT:
            return self.require(name)
        if refusal := self.fence():
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
        queues = max(1, min(header.default_topic_queue_nums, model.write_queue_nums))
        self._creation.check(f"topic {name}", len(self._topics))
        topic = replace(
            model,
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(model.perm & ~Permission.INHERIT),
        )
        self._change([topic])
        return topic

    def ensure(self, name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
        """Return the topic; create it with this many queues if it does not exist.

        A slave, and a master that is frozen or fenced, return it as a master would create it.
        """
        topic = self._topics.get(name)
        if topic is None:
            check_topic_name(name)
            topic = TopicConfig(name, queues, queues, int(perm))
            if not (self._is_copy or self.is_frozen or self.fence()):
                if not self.is_fixed(name):
                    self._creation.check(f"topic {name}", len(self._topics))
                self._change([topic])
        return topic

    def put(self, topics: Iterable[TopicConfig]) -> None:
        """Add or change topics for an administrator; raise RequestError if one is invalid.

        Their attributes are changes to the attributes that a topic already has.
        """
        topics = list(topics)
        for number, topic in enumerate(topics):
            name = topic.topic_name
            check_topic_name(name)
            if self.is_fixed(name):
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic."
                )
            queues = topic.read_queue_nums, topic.write_queue_nums
            if not all(0 <= count <= QUEUES_MAX for count in queues) or not 0 <= topic.perm <= 7:
                raise RequestError(
                    ResponseCode.INVALID_PARAMETER,
                    f"topic {name}: {queues[0]} and {queues[1]} queues and perm {topic.perm}; "
                    f"allowed are 0 to {QUEUES_MAX} queues and a perm from 0 to 7",
                )
            self._check_type(topic)
            known = self._topics.get(name)
            attributes = altered(
                known.attributes if known is not None else None,
                topic.attributes or {},
                is_new=known is None,
            )
            topics[number] = replace(topic, attributes=attributes)
        self._change(topics)

    def _check_type(self, topic: TopicConfig) -> None:
        wanted = (topic.attributes or {}).get(f"{ADD}{TYPE_ATTRIBUTE}")
        if wanted == MessageType.MIXED and not self._live.current.mixed_topics:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic.topic_name}: MIXED message type is not supported, because this "
                "broker has enableMixedMessageType=false",
            )

    def adopt(self, table: TopicConfigTable) -> bool:
        """Replace all topics by those of a master; return whether anything has changed."""
        if table == self.content():
            return False
        self._topics = dict(table.topic_config_table)
        self.version = table.data_version
        self._saver.changed()
        self.on_change(None)
        return True

    def remove(self, name: str) -> None:
        """Delete the topic."""
        if self._topics.pop(name, None) is not None:
            self._changed()

    def recover(
        self,
        queues: Iterable[tuple[str, int]],
        newest_time: Callable[[str], int | None],
        destinations: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Create the topics again that have messages and were not saved before a crash.

        Args:
            queues: Topic and queue id of all queues of the store.
            newest_time: Returns when the newest message of a topic was stored. A topic whose newest
                message is older than the file was deleted.
            destinations: Topic and queue id that delayed and half messages will be delivered to.
                They were stored after the file was saved.
        """
        counts: dict[str, int] = {}
        for name, queue_id in queues:
            if name not in self._topics and not is_light(name):
                counts[name] = max(counts.get(name, 0), queue_id + 1)
        for name in list(counts):
            newest = newest_time(name)
            if newest is None or newest < self.version.timestamp:
                del counts[name]
        for name, queue_id in destinations:
            if name not in self._topics and queue_id < QUEUES_MAX:
                counts[name] = max(counts.get(name, 0), queue_id + 1)
        if counts:
            self._change(TopicConfig(name, count, count) for name, count in counts.items())

    def _change(self, topics: Iterable[TopicConfig]) -> None:
        topics = list(topics)
        for topic in topics:
            self._topics[topic.topic_name] = topic
        self._changed(topics)

    def _changed(self, topics: Sequence[TopicConfig] | None = None) -> None:
        self.version = DataVersion(
            self.version.counter + 1, self._now_ms(), self.version.state_version
        )
        self._saver.changed()
        self.on_change(topics)

    async def saved(self) -> None:
        """Return when all changes are in the file."""
        await self._saver.saved()

    async def stop(self) -> None:
        """Save unsaved changes."""
        await self._saver.stop()


def check_topic_name(name: str) -> None:
    """Raise RequestError unless ``name`` is a valid name of a topic."""
    try:
        check_topic(name)
    except IllegalMessageError as error:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"The specified topic is illegal: {error}"
        ) from None
