"""The headers of POP consumption, in which messages are acknowledged individually."""

from dataclasses import dataclass

from firetrail.remoting.messages.typed_header import GroupName, Header, Long, OtherText, TopicName

ANY_QUEUE = -1
"""The queue id of a pop from any queue that has messages."""


@dataclass(frozen=True, slots=True)
class PopHeader(Header):
    """POP_MESSAGE."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: int
    max_msg_nums: int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: int
    exp_type: OtherText | None = None
    exp: OtherText | None = None
    order: bool = False
    attempt_id: OtherText | None = None


@dataclass(frozen=True, slots=True)
class PopResponse(Header):
    """The answer to POP_MESSAGE, from which the client builds the receipt of each message.

    ``start_offset_info`` and ``msg_offset_info`` are encoded by
    :func:`firetrail.remoting.messages.pop.receipts.encode_places`.
    """

    pop_time: Long
    invisible_time: Long
    revive_qid: int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True)
class PeekHeader(Header):
    """PEEK_MESSAGE: requests the messages that the next pop would get."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: int
    max_msg_nums: int


@dataclass(frozen=True, slots=True)
class PeekResponse(Header):
    """The answer to PEEK_MESSAGE: the number of messages that are left."""

    rest_num: Long


@dataclass(frozen=True, slots=True)
class AckHeader(Header):
    """ACK_MESSAGE."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: int
    extra_info: OtherText
    offset: Long


@dataclass(frozen=True, slots=True)
class ChangeInvisibleTimeHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME: redeliver the message ``invisible_time`` ms from now."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: int
    extra_info: OtherText
    offset: Long
    invisible_time: Long


@dataclass(frozen=True, slots=True)
class ChangeInvisibleTimeResponse(Header):
    """The answer to CHANGE_MESSAGE_INVISIBLETIME: the new values of the receipt."""

    pop_time: Long
    invisible_time: Long
    revive_qid: int


@dataclass(frozen=True, slots=True)
class NotificationHeader(Header):
    """NOTIFICATION: answered as soon as there are messages to pop."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: OtherText | None = None


@dataclass(frozen=True, slots=True)
class NotificationResponse(Header):
    """The answer to NOTIFICATION: whether there are messages to pop."""

    has_msg: bool
    polling_full: bool = False


@dataclass(frozen=True, slots=True)
class PollingInfoHeader(Header):
    """POLLING_INFO: asks how many pops wait for messages."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: int


@dataclass(frozen=True, slots=True)
class PollingInfoResponse(Header):
    """The answer to POLLING_INFO."""

    polling_num: int
