"""The headers of requests and responses between clients, brokers and name servers."""

from dataclasses import dataclass
from typing import ClassVar

from firetrail.remoting.messages.typed_header import (
    GroupName,
    Header,
    Long,
    OtherText,
    ShownName,
    TopicName,
)

# -- send -------------------------------------------------------------------------------------

DEFAULT_QUEUES = 4
"""The number of queues of a topic that a send creates, as in the Java client."""


@dataclass(frozen=True, slots=True)
class SendHeader(Header):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE."""

    producer_group: OtherText
    topic: TopicName
    default_topic: OtherText
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    properties: OtherText | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    batch: bool | None = None
    broker_name: ShownName | None = None


@dataclass(frozen=True, slots=True)
class SendHeaderV2(SendHeader):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2, with abbreviated names."""

    SHORT: ClassVar[str] = "abcdefghijklmn"


@dataclass(frozen=True, slots=True)
class PushReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: a reply, for the producer that waits for it."""

    born_host: OtherText
    store_host: OtherText
    store_timestamp: Long
    producer_group: OtherText
    topic: TopicName
    default_topic: OtherText
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    properties: OtherText | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None


@dataclass(frozen=True, slots=True)
class SendResponse(Header):
    """The answer to a send: where the message is stored."""

    msg_id: str
    queue_id: int
    queue_offset: Long
    transaction_id: str | None = None
    recall_handle: str | None = None


@dataclass(frozen=True, slots=True)
class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK: a message that was not consumed and is to be redelivered later."""

    offset: Long
    group: GroupName
    delay_level: int
    origin_msg_id: OtherText | None = None
    origin_topic: OtherText | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


@dataclass(frozen=True, slots=True)
class RecallHeader(Header):
    """RECALL_MESSAGE: do not deliver a message that waits for its delivery time."""

    topic: TopicName
    recall_handle: OtherText
    producer_group: OtherText | None = None


@dataclass(frozen=True, slots=True)
class RecallResponse(Header):
    """The answer to a recall: the id that the producer gave the message."""

    msg_id: str


@dataclass(frozen=True, slots=True)
class EndTransactionHeader(Header):
    """END_TRANSACTION: commit or roll back a half message."""

    producer_group: OtherText
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: OtherText | None = None
    transaction_id: OtherText | None = None
    topic: TopicName | None = None


@dataclass(frozen=True, slots=True)
class CheckTransactionHeader(Header):
    """CHECK_TRANSACTION_STATE: asks a producer for the outcome of a transaction."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: OtherText | None = None
    transaction_id: OtherText | None = None
    offset_msg_id: OtherText | None = None


# -- consume ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PullHeader(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: int
    queue_offset: Long
    max_msg_nums: int
    sys_flag: int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: OtherText | None = None
    expression_type: OtherText | None = None
    max_msg_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PullResponse(Header):
    """The answer to a pull: the next offset, whether or not messages were found."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long


@dataclass(frozen=True, slots=True)
class ConsumerOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET and, with ``commit_offset``, UPDATE_CONSUMER_OFFSET."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: int
    commit_offset: Long | None = None
    set_zero_if_not_found: bool | None = None


@dataclass(frozen=True, slots=True)
class QueueHeader(Header):
    """A queue: GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: TopicName
    queue_id: int
    committed: bool | None = None


@dataclass(frozen=True, slots=True)
class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: TopicName
    queue_id: int
    timestamp: Long
    boundary_type: OtherText | None = None


@dataclass(frozen=True, slots=True)
class OffsetResponse(Header):
    """An offset of a queue."""

    offset: Long


@dataclass(frozen=True, slots=True)
class TimestampResponse(Header):
    """A store time in ms."""

    timestamp: Long


@dataclass(frozen=True, slots=True)
class GroupHeader(Header):
    """A consumer group: GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED and others."""

    consumer_group: GroupName


@dataclass(frozen=True, slots=True)
class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT."""

    client_i_d: OtherText  # clientID on the wire
    producer_group: OtherText | None = None
    consumer_group: GroupName | None = None


# -- query ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryMessageHeader(Header):
    """QUERY_MESSAGE: by key or unique key."""

    topic: TopicName
    key: ShownName
    max_num: int
    begin_timestamp: Long
    end_timestamp: Long


@dataclass(frozen=True, slots=True)
class QueryMessageResponse(Header):
    """The answer to QUERY_MESSAGE: the last entry of the index."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@dataclass(frozen=True, slots=True)
class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID: by physical offset, which the id contains."""

    offset: Long
    topic: TopicName | None = None


# -- topics, groups, routes -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicHeader(Header):
    """A topic: GET_ROUTEINFO_BY_TOPIC, DELETE_TOPIC_IN_BROKER, GET_TOPIC_STATS_INFO and others."""

    topic: TopicName
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True)
class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC."""

    topic: TopicName
    default_topic: OtherText
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: OtherText
    topic_sys_flag: int | None = None
    order: bool = False
    attributes: OtherText | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True)
class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET."""

    topic: TopicName
    group: GroupName
    timestamp: Long
    is_force: bool = False
    queue_id: int | None = None
    offset: Long | None = None


@dataclass(frozen=True, slots=True)
class RegisterBrokerHeader(Header):
    """REGISTER_BROKER and QUERY_DATA_VERSION."""

    broker_name: ShownName
    broker_addr: ShownName
    cluster_name: ShownName
    broker_id: Long
    ha_server_addr: OtherText | None = None
    compressed: bool = False
    body_crc32: int | None = None
    heartbeat_timeout_millis: Long | None = None


@dataclass(frozen=True, slots=True)
class RegisterBrokerResponse(Header):
    """The answer to REGISTER_BROKER: the address of the master, for a slave.

    ``state_version`` is Firetrail's: the highest one with which a master of the name registered.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None
    state_version: Long | None = None
