"""The bodies of administration: what ``mqadmin``, the dashboard and the like ask and are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from firetrail.remoting.bodies import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from firetrail.remoting.body import Body, named

# -- topics and groups ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicOffset(Body):
    """How far a queue reaches."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats(Body):
    """GET_TOPIC_STATS_INFO, answered."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None


@dataclass(frozen=True, slots=True)
class OffsetWrapper(Body):
    """How far a group is in a queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumeStats(Body):
    """GET_CONSUME_STATS, answered."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(Body):
    """GET_BROKER_CONSUME_STATS, answered: for each group, stats by topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int | None = None


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(Body):
    """The store times in a queue, and of what a group consumes there."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


@dataclass(frozen=True, slots=True)
class TimeSpans(Body):
    """QUERY_CONSUME_TIME_SPAN, answered."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupForbidden(Body):
    """UPDATE_AND_GET_GROUP_FORBIDDEN, answered."""

    group: str
    topic: str
    readable: bool


# -- connections ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientConnection(Body):
    """A client that is connected."""

    client_id: str
    client_addr: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class ConsumerConnection(Body):
    """GET_CONSUMER_CONNECTION_LIST, answered."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET


@dataclass(frozen=True, slots=True)
class ProducerConnection(Body):
    """GET_PRODUCER_CONNECTION_LIST, answered."""

    connection_set: list[ClientConnection] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProducerInfo(Body):
    """A producer that is connected."""

    client_id: str
    remote_ip: str = named("remoteIP")
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ProducerTable(Body):
    """GET_ALL_PRODUCER_INFO, answered: by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


# -- offsets ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResetOffsets(Body):
    """RESET_CONSUMER_CLIENT_OFFSET to a Java client, INVOKE_BROKER_TO_RESET_OFFSET answered."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueOffset(Body):
    """An offset of a queue, all in one object."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class ResetOffsetList(Body):
    """RESET_CONSUMER_CLIENT_OFFSET to the other clients, which know no objects as keys."""

    offset_table: list[QueueOffset] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerStatus(Body):
    """GET_CONSUMER_STATUS_FROM_CLIENT and INVOKE_BROKER_TO_GET_CONSUMER_STATUS, answered."""

    message_queue_table: dict[MessageQueue, int] | None = None
    consumer_table: dict[str, dict[MessageQueue, int]] | None = None
    """By client id."""


@dataclass(frozen=True, slots=True)
class CorrectionOffsets(Body):
    """QUERY_CORRECTION_OFFSET, answered."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


# -- messages and statistics ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumeQueueEntry(Body):
    """A unit of a consume queue."""

    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeQueueBody(Body):
    """QUERY_CONSUME_QUEUE, answered."""

    queue_data: list[ConsumeQueueEntry] = field(default_factory=list)
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


@dataclass(frozen=True, slots=True)
class DirectlyConsumed(Body):
    """CONSUME_MESSAGE_DIRECTLY, answered."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(Body):
    """GET_CONSUMER_RUNNING_INFO, answered."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, dict[str, Any]] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, dict[str, Any]] | None = None
    status_table: dict[str, dict[str, Any]] = field(default_factory=dict)
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


@dataclass(frozen=True, slots=True)
class StatsItem(Body):
    """What was counted in a span of time."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsData(Body):
    """VIEW_BROKER_STATS_DATA, answered."""

    stats_minute: StatsItem = field(default_factory=StatsItem)
    stats_hour: StatsItem = field(default_factory=StatsItem)
    stats_day: StatsItem = field(default_factory=StatsItem)
