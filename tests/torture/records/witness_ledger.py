"""The ledger of an independent client, and the verdict on what a cluster made of it.

A ledger is a file of JSON lines, written while the client works:

- ``sent``: a message is about to be sent, to a topic and a queue, perhaps for a later delivery;
- ``ok``: it was acknowledged, with its queue offset;
- ``failed``: it was not, with the reason. It may be stored nevertheless, unless the reason is a
  refusal that promises the opposite;
- ``read``: a message was found at a queue offset; ``back``: a reader was sent back;
- ``go`` and ``rest``: from here on messages are sent, or not.

Times are seconds of a monotonic clock, except for delivery and store times (ms since 1970).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NOT_STORED = "code 14"
"""The refusal that promises that nothing is stored."""
Place = tuple[str, int]
"""Topic and queue."""


class Sent(NamedTuple):
    """A message that was sent."""

    place: Place
    sent_at: float
    due_ms: int
    """When it may be delivered; 0 for at once."""


class Found(NamedTuple):
    """A message that was found in a queue."""

    offset: int
    body: bytes
    store_ms: int


class Verdict(NamedTuple):
    """The violations by kind, with examples, and figures of the last period."""

    wrong: dict[str, list[str]]
    figures: dict[str, float]


def body_of(name: str) -> bytes:
    """Return the body of a message: its name, and a filling that depends on it."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name} {digest * (1 + int(digest[:2], 16) % 16)}".encode()


def name_in(body: bytes) -> str | None:
    """Return the name of the message with this body; None if nobody can have sent it."""
    name = body.partition(b" ")[0].decode(errors="replace")
    return name if body_of(name) == body else None


