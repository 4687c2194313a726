"""The bodies between clients, brokers and name servers, but for those of administration.

What a broker keeps in ``config/*.json`` has the same classes: ``config_json.dumps(x.to_json())``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from firetrail.remoting.body import Body, named

MASTER_ID = 0
"""The number of the broker of a name that takes messages; the others follow it."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue(Body):
    """A queue of a topic on the brokers of a name. Ordered as clients order them."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """How often and when something was changed: equal versions mean equal content."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None


# -- clients ----------------------------------------------------------------------------------


class ConsumeType(StrEnum):
    """Who has the initiative, as the consumer's user sees it. The order is on the wire."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each consumer of a group gets every message. The order is on the wire."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group begins that has no offsets. The order is on the wire."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_MIN_AT_BOOT = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


ALL_TAGS = "*"
BY_TAG = "TAG"
BY_SQL = "SQL92"


@dataclass(frozen=True, slots=True)
class SubscriptionData(Body):
    """Which messages of a topic a group wants."""

    topic: str
    sub_string: str = ALL_TAGS
    expression_type: str = BY_TAG
    sub_version: int = 0
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    """Hashes of the tags."""
    class_filter_mode: bool = False


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
    """HEART_BEAT: who is there, and what for."""

    client_id: str = named("clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckClientBody(Body):
    """CHECK_CLIENT_CONFIG: may this client subscribe so?"""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerIdList(Body):
    """GET_CONSUMER_LIST_BY_GROUP, answered."""

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
    """LOCK_BATCH_MQ, answered: the queues that the client has."""

    locked: list[MessageQueue] = field(default_factory=list, metadata={"wire": "lockOKMQSet"})


class RequestMode(StrEnum):
    """How a client gets messages of a queue."""

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
    """A queue that a client is to consume."""

    message_queue: MessageQueue
    mode: RequestMode = RequestMode.PULL
    attachments: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AssignmentBody(Body):
    """QUERY_ASSIGNMENT, answered; None if nothing is known, and the client keeps what it has."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


# -- routes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueData(Body):
    """How many queues of a topic the brokers of a name have."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerData(Body):
    """The brokers of a name: a master and those that follow it."""

    broker_name: str
    cluster: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None

    @property
    def master(self) -> str | None:
        """The address of the broker that takes messages."""
        return self.broker_addrs.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicRouteData(Body):
    """GET_ROUTEINFO_BY_TOPIC, answered."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body):
    """GET_BROKER_CLUSTER_INFO, answered: brokers by name, names by cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup(Body):
    """The brokers of one name."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    minimum_broker_id: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerMemberGroupBody(Body):
    """GET_BROKER_MEMBER_GROUP, answered."""

    broker_member_group: BrokerMemberGroup


@dataclass(frozen=True, slots=True)
class KVTable(Body):
    """Settings of a name server's namespace, or of anything that is told as text."""

    table: dict[str, str] = field(default_factory=dict)


# -- topics and groups ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicConfig(Body):
    """A topic of a broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TopicConfigTable(Body):
    """``topics.json``, and GET_ALL_TOPIC_CONFIG answered."""

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
    """A consumer group of a broker. The fields that may be None came with 5.x."""

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
    group_retry_policy: dict[str, Any] | None = None
    group_sys_flag: int | None = None
    consume_timeout_minute: int | None = None
    subscription_data_set: list[Any] | None = None
    attributes: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable(Body):
    """``subscriptionGroup.json``, and GET_ALL_SUBSCRIPTIONGROUP_CONFIG answered."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] | None = None
    """By group and topic: bit 2 forbids to read."""


@dataclass(frozen=True, slots=True)
class SubscriptionGroupList(Body):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerOffsets(Body):
    """``consumerOffset.json``, and GET_ALL_CONSUMER_OFFSET answered: by ``topic@group``, queue."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class LmqConsumerOffsets(Body):
    """``lmqConsumerOffset.json``: groups whose names begin with ``%LMQ%`` have one offset each."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    lmq_offset_table: dict[str, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class DelayOffsets(Body):
    """``delayOffset.json``, and GET_ALL_DELAY_OFFSET answered: by level."""

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
