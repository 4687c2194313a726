"""The properties of messages: from those of the gRPC schema to the stored ones.

RocketMQ stores many fields of a message in the gRPC schema as properties beside those of the user.
The names of the stored ones are reserved: a client cannot send them as its own, and they are not
delivered as properties.
"""

from firetrail.format.properties import (
    ARRIVE_TIME,
    BUYER_ID,
    CHECK_IMMUNITY_TIME,
    CLUSTER,
    CONSUME_START_TIME,
    CORRECTION_FLAG,
    CORRELATION_ID,
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    FIRST_POP_TIME,
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    INSTANCE_ID,
    KEY_SEPARATOR,
    KEYS,
    LITE_TOPIC,
    MAX_OFFSET,
    MAX_RECONSUME_TIMES,
    MIN_OFFSET,
    MQ2_FLAG,
    MSG_REGION,
    MSG_TYPE,
    ORIGIN_GROUP,
    ORIGIN_MESSAGE_ID,
    PGROUP,
    POP_CK,
    PRIORITY,
    PROPERTY_CRC,
    PUSH_REPLY_TIME,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    REPLY_TO_CLIENT,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TRACE_ON,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    TRANSFER_FLAG,
    TTL,
    UNIQ_KEY,
    WAIT,
)
from firetrail.format.values.integers import INT64_MAX, INT64_MIN
from firetrail.proxy.schema.messages import Duration, Message, MessageType, Timestamp

TRACE_CONTEXT = "TRACE_CONTEXT"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"

RESERVED = frozenset(
    {
        *(TRACE_ON, MSG_REGION, KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, ORIGIN_GROUP, REAL_TOPIC),
        *(REAL_QID, TRAN_MSG, PGROUP, MIN_OFFSET, MAX_OFFSET, BUYER_ID, ORIGIN_MESSAGE_ID),
        *(TRANSFER_FLAG, CORRECTION_FLAG, MQ2_FLAG, RECONSUME_TIME, UNIQ_KEY),
        *(MAX_RECONSUME_TIMES, CONSUME_START_TIME, POP_CK, FIRST_POP_TIME),
        *(TRAN_PREPARED_QUEUE_OFFSET, INSTANCE_ID, CORRELATION_ID, REPLY_TO_CLIENT, TTL),
        *(ARRIVE_TIME, PUSH_REPLY_TIME, CLUSTER, MSG_TYPE, INNER_MULTI_QUEUE_OFFSET),
        *(TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS),
        *(TIMER_ROLL_TIMES, TIMER_OUT_MS, TIMER_DEL_UNIQKEY, BORN_HOST, BORN_TIMESTAMP),
        *(DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, PROPERTY_CRC, PRIORITY, LITE_TOPIC),
        *("POP_CK_OFFSET", "DUP_INFO", "EXTEND_UNIQ_INFO", "TIMER_DELAY_LEVEL"),
        # RocketMQ 5.4 does not reserve the following ones.
        *(INNER_MULTI_DISPATCH, INNER_NUM, INNER_BASE, TRANSACTION_CHECK_TIMES),
        CHECK_IMMUNITY_TIME,
    }
)
"""Names that clients cannot send as properties of their own. Those that RocketMQ does not reserve
would put a message into other queues, claim that a transaction was checked before, or put its check
off without limit."""
HIDDEN = RESERVED | {SHARDING_KEY, TRACE_CONTEXT, TRANSACTION_ID, "REDIRECT"}
"""Names that are not delivered as properties of the user. RocketMQ delivers the additional ones."""


def stored_properties(message: Message, topic: str, peer: str) -> dict[str, str]:
    """Return the properties with which a message of a client is stored.

    Properties without a name or a value are left out, because no reader would find them.

    Args:
        message: The message, which has passed the checks.
        topic: The topic, which is also the producer group.
        peer: The address of the client, for messages that do not name where they were created.
    """
    system = message.system_properties
    properties = {name: value for name, value in message.user_properties.items() if name and value}
    if tag := system.tag:
        properties[TAGS] = tag
    if keys := system.keys:
        properties[KEYS] = KEY_SEPARATOR.join(keys)
    properties[UNIQ_KEY] = system.message_id
    properties[PGROUP] = topic
    if system.message_type == MessageType.TRANSACTION:
        properties[TRAN_MSG] = "true"
        recovery_s = milliseconds(system.orphaned_transaction_recovery_duration) // 1000
        if recovery_s > 0:
            properties[CHECK_IMMUNITY_TIME] = str(recovery_s)
    if system.HasField("delivery_timestamp"):
        properties[TIMER_DELIVER_MS] = str(max(milliseconds(system.delivery_timestamp), 0))
    if system.HasField("priority"):
        properties[PRIORITY] = str(system.priority)
    if group := system.message_group:
        properties[SHARDING_KEY] = group
    if lite_topic := system.lite_topic:
        properties[LITE_TOPIC] = lite_topic
    if trace := system.trace_context:
        properties[TRACE_CONTEXT] = trace
    properties[RECONSUME_TIME] = str(system.delivery_attempt)
    properties[BORN_HOST] = system.born_host.strip() or peer
    properties[BORN_TIMESTAMP] = str(milliseconds(system.born_timestamp))
    return properties


def milliseconds(value: Timestamp | Duration) -> int:
    """Return a time or duration in ms, rounded down, or the nearest 64-bit number."""
    ms = value.seconds * 1000 + value.nanos // 1_000_000
    return min(max(ms, INT64_MIN), INT64_MAX)


def set_milliseconds(target: Timestamp | Duration, ms: int) -> None:
    """Set a time or duration in ms."""
    seconds, rest = divmod(ms, 1000)
    target.seconds, target.nanos = seconds, rest * 1_000_000
