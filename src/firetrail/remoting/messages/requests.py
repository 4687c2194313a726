"""One row per request: everything about a request code but its handler and its permission.

It determines the limits and the order of work of the server, the refusals of a slave, the names in
the audit log, the rejections in the log that lose a message, and the lists in
``docs/compatibility.md``. The permission of a request is its row in :mod:`firetrail.access.rules`.
The module cannot be imported if a code has no row, or a text field of a header no kind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import NamedTuple

from firetrail.remoting.messages.admin.admin_headers import (
    BrokerConsumeStatsHeader,
    CloneOffsetHeader,
    ConsumeDirectlyHeader,
    ConsumeQueueHeader,
    ConsumerStatusHeader,
    ConsumeStatsHeader,
    CorrectionHeader,
    DeleteGroupHeader,
    ExchangeHAInfoHeader,
    ForbiddenHeader,
    GroupNameHeader,
    MessageIdHeader,
    ProducerGroupHeader,
    RunningInfoHeader,
    StatsHeader,
    TopicGroupHeader,
)
from firetrail.remoting.messages.admin.user_headers import (
    AccountHeader,
    AclFilterHeader,
    AclHeader,
    UserFilterHeader,
    UserHeader,
    WhiteAddressesHeader,
)
from firetrail.remoting.messages.headers import (
    CheckTransactionHeader,
    ConsumerOffsetHeader,
    CreateTopicHeader,
    EndTransactionHeader,
    GroupHeader,
    PullHeader,
    PushReplyHeader,
    QueryMessageHeader,
    QueueHeader,
    RecallHeader,
    RegisterBrokerHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    SendBackHeader,
    SendHeader,
    SendHeaderV2,
    TopicHeader,
    UnregisterClientHeader,
    ViewMessageHeader,
)
from firetrail.remoting.messages.pop.pop_headers import (
    AckHeader,
    ChangeInvisibleTimeHeader,
    NotificationHeader,
    PeekHeader,
    PollingInfoHeader,
    PopHeader,
)
from firetrail.remoting.messages.replica_headers import (
    EpochHeader,
    HandOverHeader,
    LogRecordsHeader,
    PromoteHeader,
    RecoverGroupHeader,
    StepDownHeader,
)
from firetrail.remoting.messages.route_headers import (
    BrokerGroupHeader,
    BrokerHeartbeatHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteRouteHeader,
    KVHeader,
    NamespaceHeader,
)
from firetrail.remoting.messages.typed_body import DIALECT_MAX
from firetrail.remoting.messages.typed_header import Header, NoHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.codes import RequestCode as Code
from firetrail.remoting.wire.frames import FRAME_MAX

BODY_MAX = 1 << 20
"""Maximum size of the body of an ordinary request. A heartbeat with a thousand subscriptions has a
fifth of it."""
LISTS_MAX = 4 << 20
"""Maximum size of a list of topics or groups."""
TABLES_MAX = 4
"""Maximum number of requests for the same large table in progress; threads encode them."""


class RequestTarget(Enum):
    """The program that answers a request."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    CLIENT = "sent to clients"
    NOBODY = "not supported"


class SlaveRefusal(NamedTuple):
    """The answer of a slave to a request that only a master answers."""

    code: ResponseCode
    remark: str


ANSWERED = None
"""A slave answers the request as a master does."""
BUSY = SlaveRefusal(
    ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy: this broker is a slave; ask its master"
)
"""For messages. The prefix of the remark is RocketMQ's."""
NO_TRANSACTIONS = SlaveRefusal(
    ResponseCode.SLAVE_NOT_AVAILABLE,
    "Message store is slave mode, so end transaction is forbidden.",
)
NO_CHECKS = SlaveRefusal(ResponseCode.SYSTEM_ERROR, NO_TRANSACTIONS.remark)
NO_RECALL = SlaveRefusal(
    ResponseCode.SLAVE_NOT_AVAILABLE,
    "recall failed, broker service not available: this broker is a slave",
)
NO_CHANGES = SlaveRefusal(
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master "
    "broker.",
)
NO_RESET = SlaveRefusal(
    ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker; reset it on the master"
)


