"""The bodies of commands between clients, brokers and name servers, except for administration.

The files of a broker in ``config/*.json`` use the same classes: ``config_json.dumps(x.to_json())``.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from firetrail.format.values.tags import ALL_TAGS
from firetrail.remoting.messages.retry_policies import GroupRetryPolicy
from firetrail.remoting.messages.typed_body import Body, ServerBody, named
from firetrail.remoting.wire.codes import Permission

MASTER_ID = 0
"""The broker id of a master. Slaves have other ids under the same broker name."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue(Body):
    """A queue of a topic on a broker. Queues sort in the order that all clients agree on.

    Args:
        topic: The name of the topic.
        broker_name: The name of the broker.
        queue_id: The number of the queue, from 0.
    """

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """A counter and the time of the last change: equal versions mean equal content."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None


# -- clients ----------------------------------------------------------------------------------


class ConsumeType(StrEnum):
    """The way to get messages. The order of the members matters, as peers send ordinals."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """The way to share messages. The order of the members matters, as peers send ordinals."""

    BROADCASTING = "BROADCASTING"
    """Every member gets every message."""
    CLUSTERING = "CLUSTERING"
    """The members share the messages."""


class ConsumeFromWhere(StrEnum):
    """The start of a new group. The order of the members matters, as peers send ordinals."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    """The group starts at the end of each queue."""
    LAST_OFFSET_MIN_AT_BOOT = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    """Deprecated in RocketMQ."""
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    """Deprecated in RocketMQ."""
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    """Deprecated in RocketMQ."""
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    """The group starts at the first message of each queue."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """The group starts at the first message stored at a given time or later."""


BY_TAG = "TAG"
BY_SQL = "SQL92"


def is_tag_filter(expression_type: str | None) -> bool:
    """Return whether a type of filter is the one by tags, which is also the default."""
    return expression_type in (None, "", BY_TAG)


@dataclass(frozen=True, slots=True)
class SubscriptionData(Body):
    """A subscription of a group. Programs create it with ``by_tags`` or ``by_sql``.

    Args:
        topic: The name of the topic.
        sub_string: Tags such as ``"a || b"``, or an SQL92 condition. Default: ``"*"``.
        expression_type: ``TAG`` (the default) or ``SQL92``.
        sub_version: When the subscription was created, in ms since 1970; newer ones replace older
            ones in a broker. Default: 0.
        tags_set: The tags. Default: none, for all messages.
        code_set: The hashes of the tags, as Java computes them.
        class_filter_mode: RocketMQ's filter classes, which Firetrail does not have. Default: False.
    """

    topic: str
    sub_string: str = ALL_TAGS
    expression_type: str = BY_TAG
    sub_version: int = 0
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    class_filter_mode: bool = False

    @property
    def is_by_tag(self) -> bool:
        """Whether the subscription selects messages by tags."""
        return is_tag_filter(self.expression_type)


@dataclass(frozen=True, slots=True)
class ConsumerData(Body):
    """One consumer group of a client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class ProducerData(Body):
    """One producer group of a client."""

    group_name: str


