"""A store with a day of a web shop, for the pipeline: 300,000 messages of the last 24 hours.

    .venv/bin/python examples/shop.py DIR [MESSAGES]

Traffic follows the time of day. At noon a payment service fails for a while: its messages are
retried, and some become dead letters.
"""

from __future__ import annotations

import math
import random
import sys
import time
from pathlib import Path

from firetrail import Clock, Message, Store, StoreConfig, System

DAY_MS = 86_400_000
SEGMENT = 32 << 20
INCIDENT = range(12 * 3_600_000, 13 * 3_600_000)
BIG_CUSTOMER = 7
TOPICS = {
    "page-views": (50, 180, ["home", "search", "product", "cart"]),
    "orders": (20, 700, ["created", "paid", "shipped", "returned"]),
    "payments": (15, 300, ["card", "invoice", "voucher"]),
    "stock": (10, 240, ["in", "out"]),
    "mails": (5, 2200, ["order", "newsletter"]),
}
"""Share of the traffic in percent, size of a body, and tags, the most frequent first."""


class DayClock(Clock):
    """A clock that the program sets, so that a day passes in seconds."""

    def __init__(self, now_ms: int) -> None:
        self.ms = now_ms

    def time_ns(self) -> int:
        """Return the wall time in nanoseconds since 1970."""
        return self.ms * 1_000_000


def write_day(path: Path, count: int = 300_000) -> Path:
    """Write the store; every run writes the same messages, relative to the current time."""
    chance = random.Random(42)
    start = time.time_ns() // 1_000_000 - DAY_MS
    clock = DayClock(start)
    system = System(clock=clock)
    config = StoreConfig(commit_log_file_size=SEGMENT)
    with Store.open(path, config, system=system) as store:
        for moment in arrivals(chance, count):
            clock.ms = start + moment
            store.put(one_message(chance, clock.ms, moment in INCIDENT))
    return path


def arrivals(chance: random.Random, count: int) -> list[int]:
    """Return the times of messages in ms of the day: most around noon."""
    day = (math.acos(1 - 2 * chance.random()) / math.pi for _ in range(count))
    return sorted(int((0.15 * chance.random() + 0.85 * part) * DAY_MS) for part in day)


def one_message(chance: random.Random, now: int, incident: bool) -> Message:
    """Return a message of a random topic; during the incident, many are retries of payments."""
    topic = chance.choices(list(TOPICS), [share for share, _, _ in TOPICS.values()])[0]
    _, size, tags = TOPICS[topic]
    late = chance.lognormvariate(3.5 if incident else 1, 1)
    again = 0
    if topic == "payments" and chance.random() < (0.6 if incident else 0.01):
        again = min(1 + int(chance.expovariate(0.25)), 16)
        topic = "%DLQ%billing" if again == 16 else "%RETRY%billing"
    customer = BIG_CUSTOMER if chance.random() < 0.1 else int(30 * chance.paretovariate(0.9))
    length = int(size * chance.lognormvariate(0, 0.4))
    return Message(
        topic,
        b'{"customer": %d, "data": "%s"}'
        % (customer, chance.randbytes(length // 2).hex().encode()),
        tags=tags[min(int(chance.expovariate(1)), len(tags) - 1)],
        keys=[f"customer-{customer}" if customer < 10**6 else "guest"],
        # One queue per customer keeps their messages in order; big customers make queues uneven.
        queue_id=0 if again else customer % (8 if topic == "page-views" else 4),
        born_time=now - int(late),
        reconsume_times=again,
    )


def main() -> None:
    """Write the store to the folder given as the argument."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: shop.py DIR [MESSAGES]")
    started = time.perf_counter()
    path = write_day(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    print(f"{path}: a day of a shop, written in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