class RequestTrait(Flag):
    """A trait that distinguishes a request from others."""

    URGENT = auto()
    """It is handled before all others, because a delay would make clients look dead."""
    COSTLY = auto()
    """Its cost grows with the number of topics, groups or messages. The time that such requests
    take is limited for each address."""
    STORES = auto()
    """It has a message, which is not stored if it is rejected."""
    AWAITS = auto()
    """It may wait for messages, for the time in its header. Such a request of the gRPC port has a
    connection of its own, whose end withdraws it."""
    TABLE = auto()
    """It asks for a table of all topics, groups, queues or producers: few may be in progress."""
    LIST = auto()
    """Its body is a list of topics or groups."""
    DIALECT = auto()
    """Its body is JSON as RocketMQ writes it, with numbers as keys."""
    FRAME = auto()
    """Its body may be as large as a frame."""
    CHANGES = auto()
    """Although slaves answer it, it may change the log or the tables of a master."""
    LEASE = auto()
    """Although slaves answer it, a master that may have a successor refuses it."""


_BODIES_MAX = {
    RequestTrait.LIST: LISTS_MAX,
    RequestTrait.DIALECT: DIALECT_MAX,
    RequestTrait.FRAME: FRAME_MAX,
}
_ORDINARY = RequestTrait(0)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """The row of a request.

    Attributes:
        code: The name and the number.
        target: The program that answers it.
        header: The fields of the request.
        on_slave: The refusal of a slave, or ANSWERED. Requests that change messages or tables have
            to be sent to the master, from which a slave copies them. There is no default.
        traits: The traits that distinguish it.
    """

    code: RequestCode
    target: RequestTarget
    header: type[Header]
    on_slave: SlaveRefusal | None
    traits: RequestTrait

    @property
    def body_max(self) -> int:
        """Maximum size of the body; a larger one is answered with INVALID_PARAMETER."""
        return next((most for trait, most in _BODIES_MAX.items() if trait in self.traits), BODY_MAX)


def _broker(
    code: RequestCode,
    header: type[Header],
    on_slave: SlaveRefusal | None,
    traits: RequestTrait = _ORDINARY,
) -> RequestSpec:
    return RequestSpec(code, RequestTarget.BROKER, header, on_slave, traits)


def _name_server(
    code: RequestCode, header: type[Header], traits: RequestTrait = _ORDINARY
) -> RequestSpec:
    return RequestSpec(code, RequestTarget.NAME_SERVER, header, ANSWERED, traits)


def _client(code: RequestCode, header: type[Header]) -> RequestSpec:
    return RequestSpec(code, RequestTarget.CLIENT, header, ANSWERED, _ORDINARY)


def _nobody(code: RequestCode) -> RequestSpec:
    return RequestSpec(code, RequestTarget.NOBODY, NoHeader, ANSWERED, _ORDINARY)


_URGENT, _COSTLY, _STORES, _AWAITS, _TABLE, _LIST, _DIALECT, _FRAME, _CHANGES, _LEASE = RequestTrait

