"""The gRPC client of PyPI ``rocketmq-python-client``: sends, simple and push consumers, order.

Runs in the environment of that package, not in Firetrail's. Arguments: address of the proxy, and
the prefix of topics and groups if it is not Grpc.
"""

import os
import sys
import time

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from said import WAIT_S, Listener, facts, got, message, patiently, say, started, wait_for

PREFIX = sys.argv[2] if len(sys.argv) > 2 else "Grpc"
TOPICS = [PREFIX + kind for kind in ("Normal", "Fifo", "Transaction", "Delay")]
DELAY_S = 5


class Checker(TransactionChecker):
    """Answers what the producer decided, and commits the message whose end is unknown."""

    def check(self, message: Message) -> TransactionResolution:
        say(got="check", body=message.body.decode())
        if message.body == b"rollback":
            return TransactionResolution.ROLLBACK
        return TransactionResolution.COMMIT


def sends(producer: Producer) -> None:
    for n in range(6):
        body = f"normal{n}"
        sent = producer.send(message(PREFIX + "Normal", body, tag="Odd" if n % 2 else "TagA"))
        say(sent="normal", body=body, id=sent.message_id)
    for n in range(20):
        key = str(n % 4)
        body = f"{key}-{n // 4:02}"
        sent = producer.send(message(PREFIX + "Fifo", body, group=f"order-{key}"))
        say(sent="fifo", body=body, id=sent.message_id)
    sent = producer.send(message(PREFIX + "Fifo", "again", group="order-0"))
    say(sent="fifo", body="again", id=sent.message_id)
    for body in ("commit", "rollback", "unknown"):
        transaction = producer.begin_transaction()
        producer.send(message(PREFIX + "Transaction", body), transaction)
        if body == "commit":
            transaction.commit()
        elif body == "rollback":
            transaction.rollback()


def sends_later(producer: Producer) -> None:
    """Send two messages that are due in some seconds; recall one of them."""
    due = int(time.time()) + DELAY_S
    for body in ("recalled", "later"):
        made = message(PREFIX + "Delay", body)
        made.delivery_timestamp = due
        sent = producer.send(made)
        say(sent="delay", body=body, id=sent.message_id, due=due)
        if body == "recalled":
            producer.recall_message(PREFIX + "Delay", sent.recall_handle)


def receives(configuration: ClientConfiguration) -> None:
    """Receive and acknowledge all messages; one is postponed first, and then redelivered."""
    topics = {PREFIX + "Normal": FilterExpression("TagA")}
    consumer = SimpleConsumer(configuration, PREFIX + "Simple", topics, 5)
    consumer.startup()
    put_off = False
    deadline = time.monotonic() + WAIT_S
    while got.get("simple", 0) < 4:
        assert time.monotonic() < deadline, f"the simple consumer got {got.get('simple', 0)} of 4"
        for received in patiently(lambda: consumer.receive(16, 15)) or []:
            say(got="simple", **facts(received))
            if received.body == b"normal0" and not put_off:
                put_off = True
                consumer.change_invisible_duration(received, 10)
                consumer.change_invisible_duration(received, 0)
            else:
                consumer.ack(received)
    assert not patiently(lambda: consumer.receive(16, 15)), (
        "a message was redelivered after its acknowledgement"
    )
    consumer.shutdown()


def main(endpoints: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = started(lambda: Producer(configuration, TOPICS, checker=Checker()))
    push = {
        "fifo": (PREFIX + "Fifo", PREFIX + "Orderly", 22),
        "push": (PREFIX + "Normal", PREFIX + "Push", 6),
        "halves": (PREFIX + "Transaction", PREFIX + "Halves", 2),
        "delay": (PREFIX + "Delay", PREFIX + "Later", 1),
    }
    sends(producer)
    sends_later(producer)
    consumers = []
    for who, (topic, group, _) in push.items():
        listener = Listener(who)
        topics = {topic: FilterExpression()}
        consumers.append(PushConsumer(configuration, group, listener, topics))
        consumers[-1].startup()
    receives(configuration)
    for who, (_, _, count) in push.items():
        wait_for(who, count)
    time.sleep(2)  # acknowledgements are sent after the listener has returned; so is "recalled"
    say(done=True)
    sys.stdout.flush()
    os._exit(0)  # a shutdown waits for every long poll


main(sys.argv[1])
