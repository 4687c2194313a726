"""The headers of POP consumption: messages are taken for a while, and acknowledged one by one."""

from __future__ import annotations

from dataclasses import dataclass

from firetrail.remoting.header import Header, Long

ANY_QUEUE = -1
"""The queue id of who takes messages from whichever queue has some."""


@dataclass(frozen=True, slots=True)
class PopHeader(Header):
    """POP_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class PopResponse(Header):
    """What was taken when and for how long; where each message stands, for its receipt.

    ``start_offset_info`` and ``msg_offset_info`` are those of
    :func:`firetrail.remoting.receipts.encode_places`.
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
    """PEEK_MESSAGE: what the next pop would get."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int


@dataclass(frozen=True, slots=True)
class PeekResponse(Header):
    """How many messages are left."""

    rest_num: Long


@dataclass(frozen=True, slots=True)
class AckHeader(Header):
    """ACK_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long


@dataclass(frozen=True, slots=True)
class ChangeInvisibleTimeHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME: it is to come again so many ms from now."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long
    invisible_time: Long


@dataclass(frozen=True, slots=True)
class ChangeInvisibleTimeResponse(Header):
    """What the receipt has to say from now on."""

    pop_time: Long
    invisible_time: Long
    revive_qid: int


@dataclass(frozen=True, slots=True)
class NotificationHeader(Header):
    """NOTIFICATION: tell when there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class NotificationResponse(Header):
    """Whether there is."""

    has_msg: bool
    polling_full: bool = False


@dataclass(frozen=True, slots=True)
class PollingInfoHeader(Header):
    """POLLING_INFO: how many pops wait for messages?"""

    consumer_group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class PollingInfoResponse(Header):
    """So many."""

    polling_num: int