_ROWS = (
    # messages
    _broker(Code.SEND_MESSAGE, SendHeader, BUSY, _FRAME | _STORES),
    _broker(Code.SEND_MESSAGE_V2, SendHeaderV2, BUSY, _FRAME | _STORES),
    _broker(Code.SEND_BATCH_MESSAGE, SendHeaderV2, BUSY, _FRAME | _STORES),
    _broker(Code.SEND_REPLY_MESSAGE, SendHeader, BUSY, _FRAME | _STORES),
    _broker(Code.SEND_REPLY_MESSAGE_V2, SendHeaderV2, BUSY, _FRAME | _STORES),
    _broker(Code.RECALL_MESSAGE, RecallHeader, NO_RECALL),
    _broker(Code.END_TRANSACTION, EndTransactionHeader, NO_TRANSACTIONS, _STORES),
    _broker(Code.CONSUMER_SEND_MSG_BACK, SendBackHeader, BUSY, _STORES),
    _broker(Code.PULL_MESSAGE, PullHeader, ANSWERED, _AWAITS | _CHANGES),  # may commit an offset
    _broker(Code.LITE_PULL_MESSAGE, PullHeader, ANSWERED, _AWAITS | _CHANGES),
    _broker(Code.POP_MESSAGE, PopHeader, BUSY, _AWAITS),
    _broker(Code.ACK_MESSAGE, AckHeader, BUSY),
    _broker(Code.BATCH_ACK_MESSAGE, NoHeader, BUSY),
    _broker(Code.PEEK_MESSAGE, PeekHeader, ANSWERED, _LEASE),
    _broker(Code.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeHeader, BUSY),
    _broker(Code.NOTIFICATION, NotificationHeader, ANSWERED, _AWAITS | _LEASE),
    _broker(Code.POLLING_INFO, PollingInfoHeader, ANSWERED),
    _broker(Code.QUERY_MESSAGE, QueryMessageHeader, ANSWERED, _COSTLY),
    _broker(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader, ANSWERED),
    _broker(Code.QUERY_CONSUMER_OFFSET, ConsumerOffsetHeader, ANSWERED, _LEASE),
    _broker(Code.UPDATE_CONSUMER_OFFSET, ConsumerOffsetHeader, ANSWERED, _CHANGES | _LEASE),
    _broker(Code.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader, ANSWERED, _LEASE),
    _broker(Code.GET_MAX_OFFSET, QueueHeader, ANSWERED, _LEASE),
    _broker(Code.GET_MIN_OFFSET, QueueHeader, ANSWERED),
    _broker(Code.GET_EARLIEST_MSG_STORETIME, QueueHeader, ANSWERED),
    # clients
    _broker(Code.HEART_BEAT, NoHeader, ANSWERED, _URGENT),
    _broker(Code.UNREGISTER_CLIENT, UnregisterClientHeader, ANSWERED, _URGENT),
    _broker(Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader, ANSWERED, _URGENT),
    _broker(Code.LOCK_BATCH_MQ, NoHeader, ANSWERED, _URGENT | _LEASE),
    _broker(Code.UNLOCK_BATCH_MQ, NoHeader, ANSWERED, _URGENT),
    _broker(Code.CHECK_CLIENT_CONFIG, NoHeader, ANSWERED),
    _broker(Code.QUERY_ASSIGNMENT, NoHeader, ANSWERED),
    # topics and groups
    _broker(Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader, NO_CHANGES),
    _broker(Code.UPDATE_AND_CREATE_TOPIC_LIST, NoHeader, NO_CHANGES, _LIST),
    _broker(Code.DELETE_TOPIC_IN_BROKER, TopicHeader, NO_CHANGES),
    _broker(Code.GET_TOPIC_CONFIG, TopicHeader, ANSWERED),
    _broker(Code.GET_TOPIC_STATS_INFO, TopicHeader, ANSWERED, _COSTLY),
    _broker(Code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader, ANSWERED, _COSTLY),
    _broker(Code.GET_ALL_TOPIC_CONFIG, NoHeader, ANSWERED, _TABLE | _COSTLY),
    _broker(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoHeader, NO_CHANGES),
    _broker(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, NoHeader, NO_CHANGES, _LIST),
    _broker(Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader, NO_CHANGES),
    _broker(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GroupNameHeader, ANSWERED),
    _broker(Code.QUERY_TOPICS_BY_CONSUMER, GroupNameHeader, ANSWERED, _COSTLY),
    _broker(Code.GET_CONSUMER_CONNECTION_LIST, GroupHeader, ANSWERED),
    _broker(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NoHeader, ANSWERED, _TABLE | _COSTLY),
    _broker(Code.GET_CONSUMER_RUNNING_INFO, RunningInfoHeader, ANSWERED),
    _broker(Code.GET_CONSUME_STATS, ConsumeStatsHeader, ANSWERED, _COSTLY),
    _broker(Code.QUERY_CONSUME_TIME_SPAN, TopicGroupHeader, ANSWERED, _COSTLY),
    _broker(Code.QUERY_CORRECTION_OFFSET, CorrectionHeader, ANSWERED, _COSTLY),
    _broker(Code.QUERY_CONSUME_QUEUE, ConsumeQueueHeader, ANSWERED, _COSTLY),
    _broker(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, TopicGroupHeader, ANSWERED),
    _broker(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader, ANSWERED),
    _broker(Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader, NO_RESET),
    _broker(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, ForbiddenHeader, NO_CHANGES),
    _broker(Code.CLONE_GROUP_OFFSET, CloneOffsetHeader, NO_RESET),
    _broker(Code.SET_MESSAGE_REQUEST_MODE, NoHeader, NO_CHANGES),
    _broker(Code.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader, ANSWERED),
    _broker(Code.RESUME_CHECK_HALF_MESSAGE, MessageIdHeader, NO_CHECKS),
    # the broker
    _broker(Code.UPDATE_BROKER_CONFIG, NoHeader, ANSWERED, _CHANGES),  # may change topics
    _broker(Code.CLEAN_EXPIRED_CONSUMEQUEUE, NoHeader, ANSWERED),
    _broker(Code.CLEAN_UNUSED_TOPIC, NoHeader, NO_CHANGES),
    _broker(Code.DELETE_EXPIRED_COMMITLOG, NoHeader, ANSWERED),
    _broker(Code.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoHeader, ANSWERED),
    _broker(Code.PROMOTE_REPLICA, PromoteHeader, ANSWERED),
    _broker(Code.HAND_OVER, HandOverHeader, ANSWERED),
    _broker(Code.STEP_DOWN, StepDownHeader, ANSWERED),
    _broker(Code.GET_LOG_RECORDS, LogRecordsHeader, ANSWERED),
    _broker(Code.RECOVER_GROUP, RecoverGroupHeader, ANSWERED),
    _broker(Code.GET_BROKER_CONFIG, NoHeader, ANSWERED),
    _broker(Code.GET_BROKER_RUNTIME_INFO, NoHeader, ANSWERED),
    _broker(Code.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader, ANSWERED),
    _broker(Code.VIEW_BROKER_STATS_DATA, StatsHeader, ANSWERED),
    _broker(Code.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader, ANSWERED, _TABLE),
    _broker(Code.GET_ALL_PRODUCER_INFO, NoHeader, ANSWERED, _TABLE | _COSTLY),
    _broker(Code.GET_ALL_CONSUMER_OFFSET, NoHeader, ANSWERED, _TABLE | _COSTLY),
    _broker(Code.GET_ALL_DELAY_OFFSET, NoHeader, ANSWERED),
    _broker(Code.GET_ALL_MESSAGE_REQUEST_MODE, NoHeader, ANSWERED),
    _broker(Code.GET_TIMER_CHECK_POINT, NoHeader, ANSWERED),
    _broker(Code.GET_TIMER_METRICS, NoHeader, ANSWERED),
    _broker(Code.GET_BROKER_HA_STATUS, NoHeader, ANSWERED),
    _broker(Code.GET_BROKER_EPOCH_CACHE, EpochHeader, ANSWERED),
    _broker(Code.GET_COLD_DATA_FLOW_CTR_INFO, NoHeader, ANSWERED),
    _broker(Code.GET_REPLICA_STATUS, NoHeader, ANSWERED),
    _broker(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoHeader, ANSWERED),
    # the name server
    _name_server(Code.GET_ROUTEINFO_BY_TOPIC, TopicHeader, _URGENT),
    _name_server(Code.GET_BROKER_CLUSTER_INFO, NoHeader, _COSTLY),
    _name_server(Code.GET_BROKER_MEMBER_GROUP, BrokerGroupHeader),
    _name_server(Code.REGISTER_BROKER, RegisterBrokerHeader, _FRAME | _URGENT),
    _name_server(Code.UNREGISTER_BROKER, RegisterBrokerHeader),
    _name_server(Code.BROKER_HEARTBEAT, BrokerHeartbeatHeader),
    _name_server(Code.REGISTER_TOPIC_IN_NAMESRV, TopicHeader, _DIALECT),
    _name_server(Code.QUERY_DATA_VERSION, RegisterBrokerHeader),
    _name_server(Code.PUT_KV_CONFIG, KVHeader),
    _name_server(Code.DELETE_KV_CONFIG, KVHeader),
    _name_server(Code.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader),
    _name_server(Code.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader),
    _name_server(Code.DELETE_TOPIC_IN_NAMESRV, DeleteRouteHeader),
    _name_server(Code.UPDATE_NAMESRV_CONFIG, NoHeader),
    _name_server(Code.GET_KV_CONFIG, KVHeader),
    _name_server(Code.GET_KVLIST_BY_NAMESPACE, NamespaceHeader),
    _name_server(Code.GET_NAMESRV_CONFIG, NoHeader),
    _name_server(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoHeader, _TABLE | _COSTLY),
    _name_server(Code.GET_TOPICS_BY_CLUSTER, ClusterHeader, _TABLE | _COSTLY),
    _name_server(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoHeader),
    _name_server(Code.GET_UNIT_TOPIC_LIST, NoHeader),
    _name_server(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, NoHeader),
    _name_server(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoHeader),
    # users and policies
    _broker(Code.UPDATE_AND_CREATE_ACL_CONFIG, AccountHeader, ANSWERED),
    _broker(Code.DELETE_ACL_CONFIG, AccountHeader, ANSWERED),
    _broker(Code.GET_BROKER_CLUSTER_ACL_INFO, NoHeader, ANSWERED),
    _broker(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, WhiteAddressesHeader, ANSWERED),
    _broker(Code.GET_BROKER_CLUSTER_ACL_CONFIG, NoHeader, ANSWERED),
    _broker(Code.AUTH_CREATE_USER, UserHeader, ANSWERED),
    _broker(Code.AUTH_UPDATE_USER, UserHeader, ANSWERED),
    _broker(Code.AUTH_DELETE_USER, UserHeader, ANSWERED),
    _broker(Code.AUTH_GET_USER, UserHeader, ANSWERED),
    _broker(Code.AUTH_LIST_USER, UserFilterHeader, ANSWERED),
    _broker(Code.AUTH_CREATE_ACL, AclHeader, ANSWERED),
    _broker(Code.AUTH_UPDATE_ACL, AclHeader, ANSWERED),
    _broker(Code.AUTH_DELETE_ACL, AclHeader, ANSWERED),
    _broker(Code.AUTH_GET_ACL, AclHeader, ANSWERED),
    _broker(Code.AUTH_LIST_ACL, AclFilterHeader, ANSWERED),
    # sent to clients
    _client(Code.CHECK_TRANSACTION_STATE, CheckTransactionHeader),
    _client(Code.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader),
    _client(Code.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetHeader),
    _client(Code.GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatusHeader),
    _client(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, PushReplyHeader),
    # not supported
    _nobody(Code.QUERY_BROKER_OFFSET),
    _nobody(Code.GET_TOPIC_CONFIG_LIST),
    _nobody(Code.GET_TOPIC_NAME_LIST),
    _nobody(Code.TRIGGER_DELETE_FILES),
)


