"""The gRPC client of PyPI ``rocketmq-python-client``: sends, simple and push consumers, order.

Runs in the environment of that package, not in Firetrail's. Argument: address of the proxy.
"""

import json
import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

WAIT_S = 60
TOPICS = ("GrpcNormal", "GrpcFifo", "GrpcTransaction")
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
        "words": len(received.receipt_handle.split(" ")),
    }


class Checker(TransactionChecker):
    """Commits every message that it is asked about."""

    def check(self, message: Message) -> TransactionResolution:
        say(got="check", body=message.body.decode())
        return TransactionResolution.COMMIT


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


def sends(producer: Producer) -> None:
    for n in range(6):
        body = f"normal{n}"
        sent = producer.send(message("GrpcNormal", body, tag="Odd" if n % 2 else "TagA"))
        say(sent="normal", body=body, id=sent.message_id)
    for n in range(20):
        key = str(n % 4)
        body = f"{key}-{n // 4:02}"
        sent = producer.send(message("GrpcFifo", body, group=f"order-{key}"))
        say(sent="fifo", body=body, id=sent.message_id)
    sent = producer.send(message("GrpcFifo", "again", group="order-0"))
    say(sent="fifo", body="again", id=sent.message_id)
    for body in ("commit", "rollback", "unknown"):
        transaction = producer.begin_transaction()
        producer.send(message("GrpcTransaction", body), transaction)
        if body == "commit":
            transaction.commit()
        elif body == "rollback":
            transaction.rollback()


def receives(configuration: ClientConfiguration) -> None:
    """Receive and acknowledge all messages; one is postponed first, and then redelivered."""
    topics = {"GrpcNormal": FilterExpression("TagA")}
    consumer = SimpleConsumer(configuration, "GrpcSimple", topics, 5)
    consumer.startup()
    put_off = False
    deadline = time.monotonic() + WAIT_S
    while got.get("simple", 0) < 4:
        assert time.monotonic() < deadline, f"the simple consumer got {got.get('simple', 0)} of 4"
        for received in consumer.receive(16, 15) or []:
            say(got="simple", **facts(received))
            if received.body == b"normal0" and not put_off:
                put_off = True
                consumer.change_invisible_duration(received, 10)
                consumer.change_invisible_duration(received, 0)
            else:
                consumer.ack(received)
    assert not consumer.receive(16, 15), "a message was redelivered after its acknowledgement"
    consumer.shutdown()


def main(endpoints: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = Producer(configuration, TOPICS, checker=Checker())
    producer.startup()
    push = {
        "fifo": ("GrpcFifo", "GrpcOrderly", 22),
        "push": ("GrpcNormal", "GrpcPush", 6),
        "halves": ("GrpcTransaction", "GrpcHalves", 2),
    }
    sends(producer)
    consumers = []
    for who, (topic, group, _) in push.items():
        listener = Listener(who)
        topics = {topic: FilterExpression()}
        consumers.append(PushConsumer(configuration, group, listener, topics))
        consumers[-1].startup()
    receives(configuration)
    for who, (_, _, count) in push.items():
        wait_for(who, count)
    time.sleep(2)  # acknowledgements are sent after the listener has returned
    sys.stdout.flush()
    os._exit(0)  # a shutdown waits for every long poll


main(sys.argv[1])
