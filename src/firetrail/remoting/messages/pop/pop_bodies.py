"""The bodies of POP consumption, in requests and in the topic that stores its state.

A broker stores pops and acknowledgements as messages in an internal topic. Their members have short
names, because there is one message per pop and per acknowledgement.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from firetrail.errors import ProtocolError
from firetrail.remoting.messages.bodies import RequestMode
from firetrail.remoting.messages.typed_body import Body, ServerBody, named

CHECKPOINT, ACK, ACKS = "ck", "ack", "bAck"
"""The tags of the messages that store a checkpoint, an acknowledgement, and several of them."""
COUNT_MAX = 256
"""Maximum number of messages of a pop, even if a checkpoint contains a higher number."""


def _or(wire: str, default: Any) -> Any:
    return field(default=default, metadata={"wire": wire})


# -- the state --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointBody(Body):
    """Messages of one queue that were popped together."""

    topic: str = named("t")
    group: str = named("c")
    queue_id: int = named("q")
    start: int = named("so")
    pop_time: int = named("pt")
    invisible_ms: int = named("it")
    count: int = named("n")
    bits: int = _or("bm", 0)
    """A bit per acknowledged message; always 0 in stored checkpoints."""
    differences: list[int] | None = field(default=None, metadata={"wire": "d"})
    """The offsets relative to ``start``; without them, ``count`` consecutive offsets."""
    broker_name: str | None = _or("bn", None)
    tried: str | None = _or("rp", None)
    """The number of times that the broker failed to put the messages back."""

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the messages."""
        return [self.start + d for d in self.differences or range(min(self.count, COUNT_MAX))]


@dataclass(frozen=True, slots=True)
class AckBody(Body):
    """An acknowledged message or, with ``offsets``, several of the same checkpoint."""

    topic: str = named("t")
    group: str = named("c")
    queue_id: int = named("q")
    start: int = named("so")
    pop_time: int = named("pt")
    offset: int = _or("ao", -1)
    offsets: list[int] | None = field(default=None, metadata={"wire": "aol"})
    broker_name: str | None = _or("bn", None)


def encode_checkpoint(
    topic: str,
    group: str,
    queue_id: int,
    start: int,
    pop_time: int,
    invisible_ms: int,
    offsets: Sequence[int],
    broker_name: str,
) -> bytes:
    """Return the stored form of a :class:`CheckpointBody`, in a fraction of the time.

    Args:
        topic: The topic that the messages are stored in.
        group: The consumer group.
        queue_id: The queue.
        start: The offset at which the pop began reading.
        pop_time: The time at which it did, in ms.
        invisible_ms: The time for which the messages are invisible.
        offsets: Their queue offsets, in order.
        broker_name: The name of the broker.
    """
    differences = ",".join([str(offset - start) for offset in offsets])
    text = (
        f'{{"bm":0,"bn":{_quoted(broker_name)},"c":{_quoted(group)},"d":[{differences}],'
        f'"it":{invisible_ms},"n":{len(offsets)},"pt":{pop_time},"q":{queue_id},'
        f'"so":{start},"t":{_quoted(topic)}}}'
    )
    return text.encode("utf-8", "replace")


def encode_ack(
    topic: str,
    group: str,
    queue_id: int,
    start: int,
    pop_time: int,
    offsets: Sequence[int],
    broker_name: str,
) -> bytes:
    """Return the stored form of an :class:`AckBody`, in a fraction of the time.

    The arguments are those of :func:`encode_checkpoint`; ``offsets`` are the acknowledged ones.
    """
    if len(offsets) == 1:
        acked = f'"ao":{offsets[0]}'
    else:
        acked = f'"ao":-1,"aol":[{",".join(map(str, offsets))}]'
    text = (
        f'{{{acked},"bn":{_quoted(broker_name)},"c":{_quoted(group)},"pt":{pop_time},'
        f'"q":{queue_id},"so":{start},"t":{_quoted(topic)}}}'
    )
    return text.encode("utf-8", "replace")


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    """Return a name as JSON. The cache holds names of topics, groups and brokers."""
    return json.dumps(name, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class OrderInfo(Body):
    """The last pop in order of a queue by a group."""

    pop_time: int = 0
    invisible_ms: int | None = _or("i", None)
    offsets: list[int] = field(default_factory=list, metadata={"wire": "o"})
    """The first offset, followed by the others relative to it."""
    visible: dict[int, int] | None = field(default=None, metadata={"wire": "ot"})
    counts: dict[int, int] | None = field(default=None, metadata={"wire": "oc"})
    consumed_time: int = _or("l", 0)
    bits: int = _or("cm", 0)
    """A bit per acknowledged message; the lowest bit is the first offset."""
    attempt: str | None = _or("a", None)


@dataclass(frozen=True, slots=True)
class OrderInfos(ServerBody):
    """``consumerOrderInfo.json``: by ``topic@group`` and queue id."""

    table: dict[str, dict[int, OrderInfo]] = field(default_factory=dict)


# -- requests ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchAck(Body):
    """Acknowledged messages of one pop of one queue."""

    group: str = named("c")
    topic: str = named("t")
    """The original topic, even if the messages come from its retry topic."""
    start: int = named("so")
    queue_id: int = named("q")
    revive_queue: int = named("rq")
    pop_time: int = named("pt")
    invisible_ms: int = named("it")
    bits: str = named("b")
    """Base64 of one bit per offset, starting at ``start`` with the lowest bit."""
    retry: str = _or("r", "0")

    def among(self, offsets: Iterable[int]) -> list[int]:
        """Return those of the queue offsets whose bits are set."""
        try:
            raw = base64.b64decode(self.bits, validate=True)
        except (binascii.Error, ValueError):
            raise ProtocolError(f"BatchAck.b must be Base64, not {self.bits!r:.80}") from None
        places = ((offset, offset - self.start) for offset in offsets)
        return [o for o, n in places if 0 <= n < 8 * len(raw) and raw[n >> 3] >> (n & 7) & 1]

    @staticmethod
    def bits_of(start: int, offsets: Iterable[int]) -> str:
        """Encode offsets as the value of ``bits``."""
        places = {offset - start for offset in offsets}
        raw = bytearray(max(places) // 8 + 1)
        for n in places:
            raw[n >> 3] |= 1 << (n & 7)
        return base64.b64encode(raw).decode()


@dataclass(frozen=True, slots=True)
class BatchAckBody(Body):
    """BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RequestModeBody(Body):
    """SET_MESSAGE_REQUEST_MODE: how the consumers of a group get the messages of a topic."""

    topic: str
    consumer_group: str
    mode: RequestMode = RequestMode.PULL
    pop_share_queue_num: int = 0
    """With POP: from how many queues of other members a member also takes messages; 0 for all."""


@dataclass(frozen=True, slots=True)
class RequestModes(Body):
    """``messageRequestMode.json``: by topic and group."""

    message_request_mode_map: dict[str, dict[str, RequestModeBody]] = field(default_factory=dict)
