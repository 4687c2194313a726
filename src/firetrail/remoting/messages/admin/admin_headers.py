"""Headers of administration, except those that other clients use as well."""

from dataclasses import dataclass

from firetrail.remoting.messages.typed_header import (
    GroupName,
    Header,
    Long,
    OtherText,
    ShownName,
    TopicName,
)


@dataclass(frozen=True, slots=True)
class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS, for one topic or for all topics."""

    consumer_group: GroupName
    topic: TopicName | None = None


@dataclass(frozen=True, slots=True)
class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: OtherText


@dataclass(frozen=True, slots=True)
class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: GroupName
    clean_offset: bool = False


@dataclass(frozen=True, slots=True)
class GroupNameHeader(Header):
    """QUERY_TOPICS_BY_CONSUMER and GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: GroupName


@dataclass(frozen=True, slots=True)
class TopicGroupHeader(Header):
    """QUERY_CONSUME_TIME_SPAN and QUERY_SUBSCRIPTION_BY_CONSUMER."""

    topic: TopicName
    group: GroupName


@dataclass(frozen=True, slots=True)
class ForbiddenHeader(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: GroupName
    topic: TopicName
    readable: bool | None = None


@dataclass(frozen=True, slots=True)
class ConsumerStatusHeader(Header):
    """GET_CONSUMER_STATUS_FROM_CLIENT and INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    topic: TopicName
    group: GroupName
    client_addr: OtherText | None = None


@dataclass(frozen=True, slots=True)
class RunningInfoHeader(Header):
    """GET_CONSUMER_RUNNING_INFO."""

    consumer_group: GroupName
    client_id: OtherText
    jstack_enable: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: GroupName
    client_id: OtherText | None = None
    msg_id: OtherText | None = None
    broker_name: ShownName | None = None
    topic: TopicName | None = None


@dataclass(frozen=True, slots=True)
class CorrectionHeader(Header):
    """QUERY_CORRECTION_OFFSET."""

    topic: TopicName
    filter_groups: OtherText | None = None
    compare_group: OtherText | None = None


@dataclass(frozen=True, slots=True)
class CloneOffsetHeader(Header):
    """CLONE_GROUP_OFFSET."""

    src_group: ShownName
    dest_group: ShownName
    topic: TopicName | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class StatsHeader(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: OtherText
    stats_key: OtherText


@dataclass(frozen=True, slots=True)
class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS."""

    is_order: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE."""

    topic: TopicName
    queue_id: int
    index: Long
    count: int
    consumer_group: GroupName | None = None


@dataclass(frozen=True, slots=True)
class MessageIdHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE."""

    msg_id: OtherText
    topic: TopicName | None = None


@dataclass(frozen=True, slots=True)
class VersionResponse(Header):
    """The answer to GET_BROKER_CONFIG: the version of the settings, as JSON."""

    version: str


@dataclass(frozen=True, slots=True)
class ExchangeHAInfoHeader(Header):
    """EXCHANGE_BROKER_HA_INFO, and the answer to it: where the HA port of a master is."""

    master_ha_address: OtherText | None = None
    master_flush_offset: Long | None = None
    master_address: OtherText | None = None