@dataclass(frozen=True, slots=True)
class HeartbeatData(Body):
    """HEART_BEAT: the groups and subscriptions of a client."""

    client_id: str = named("clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckClientBody(Body):
    """CHECK_CLIENT_CONFIG: asks whether the broker accepts a subscription."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerIdList(Body):
    """The answer to GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LockBody(Body):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool | None = None


@dataclass(frozen=True, slots=True)
class LockedBody(Body):
    """The answer to LOCK_BATCH_MQ: the queues whose locks were granted."""

    locked: list[MessageQueue] = field(default_factory=list, metadata={"wire": "lockOKMQSet"})


class RequestMode(StrEnum):
    """The way in which a client gets the messages of a queue."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True)
class QueryAssignmentBody(Body):
    """QUERY_ASSIGNMENT."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel = MessageModel.CLUSTERING


@dataclass(frozen=True, slots=True)
class MessageQueueAssignment(Body):
    """A queue that is assigned to a client."""

    message_queue: MessageQueue
    mode: RequestMode = RequestMode.PULL
    attachments: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AssignmentBody(Body):
    """The answer to QUERY_ASSIGNMENT; None means unknown, and the client keeps its queues."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


# -- routes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueData(Body):
    """The numbers of queues and the permissions of a topic on a broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    def open_queues(self, permission: int) -> range:
        """Return the queues that clients may read or write.

        Args:
            permission: ``Permission.READ`` or ``Permission.WRITE``.
        """
        if not self.perm & permission:
            return range(0)
        writing = permission == Permission.WRITE
        return range(self.write_queue_nums if writing else self.read_queue_nums)


@dataclass(frozen=True, slots=True)
class BrokerData(Body):
    """The addresses of the brokers of one name: a master and its slaves."""

    broker_name: str
    cluster: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None

    @property
    def master(self) -> str | None:
        """The address of the master, which accepts messages; None if it is down."""
        return self.broker_addrs.get(MASTER_ID)

    @property
    def first(self) -> str | None:
        """The address of the master or, if it is down, of the replica with the smallest id."""
        return self.broker_addrs[min(self.broker_addrs)] if self.broker_addrs else None


@dataclass(frozen=True, slots=True)
class TopicRouteData(ServerBody):
    """The answer to GET_ROUTEINFO_BY_TOPIC."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None

    def open_queues(
        self, permission: int, *, masters_only: bool = False
    ) -> list[tuple[QueueData, range]]:
        """Return the entries of brokers with queues that may be read or written now, and these.

        Only a master is written to. Slaves may be read, but not by pops, which change the broker.

        Args:
            permission: ``Permission.READ`` or ``Permission.WRITE``.
            masters_only: Whether reads, too, need a master. Default: False.
        """
        need_master = masters_only or permission == Permission.WRITE
        masters = {broker.broker_name for broker in self.broker_datas if broker.master is not None}
        return [
            (data, queues)
            for data in self.queue_datas
            if not need_master or data.broker_name in masters
            if (queues := data.open_queues(permission))
        ]


@dataclass(frozen=True, slots=True)
class ClusterInfo(ServerBody):
    """The answer to GET_BROKER_CLUSTER_INFO: brokers by name, and names by cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup(ServerBody):
    """A master and its slaves."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    minimum_broker_id: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerMemberGroupBody(Body):
    """The answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup


@dataclass(frozen=True, slots=True)
class KVTable(Body):
    """A table of texts, for example the settings in a namespace of a name server."""

    table: dict[str, str] = field(default_factory=dict)


# -- topics and groups ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicConfig(Body):
    """The settings of a topic on a broker.

    Args:
        topic_name: The name of the topic.
        read_queue_nums: The number of readable queues. Default: 16.
        write_queue_nums: The number of writable queues. Default: 16.
        perm: The bits of :class:`Permission`. Default: 6, read and write.
        topic_filter_type: ``SINGLE_TAG`` (the default) or ``MULTI_TAG``.
        topic_sys_flag: RocketMQ's flags. Default: 0.
        order: RocketMQ's mark for ordered topics. Default: False.
        attributes: RocketMQ's attributes, such as ``message.type``. Default: none.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None

    @property
    def queues(self) -> range:
        """The queues of the topic. The readable and the writable ones both begin at 0."""
        return range(max(self.read_queue_nums, self.write_queue_nums))


@dataclass(frozen=True, slots=True)
class TopicConfigTable(Body):
    """``topics.json``, and the answer to GET_ALL_TOPIC_CONFIG."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class TopicConfigList(Body):
    """UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody(Body):
    """REGISTER_BROKER: the topics of a broker."""

    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig(Body):
    """The settings of a consumer group on a broker. Fields that may be None are new in 5.x.

    Args:
        group_name: The name of the group.
        consume_enable: Whether the group may consume. Default: True.
        consume_from_min_enable: Kept for Java brokers. Default: True.
        consume_broadcast_enable: Whether the group may broadcast. Default: True.
        retry_queue_nums: The number of queues of its retry topic. Default: 1.
        retry_max_times: Maximum retries of a failed message, unless its consumer says otherwise.
            Default: 16.
        broker_id: The broker to read from, if slaves serve reads. Default: 0, the master.
        which_broker_when_consume_slowly: The broker to read old messages from. Default: 1.
        notify_consumer_ids_changed_enable: Whether members are notified when others join or leave.
            Default: True.
        consume_message_orderly: Whether gRPC clients get the messages in order. Default: False.
        group_retry_policy: The delays of retries for gRPC clients. Default: RocketMQ's delays,
            from a second to two hours.
        group_sys_flag: Kept for Java brokers.
        consume_timeout_minute: Kept for Java brokers.
        subscription_data_set: Kept for Java brokers.
        attributes: RocketMQ's attributes.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = MASTER_ID
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_message_orderly: bool | None = None
    group_retry_policy: GroupRetryPolicy | None = None
    group_sys_flag: int | None = None
    consume_timeout_minute: int | None = None
    subscription_data_set: list[Any] | None = None
    attributes: dict[str, str] | None = None

    @property
    def max_attempts(self) -> int:
        """Maximum number of deliveries of a message: the first one and all retries."""
        return max(self.retry_max_times, 0) + 1

    @property
    def retry_policy(self) -> GroupRetryPolicy:
        """The retry policy, or the default one."""
        return self.group_retry_policy or GroupRetryPolicy()


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable(Body):
    """``subscriptionGroup.json``, and the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] | None = None
    """By group and topic: bit 2 forbids reading."""


@dataclass(frozen=True, slots=True)
class SubscriptionGroupList(Body):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerOffsets(ServerBody):
    """``consumerOffset.json``, and the answer to GET_ALL_CONSUMER_OFFSET.

    ``offset_table`` is by ``topic@group`` and queue id.
    """

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class LmqConsumerOffsets(ServerBody):
    """``lmqConsumerOffset.json``: groups whose names start with ``%LMQ%`` have one offset each."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    lmq_offset_table: dict[str, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class DelayOffsets(ServerBody):
    """``delayOffset.json``, and the answer to GET_ALL_DELAY_OFFSET: by delay level."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Names of topics."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """Names of consumer groups."""

    group_list: list[str] = field(default_factory=list)
