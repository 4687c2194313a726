"""Messages, listeners and output that the programs with the gRPC client of PyPI share."""

import json
import threading
import time
from collections.abc import Callable

from rocketmq import ConsumeResult, Message, MessageListener, Producer
from rocketmq.v5.exception import InternalErrorException

WAIT_S = 60
said = threading.Lock()
got: dict[str, int] = {}  # by whom: how many


def say(**event: object) -> None:
    with said:
        print(json.dumps(event), flush=True)
        who = event.get("got")
        if isinstance(who, str):
            got[who] = got.get(who, 0) + 1


def wait_for(who: str, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while got.get(who, 0) < count:
        assert time.monotonic() < deadline, f"{who} got {got.get(who, 0)} of {count}"
        time.sleep(0.05)


def patiently(receive: Callable[[], list[Message]]) -> list[Message]:
    """Receive; a proxy fails as long as it has not got the settings of a client that just began."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return receive()
        except InternalErrorException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def started(make: Callable[[], Producer]) -> Producer:
    """Start a producer; a proxy that has just been started may be slow to answer."""
    deadline = time.monotonic() + WAIT_S
    while True:
        producer = make()
        try:
            producer.startup()
            return producer
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def message(topic: str, body: str, group: str | None = None, tag: str = "TagA") -> Message:
    made = Message()
    made.topic = topic
    made.body = body.encode()
    made.keys = "key-" + body[:20]
    made.tag = tag
    made.add_property("colour", "blue")
    if group is not None:
        made.message_group = group
    return made


def facts(received: Message) -> dict[str, object]:
    return {
        "body": received.body.decode(),
        "keys": next(iter(received.keys)),
        "tags": received.tag,
        "id": received.message_id,
        "times": received.delivery_attempt,
        "group": received.message_group,
        "colour": received.properties.get("colour"),
        "time": time.time(),
        "words": len(received.receipt_handle.split(" ")),
    }


class Listener(MessageListener):
    """Says what it gets; fails once for each body that starts with ``again``."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.failed: set[str] = set()

    def consume(self, message: Message) -> ConsumeResult:
        say(got=self.who, **facts(message))
        body = message.body.decode()
        if "again" in body and body not in self.failed:
            self.failed.add(body)
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS
