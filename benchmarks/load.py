"""The messages of the benchmarks, those of the Java peer: one tag, two keys of their own each."""

from __future__ import annotations

import random

from firetrail import Message
from firetrail.format.batch import BatchItem, encode_batch

TOPIC = "bench"
TAG = "tagA"
QUEUES = 4
BODY = b"x" * 256
BATCH = 32
"""Messages of a batch."""
PULL = 32
"""Messages that one get asks for."""
PRODUCERS = 16
"""How many threads put at the same time where a put waits for the disk."""


def message(number: int) -> Message:
    """Message ``number``; queues take turns."""
    return Message(TOPIC, BODY, TAG, (f"key-{number}", f"order-{number}"), queue_id=number % QUEUES)


def batch_body(first: int, count: int) -> bytes:
    """Messages ``first`` to ``first + count - 1`` as a client sends them in one request."""
    return encode_batch(
        BatchItem(0, BODY, message(number).encode_properties())
        for number in range(first, first + count)
    )


def some_keys(count: int, messages: int) -> list[str]:
    """Keys of ``count`` different messages out of ``messages``, the same in every run."""
    chosen = random.Random(1).sample(range(messages), min(count, messages))
    return [f"key-{number}" for number in chosen]