@dataclass
class Ledger:
    """Everything that a client has noted."""

    sent: dict[str, Sent] = field(default_factory=dict)
    acknowledged: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By name: queue offset, and when it was told."""
    failed: dict[str, str] = field(default_factory=dict)
    read: dict[tuple[Place, int], str] = field(default_factory=dict)
    sent_back: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    """Messages that a reader found at different times at the same offset."""
    went_at: float = 0.0
    rested_at: float = 0.0

    @classmethod
    def parsed(cls, lines: Iterable[str]) -> Ledger:
        ledger = cls()
        for line in lines:
            ledger.add(json.loads(line))
        return ledger

    def add(self, entry: Mapping[str, Any]) -> None:
        kind, name = entry["kind"], entry.get("name", "")
        place = (entry.get("topic", ""), entry.get("queue", 0))
        match kind:
            case "sent":
                self.sent[name] = Sent(place, entry["at"], entry.get("due", 0))
            case "ok":
                self.acknowledged[name] = (entry["offset"], entry["at"])
            case "failed":
                self.failed[name] = entry["why"]
            case "read":
                before = self.read.setdefault((place, entry["offset"]), name)
                if before != name:
                    self.contradictions.append(f"{place} {entry['offset']}: {before}, {name}")
            case "back":
                self.sent_back.append(f"{place} from {entry['offset']} to {entry['to']}")
            case "go":
                self.went_at = entry["at"]
            case "rest":
                self.rested_at = entry["at"]
            case _:
                raise ValueError(f"a ledger has no entries of the kind {kind}")

    def highest(self, place: Place) -> int:
        """Return the highest offset that was acknowledged in a queue, -1 if there is none."""
        offsets = (
            offset
            for name, (offset, _) in self.acknowledged.items()
            if self.sent[name].place == place and not self.sent[name].due_ms
        )
        return max(offsets, default=-1)

    def awaited(self) -> set[str]:
        """Return the acknowledged messages that have a later delivery."""
        return {name for name in self.acknowledged if self.sent[name].due_ms}

    # -- the verdict --------------------------------------------------------------------------

    def judged(
        self,
        found: Mapping[Place, Iterable[Found]],
        read: Mapping[tuple[Place, int], str] | None = None,
    ) -> Verdict:
        """Compare what was noted with the content of all queues.

        Args:
            found: The content.
            read: What consumers had read before the content was read. Default: None, all reads.
        """
        wrong: dict[str, list[str]] = defaultdict(list)
        wrong["set back"] += self.sent_back
        wrong["changed after it was read"] += self.contradictions
        delivered = Counter[str]()
        names: dict[tuple[Place, int], str] = {}
        for place, messages in found.items():
            in_place = self._identified(place, messages, wrong, delivered)
            names |= {(place, offset): name for offset, name in in_place}
            self._check_order(in_place, wrong)
        for name, (offset, _) in self.acknowledged.items():
            place, _, due_ms = self.sent[name]
            if names.get((place, offset)) != name if not due_ms else not delivered[name]:
                wrong["lost"].append(f"{name} at {place} {offset}")
        for (place, offset), name in (self.read if read is None else read).items():
            if names.get((place, offset)) != name:
                wrong["read and lost"].append(f"{name} at {place} {offset}")
        wrong = {kind: examples for kind, examples in wrong.items() if examples}
        return Verdict(wrong, self._figures(delivered))

    def _identified(
        self,
        place: Place,
        messages: Iterable[Found],
        wrong: dict[str, list[str]],
        delivered: Counter[str],
    ) -> list[tuple[int, str]]:
        """Return offset and name of the messages of a queue that were sent to it."""
        known = []
        for expected, message in enumerate(messages):
            at = f"{place} {message.offset}"
            if message.offset != expected:
                wrong["gap"].append(f"{at} follows {expected - 1}")
            name = name_in(message.body)
            if name is None or name not in self.sent or self.sent[name].place != place:
                wrong["invented"].append(f"{message.body[:40]!r} at {at}")
                continue
            known.append((message.offset, name))
            delivered[name] += 1
            due_ms = self.sent[name].due_ms
            if message.store_ms < due_ms:
                wrong["early"].append(f"{name} at {at}: {due_ms - message.store_ms} ms")
            if delivered[name] > 1 and not due_ms:
                wrong["repeated"].append(f"{name} at {at}")
            if self.failed.get(name) == NOT_STORED:
                wrong["refused but stored"].append(f"{name} at {at}")
        return known

    def _check_order(self, messages: list[tuple[int, str]], wrong: dict[str, list[str]]) -> None:
        """Check that messages follow all that had been acknowledged when they were sent."""
        plain = [(offset, name) for offset, name in messages if not self.sent[name].due_ms]
        told = sorted(
            (self.acknowledged[name][1], offset)
            for offset, name in plain
            if name in self.acknowledged
        )
        highest, at = -1, 0
        for sent_at, offset, name in sorted(
            (self.sent[name].sent_at, o, name) for o, name in plain
        ):
            while at < len(told) and told[at][0] < sent_at:
                highest = max(highest, told[at][1])
                at += 1
            if offset <= highest:
                wrong["out of order"].append(f"{name} at {offset}, after {highest}")

    def _figures(self, delivered: Counter[str]) -> dict[str, float]:
        """Return figures of the period since the clients went."""
        inside = {name: at for name, (_, at) in self.acknowledged.items() if at >= self.went_at}
        times = sorted([self.went_at, *inside.values(), max(self.rested_at, self.went_at)])
        gaps = (b - a for a, b in itertools.pairwise(times))
        twice = (name for name, count in delivered.items() if count > 1 and self.sent[name].due_ms)
        failed = [name for name in self.failed if self.sent[name].sent_at >= self.went_at]
        return {
            "acknowledged": len(inside),
            "not acknowledged": len(failed),
            "delays repeated": sum(1 for _ in twice),
            "longest without": max(gaps, default=0.0),
            "longest refusal": max(self._refusals(), default=0.0),
        }

    def _refusals(self) -> Iterable[float]:
        """Yield for how long producers, one per queue, were not acknowledged anything."""
        began: dict[Place, float] = {}
        for name, (place, sent_at, _) in self.sent.items():
            if sent_at < self.went_at:
                continue
            if name in self.failed:
                began.setdefault(place, sent_at)
            elif name in self.acknowledged and place in began:
                yield self.acknowledged[name][1] - began.pop(place)
        for sent_at in began.values():
            yield max(self.rested_at - sent_at, 0.0)
