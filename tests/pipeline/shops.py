"""A store with messages of many kinds, for tests of jobs that read whole stores."""

import random
from pathlib import Path

from tests.helpers import START_MS, Machine, small_config

from firetrail import Message, Store

MESSAGES = 600
SEGMENT = 64 << 10
TOPICS = ["orders", "clicks", "payments", "%RETRY%billing", "%DLQ%billing"]
WEIGHTS = [40, 40, 14, 4, 2]
TAGS = ["created", "paid", "shipped", None]


def make_shop(path: Path, seed: int = 7) -> Path:
    """Write two hours of messages of several topics and log files, deterministic by seed."""
    chance = random.Random(seed)
    machine = Machine()
    config = small_config(log=SEGMENT, units=1000, slots=64, entries=1000)
    with Store.open(path, config, system=machine.system) as store:
        for number in range(MESSAGES):
            machine.clock.advance(chance.randrange(24_000))
            topic = chance.choices(TOPICS, WEIGHTS)[0]
            again = topic.startswith("%")
            store.put(
                Message(
                    topic,
                    chance.randbytes(int(chance.lognormvariate(5, 0.8))),
                    tags=chance.choice(TAGS),
                    keys=[f"k-{number}", f"customer-{min(int(chance.expovariate(0.5)), 20)}"],
                    queue_id=0 if again else min(int(chance.expovariate(0.8)), 3),
                    born_time=machine.clock.ms - int(chance.lognormvariate(1, 2)) + 1,
                    reconsume_times=chance.randrange(1, 20) if again else 0,
                )
            )
    assert machine.clock.ms > START_MS + 3_600_000
    return path
