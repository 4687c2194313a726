"""The bodies of POP consumption, in requests and in the topic that keeps its state.

A broker notes what it hands out, and what of it was acknowledged, as messages of a topic of its
own. Their members have short names because there is one for every pop and every acknowledgement.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from firetrail.errors import ProtocolError
from firetrail.remoting.bodies import RequestMode
from firetrail.remoting.body import Body, named

COUNT_MAX = 256
"""No pop has more messages, whatever a check-point says."""


def _or(wire: str, default: Any) -> Any:
    return field(default=default, metadata={"wire": wire})


# -- the state --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointBody(Body):
    """Messages of one queue that were handed out together."""

    topic: str = named("t")
    group: str = named("c")
    queue_id: int = named("q")
    start: int = named("so")
    pop_time: int = named("pt")
    invisible_ms: int = named("it")
    count: int = named("n")
    bits: int = _or("bm", 0)
    """Those that are acknowledged; only ever 0 in what is stored."""
    differences: list[int] | None = field(default=None, metadata={"wire": "d"})
    """Their offsets relative to the start; if they are missing, all from the start on."""
    broker_name: str | None = _or("bn", None)
    tried: str | None = _or("rp", None)
    """How often a broker could not put them back."""

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the messages."""
        return [self.start + d for d in self.differences or range(min(self.count, COUNT_MAX))]


@dataclass(frozen=True, slots=True)
class AckBody(Body):
    """One message that is acknowledged, or with ``offsets`` several of the same check-point."""

    topic: str = named("t")
    group: str = named("c")
    queue_id: int = named("q")
    start: int = named("so")
    pop_time: int = named("pt")
    offset: int = _or("ao", -1)
    offsets: list[int] | None = field(default=None, metadata={"wire": "aol"})
    broker_name: str | None = _or("bn", None)


@dataclass(frozen=True, slots=True)
class OrderInfo(Body):
    """The last pop in order of a queue by a group."""

    pop_time: int = 0
    invisible_ms: int | None = _or("i", None)
    offsets: list[int] = field(default_factory=list, metadata={"wire": "o"})
    """The first offset, and the others relative to it."""
    visible: dict[int, int] | None = field(default=None, metadata={"wire": "ot"})
    counts: dict[int, int] | None = field(default=None, metadata={"wire": "oc"})
    consumed_time: int = _or("l", 0)
    bits: int = _or("cm", 0)
    """A bit for each that is acknowledged, the first offset's the lowest."""
    attempt: str | None = _or("a", None)


@dataclass(frozen=True, slots=True)
class OrderInfos(Body):
    """``consumerOrderInfo.json``: by ``topic@group`` and queue id."""

    table: dict[str, dict[int, OrderInfo]] = field(default_factory=dict)


# -- requests ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchAck(Body):
    """Messages of one pop of one queue."""

    group: str = named("c")
    topic: str = named("t")
    """Not the retry topic, even if they are from there."""
    start: int = named("so")
    queue_id: int = named("q")
    revive_queue: int = named("rq")
    pop_time: int = named("pt")
    invisible_ms: int = named("it")
    bits: str = named("b")
    """Base64 of a bit for each offset from the start on, the lowest first."""
    retry: str = _or("r", "0")

    def among(self, offsets: Iterable[int]) -> list[int]:
        """Those of the queue offsets whose bits are set."""
        try:
            raw = base64.b64decode(self.bits, validate=True)
        except (binascii.Error, ValueError):
            raise ProtocolError(f"BatchAck.b has to be Base64, not {self.bits!r:.80}") from None
        places = ((offset, offset - self.start) for offset in offsets)
        return [o for o, n in places if 0 <= n < 8 * len(raw) and raw[n >> 3] >> (n & 7) & 1]

    @staticmethod
    def bits_of(start: int, offsets: Iterable[int]) -> str:
        """What stands for these offsets."""
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
    """SET_MESSAGE_REQUEST_MODE: how the consumers of a group get a topic's messages."""

    topic: str
    consumer_group: str
    mode: RequestMode = RequestMode.PULL
    pop_share_queue_num: int = 0
    """With POP, how many others' queues a consumer takes from beside its own; 0 for all."""


@dataclass(frozen=True, slots=True)
class RequestModes(Body):
    """``messageRequestMode.json``: by topic and group."""

    message_request_mode_map: dict[str, dict[str, RequestModeBody]] = field(default_factory=dict)
