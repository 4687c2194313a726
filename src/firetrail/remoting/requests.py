"""One row per request: everything about a request code but its handler and its permission.

The server reads its limits and its order of work here, a slave what it refuses, the log which
rejections cost a message, and ``docs/compatibility.md`` who answers. The permission of a request is
its row in :mod:`firetrail.access.rules`. The module cannot be imported if a code
has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from firetrail.remoting.body import DIALECT_MAX
from firetrail.remoting.codes import RequestCode, ResponseCode
from firetrail.remoting.codes import RequestCode as Code
from firetrail.remoting.frames import FRAME_MAX

BODY_MAX = 1 << 20
"""Bytes of the body of an ordinary request. A heartbeat with a thousand subscriptions has a fifth
of this."""
LISTS_MAX = 4 << 20
"""Bytes of a list of topics or groups."""
TABLES_MAX = 4
"""Requests for the same large table in progress; threads encode them."""


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
    ResponseCode.SYSTEM_BUSY,
    "[REJECTREQUEST]system busy: this broker is a slave; ask its master",
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


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """The row of a request.

    Attributes:
        code: The name and the number.
        target: Who answers it.
        on_slave: The refusal of a slave, or ANSWERED. What changes messages or tables has to be
            sent to the master; a slave gets it from there. There is no default.
        body_max: Bytes of the body; a request with more is answered with INVALID_PARAMETER.
        running_max: Handlers that may work at once, for tables of all topics, groups, queues or
            producers; more are answered with SYSTEM_BUSY. None means no limit of its own.
        is_urgent: Whether it is handled before all others, because a delay would make clients look
            dead.
        is_costly: Whether its cost grows with the number of topics, groups or messages. The time
            that such requests take is limited for each address.
        stores_message: Whether it has a message, which is not stored if it is rejected.
        awaits_messages: Whether it may wait for messages. Such a request of the gRPC port has a
            connection of its own, whose end withdraws it.
    """

    code: RequestCode
    target: RequestTarget
    on_slave: SlaveRefusal | None
    body_max: int = BODY_MAX
    running_max: int | None = None
    is_urgent: bool = False
    is_costly: bool = False
    stores_message: bool = False
    awaits_messages: bool = False


_BROKER, _NAME_SERVER = RequestTarget.BROKER, RequestTarget.NAME_SERVER
_CLIENT, _NOBODY = RequestTarget.CLIENT, RequestTarget.NOBODY

_ROWS = (
    # messages
    RequestSpec(Code.SEND_MESSAGE, _BROKER, BUSY, body_max=FRAME_MAX, stores_message=True),
    RequestSpec(Code.SEND_MESSAGE_V2, _BROKER, BUSY, body_max=FRAME_MAX, stores_message=True),
    RequestSpec(Code.SEND_BATCH_MESSAGE, _BROKER, BUSY, body_max=FRAME_MAX, stores_message=True),
    RequestSpec(Code.SEND_REPLY_MESSAGE, _BROKER, BUSY, body_max=FRAME_MAX, stores_message=True),
    RequestSpec(Code.SEND_REPLY_MESSAGE_V2, _BROKER, BUSY, body_max=FRAME_MAX, stores_message=True),
    RequestSpec(Code.RECALL_MESSAGE, _BROKER, NO_RECALL),
    RequestSpec(Code.END_TRANSACTION, _BROKER, NO_TRANSACTIONS, stores_message=True),
    RequestSpec(Code.CONSUMER_SEND_MSG_BACK, _BROKER, BUSY, stores_message=True),
    RequestSpec(Code.PULL_MESSAGE, _BROKER, ANSWERED, awaits_messages=True),
    RequestSpec(Code.LITE_PULL_MESSAGE, _BROKER, ANSWERED, awaits_messages=True),
    RequestSpec(Code.POP_MESSAGE, _BROKER, BUSY, awaits_messages=True),
    RequestSpec(Code.ACK_MESSAGE, _BROKER, BUSY),
    RequestSpec(Code.BATCH_ACK_MESSAGE, _BROKER, BUSY),
    RequestSpec(Code.PEEK_MESSAGE, _BROKER, ANSWERED),
    RequestSpec(Code.CHANGE_MESSAGE_INVISIBLETIME, _BROKER, BUSY),
    RequestSpec(Code.NOTIFICATION, _BROKER, ANSWERED),
    RequestSpec(Code.POLLING_INFO, _BROKER, ANSWERED),
    RequestSpec(Code.QUERY_MESSAGE, _BROKER, ANSWERED, is_costly=True),
    RequestSpec(Code.VIEW_MESSAGE_BY_ID, _BROKER, ANSWERED),
    RequestSpec(Code.QUERY_CONSUMER_OFFSET, _BROKER, ANSWERED),
    RequestSpec(Code.UPDATE_CONSUMER_OFFSET, _BROKER, ANSWERED),
    RequestSpec(Code.SEARCH_OFFSET_BY_TIMESTAMP, _BROKER, ANSWERED),
    RequestSpec(Code.GET_MAX_OFFSET, _BROKER, ANSWERED),
    RequestSpec(Code.GET_MIN_OFFSET, _BROKER, ANSWERED),
    RequestSpec(Code.GET_EARLIEST_MSG_STORETIME, _BROKER, ANSWERED),
    # clients
    RequestSpec(Code.HEART_BEAT, _BROKER, ANSWERED, is_urgent=True),
    RequestSpec(Code.UNREGISTER_CLIENT, _BROKER, ANSWERED, is_urgent=True),
    RequestSpec(Code.GET_CONSUMER_LIST_BY_GROUP, _BROKER, ANSWERED, is_urgent=True),
    RequestSpec(Code.LOCK_BATCH_MQ, _BROKER, ANSWERED, is_urgent=True),
    RequestSpec(Code.UNLOCK_BATCH_MQ, _BROKER, ANSWERED, is_urgent=True),
    RequestSpec(Code.CHECK_CLIENT_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.QUERY_ASSIGNMENT, _BROKER, ANSWERED),
    # topics and groups
    RequestSpec(Code.UPDATE_AND_CREATE_TOPIC, _BROKER, NO_CHANGES),
    RequestSpec(Code.UPDATE_AND_CREATE_TOPIC_LIST, _BROKER, NO_CHANGES, body_max=LISTS_MAX),
    RequestSpec(Code.DELETE_TOPIC_IN_BROKER, _BROKER, NO_CHANGES),
    RequestSpec(Code.GET_TOPIC_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.GET_TOPIC_STATS_INFO, _BROKER, ANSWERED, is_costly=True),
    RequestSpec(Code.QUERY_TOPIC_CONSUME_BY_WHO, _BROKER, ANSWERED, is_costly=True),
    RequestSpec(
        Code.GET_ALL_TOPIC_CONFIG, _BROKER, ANSWERED, running_max=TABLES_MAX, is_costly=True
    ),
    RequestSpec(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _BROKER, NO_CHANGES),
    RequestSpec(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, _BROKER, NO_CHANGES, body_max=LISTS_MAX
    ),
    RequestSpec(Code.DELETE_SUBSCRIPTIONGROUP, _BROKER, NO_CHANGES),
    RequestSpec(Code.GET_SUBSCRIPTIONGROUP_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.QUERY_TOPICS_BY_CONSUMER, _BROKER, ANSWERED, is_costly=True),
    RequestSpec(Code.GET_CONSUMER_CONNECTION_LIST, _BROKER, ANSWERED),
    RequestSpec(
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        _BROKER,
        ANSWERED,
        running_max=TABLES_MAX,
        is_costly=True,
    ),
    RequestSpec(Code.GET_CONSUMER_RUNNING_INFO, _BROKER, ANSWERED),
    RequestSpec(Code.GET_CONSUME_STATS, _BROKER, ANSWERED, is_costly=True),
    RequestSpec(Code.QUERY_CONSUME_TIME_SPAN, _BROKER, ANSWERED, is_costly=True),
    RequestSpec(Code.QUERY_CORRECTION_OFFSET, _BROKER, ANSWERED, is_costly=True),
    RequestSpec(Code.QUERY_CONSUME_QUEUE, _BROKER, ANSWERED, is_costly=True),
    RequestSpec(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, _BROKER, ANSWERED),
    RequestSpec(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, _BROKER, ANSWERED),
    RequestSpec(Code.INVOKE_BROKER_TO_RESET_OFFSET, _BROKER, NO_RESET),
    RequestSpec(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, _BROKER, NO_CHANGES),
    RequestSpec(Code.CLONE_GROUP_OFFSET, _BROKER, NO_RESET),
    RequestSpec(Code.SET_MESSAGE_REQUEST_MODE, _BROKER, NO_CHANGES),
    RequestSpec(Code.CONSUME_MESSAGE_DIRECTLY, _BROKER, ANSWERED),
    RequestSpec(Code.RESUME_CHECK_HALF_MESSAGE, _BROKER, NO_CHECKS),
    # the broker
    RequestSpec(Code.UPDATE_BROKER_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.CLEAN_EXPIRED_CONSUMEQUEUE, _BROKER, ANSWERED),
    RequestSpec(Code.CLEAN_UNUSED_TOPIC, _BROKER, NO_CHANGES),
    RequestSpec(Code.DELETE_EXPIRED_COMMITLOG, _BROKER, ANSWERED),
    RequestSpec(Code.EXCHANGE_BROKER_HA_INFO, _BROKER, ANSWERED),
    RequestSpec(Code.PROMOTE_REPLICA, _BROKER, ANSWERED),
    RequestSpec(Code.HAND_OVER, _BROKER, ANSWERED),
    RequestSpec(Code.STEP_DOWN, _BROKER, ANSWERED),
    RequestSpec(Code.GET_LOG_RECORDS, _BROKER, ANSWERED),
    RequestSpec(Code.RECOVER_GROUP, _BROKER, ANSWERED),
    RequestSpec(Code.GET_BROKER_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.GET_BROKER_RUNTIME_INFO, _BROKER, ANSWERED),
    RequestSpec(Code.GET_PRODUCER_CONNECTION_LIST, _BROKER, ANSWERED),
    RequestSpec(Code.VIEW_BROKER_STATS_DATA, _BROKER, ANSWERED),
    RequestSpec(Code.GET_BROKER_CONSUME_STATS, _BROKER, ANSWERED, running_max=TABLES_MAX),
    RequestSpec(
        Code.GET_ALL_PRODUCER_INFO, _BROKER, ANSWERED, running_max=TABLES_MAX, is_costly=True
    ),
    RequestSpec(
        Code.GET_ALL_CONSUMER_OFFSET, _BROKER, ANSWERED, running_max=TABLES_MAX, is_costly=True
    ),
    RequestSpec(Code.GET_ALL_DELAY_OFFSET, _BROKER, ANSWERED),
    RequestSpec(Code.GET_ALL_MESSAGE_REQUEST_MODE, _BROKER, ANSWERED),
    RequestSpec(Code.GET_TIMER_CHECK_POINT, _BROKER, ANSWERED),
    RequestSpec(Code.GET_TIMER_METRICS, _BROKER, ANSWERED),
    RequestSpec(Code.GET_BROKER_HA_STATUS, _BROKER, ANSWERED),
    RequestSpec(Code.GET_BROKER_EPOCH_CACHE, _BROKER, ANSWERED),
    RequestSpec(Code.GET_COLD_DATA_FLOW_CTR_INFO, _BROKER, ANSWERED),
    RequestSpec(Code.GET_REPLICA_STATUS, _BROKER, ANSWERED),
    RequestSpec(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, _BROKER, ANSWERED),
    # the name server
    RequestSpec(Code.GET_ROUTEINFO_BY_TOPIC, _NAME_SERVER, ANSWERED, is_urgent=True),
    RequestSpec(Code.GET_BROKER_CLUSTER_INFO, _NAME_SERVER, ANSWERED, is_costly=True),
    RequestSpec(Code.GET_BROKER_MEMBER_GROUP, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.REGISTER_BROKER, _NAME_SERVER, ANSWERED, body_max=FRAME_MAX, is_urgent=True),
    RequestSpec(Code.UNREGISTER_BROKER, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.BROKER_HEARTBEAT, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.REGISTER_TOPIC_IN_NAMESRV, _NAME_SERVER, ANSWERED, body_max=DIALECT_MAX),
    RequestSpec(Code.QUERY_DATA_VERSION, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.PUT_KV_CONFIG, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.DELETE_KV_CONFIG, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.WIPE_WRITE_PERM_OF_BROKER, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.ADD_WRITE_PERM_OF_BROKER, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.DELETE_TOPIC_IN_NAMESRV, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.UPDATE_NAMESRV_CONFIG, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.GET_KV_CONFIG, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.GET_KVLIST_BY_NAMESPACE, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.GET_NAMESRV_CONFIG, _NAME_SERVER, ANSWERED),
    RequestSpec(
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        _NAME_SERVER,
        ANSWERED,
        running_max=TABLES_MAX,
        is_costly=True,
    ),
    RequestSpec(
        Code.GET_TOPICS_BY_CLUSTER, _NAME_SERVER, ANSWERED, running_max=TABLES_MAX, is_costly=True
    ),
    RequestSpec(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.GET_UNIT_TOPIC_LIST, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, _NAME_SERVER, ANSWERED),
    RequestSpec(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, _NAME_SERVER, ANSWERED),
    # users and policies
    RequestSpec(Code.UPDATE_AND_CREATE_ACL_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.DELETE_ACL_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.GET_BROKER_CLUSTER_ACL_INFO, _BROKER, ANSWERED),
    RequestSpec(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.GET_BROKER_CLUSTER_ACL_CONFIG, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_CREATE_USER, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_UPDATE_USER, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_DELETE_USER, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_GET_USER, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_LIST_USER, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_CREATE_ACL, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_UPDATE_ACL, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_DELETE_ACL, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_GET_ACL, _BROKER, ANSWERED),
    RequestSpec(Code.AUTH_LIST_ACL, _BROKER, ANSWERED),
    # sent to clients
    RequestSpec(Code.CHECK_TRANSACTION_STATE, _CLIENT, ANSWERED),
    RequestSpec(Code.NOTIFY_CONSUMER_IDS_CHANGED, _CLIENT, ANSWERED),
    RequestSpec(Code.RESET_CONSUMER_CLIENT_OFFSET, _CLIENT, ANSWERED),
    RequestSpec(Code.GET_CONSUMER_STATUS_FROM_CLIENT, _CLIENT, ANSWERED),
    RequestSpec(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, _CLIENT, ANSWERED),
    # not supported
    RequestSpec(Code.QUERY_BROKER_OFFSET, _NOBODY, ANSWERED),
    RequestSpec(Code.GET_TOPIC_CONFIG_LIST, _NOBODY, ANSWERED),
    RequestSpec(Code.GET_TOPIC_NAME_LIST, _NOBODY, ANSWERED),
    RequestSpec(Code.TRIGGER_DELETE_FILES, _NOBODY, ANSWERED),
)


def _by_code(rows: Iterable[RequestSpec]) -> dict[int, RequestSpec]:
    found: dict[int, RequestSpec] = {}
    for row in rows:
        if row.code in found:
            raise ValueError(f"{row.code.name} has two rows")
        found[row.code] = row
    missing = [code.name for code in RequestCode if code not in found]
    if missing:
        raise ValueError(f"requests without a row: {', '.join(missing)}")
    return found


REQUESTS: Mapping[int, RequestSpec] = _by_code(_ROWS)
"""The rows by code."""


def _codes(holds: Callable[[RequestSpec], bool]) -> frozenset[int]:
    return frozenset(int(row.code) for row in _ROWS if holds(row))


# What the server looks up for every request.
URGENT = _codes(lambda row: row.is_urgent)
COSTLY = _codes(lambda row: row.is_costly)
STORING = _codes(lambda row: row.stores_message)
AWAITING = _codes(lambda row: row.awaits_messages)
BODIES: Mapping[int, int] = {
    int(row.code): row.body_max for row in _ROWS if row.body_max != BODY_MAX
}
RUNNING: Mapping[int, int] = {
    int(row.code): row.running_max for row in _ROWS if row.running_max is not None
}
REFUSED_BY_SLAVES: Mapping[int, SlaveRefusal] = {
    int(row.code): row.on_slave for row in _ROWS if row.on_slave is not None
}