def _by_code(rows: Iterable[RequestSpec]) -> dict[int, RequestSpec]:
    found: dict[int, RequestSpec] = {}
    for row in rows:
        if row.code in found:
            raise ValueError(f"{row.code.name} has two rows")
        row.header.shown_names()  # fails if it is not known which of its fields are names
        found[row.code] = row
    missing = [code.name for code in RequestCode if code not in found]
    if missing:
        raise ValueError(f"requests without a row: {', '.join(missing)}")
    return found


REQUESTS: Mapping[int, RequestSpec] = _by_code(_ROWS)
"""The rows by code."""


def _codes(trait: RequestTrait) -> frozenset[int]:
    return frozenset(int(row.code) for row in _ROWS if trait in row.traits)


# What the server looks up for every request.
URGENT = _codes(_URGENT)
COSTLY = _codes(_COSTLY)
STORING = _codes(_STORES)
AWAITING: Mapping[int, str] = {
    int(row.code): next(
        row.header.wire_name(name)
        for name in ("suspend_timeout_millis", "poll_time")
        if name in row.header.__dataclass_fields__
    )
    for row in _ROWS
    if _AWAITS in row.traits
}
"""The fields with the time in ms for which a request waits for messages."""
BODIES: Mapping[int, int] = {
    int(row.code): row.body_max for row in _ROWS if row.body_max != BODY_MAX
}
RUNNING: Mapping[int, int] = dict.fromkeys(_codes(_TABLE), TABLES_MAX)
REFUSED_BY_SLAVES: Mapping[int, SlaveRefusal] = {
    int(row.code): row.on_slave for row in _ROWS if row.on_slave is not None
}
CHANGING = REFUSED_BY_SLAVES.keys() | _codes(_CHANGES)
"""The requests that may change the log or the tables of a master. Others may need a topic or a
group that does not exist, which the tables create on demand."""
_SENDS = STORING & _codes(_FRAME)
LEASED = (REFUSED_BY_SLAVES.keys() | _codes(_LEASE)) - _SENDS
"""The requests that a master refuses if it may have a successor: they would change what the
successor has, hand out messages that it hands out too, or say what it knows better. Sends are left
to the store, which refuses every message."""
