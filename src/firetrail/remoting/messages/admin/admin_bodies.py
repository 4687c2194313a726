"""The bodies of administration: requests and answers of ``mqadmin``, dashboards and exporters."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from firetrail.remoting.messages.bodies import (
    ConsumeFromWhere,
    ConsumeType,
    DataVersion,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from firetrail.remoting.messages.typed_body import Body, ServerBody, named

# -- topics and groups ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicOffset(Body):
    """The range of offsets of a queue, and the store time of its last message."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats(ServerBody):
    """The answer to GET_TOPIC_STATS_INFO."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None


@dataclass(frozen=True, slots=True)
class OffsetWrapper(Body):
    """The progress of a group in a queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumeStats(ServerBody):
    """The answer to GET_CONSUME_STATS."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(Body):
    """The answer to GET_BROKER_CONSUME_STATS: for each group, stats by topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int | None = None


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(Body):
    """The range of store times in a queue, and the store time at which a group is."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


@dataclass(frozen=True, slots=True)
class TimeSpans(Body):
    """The answer to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupForbidden(Body):
    """The answer to UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool


# -- connections ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientConnection(Body):
    """A connected client."""

    client_id: str
    client_addr: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class ConsumerConnection(Body):
    """The answer to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET


@dataclass(frozen=True, slots=True)
class ProducerConnection(Body):
    """The answer to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[ClientConnection] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProducerInfo(Body):
    """A connected producer."""

    client_id: str
    remote_ip: str = named("remoteIP")
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ProducerTable(Body):
    """The answer to GET_ALL_PRODUCER_INFO: by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


# -- offsets ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResetOffsets(ServerBody):
    """RESET_CONSUMER_CLIENT_OFFSET to Java clients; the answer to INVOKE_BROKER_TO_RESET_OFFSET."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueOffset(Body):
    """A queue and its offset in one object."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class ResetOffsetList(Body):
    """RESET_CONSUMER_CLIENT_OFFSET to other clients, which do not support objects as keys."""

    offset_table: list[QueueOffset] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerStatus(Body):
    """The answer to GET_CONSUMER_STATUS_FROM_CLIENT and INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    dialect_max: ClassVar[int] = 256 << 10
    """Clients send it to the broker; a queue has a hundred bytes."""

    message_queue_table: dict[MessageQueue, int] | None = None
    consumer_table: dict[str, dict[MessageQueue, int]] | None = None
    """The offsets by client id."""


@dataclass(frozen=True, slots=True)
class CorrectionOffsets(ServerBody):
    """The answer to QUERY_CORRECTION_OFFSET."""

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
    """The answer to QUERY_CONSUME_QUEUE."""

    queue_data: list[ConsumeQueueEntry] = field(default_factory=list)
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


@dataclass(frozen=True, slots=True)
class DirectlyConsumed(Body):
    """The answer to CONSUME_MESSAGE_DIRECTLY."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(ServerBody):
    """The answer to GET_CONSUMER_RUNNING_INFO."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, dict[str, Any]] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, dict[str, Any]] | None = None
    status_table: dict[str, dict[str, Any]] = field(default_factory=dict)
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


@dataclass(frozen=True, slots=True)
class StatsItem(Body):
    """A statistic over a period of time."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsData(Body):
    """The answer to VIEW_BROKER_STATS_DATA."""

    stats_minute: StatsItem = field(default_factory=StatsItem)
    stats_hour: StatsItem = field(default_factory=StatsItem)
    stats_day: StatsItem = field(default_factory=StatsItem)


@dataclass(frozen=True, slots=True)
class HAConnectionRuntimeInfo(Body):
    """A replica that is connected to a master."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@dataclass(frozen=True, slots=True)
class HAClientRuntimeInfo(Body):
    """The connection of a slave to its master."""

    master_addr: str = ""
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False


@dataclass(frozen=True, slots=True)
class HARuntimeInfo(Body):
    """The answer to GET_BROKER_HA_STATUS."""

    master_commit_log_max_offset: int = 0
    master: bool = True
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)


@dataclass(frozen=True, slots=True)
class TimerMetrics(Body):
    """The answer to GET_TIMER_METRICS: waiting messages by topic."""

    timing_count: dict[str, Any] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class ColdDataInfo(Body):
    """The answer to GET_COLD_DATA_FLOW_CTR_INFO: limits for groups that read old messages."""

    runtime_table: dict[str, Any] = field(default_factory=dict)
    config_table: dict[str, Any] = field(default_factory=dict)
