"""The gRPC client of PyPI: filters, order under failure, dead letters, recall, kills of servers.

Runs in the environment of that package. Arguments: address of the service; features, or
features-5.4 for priorities, too; and the prefix of topics and groups if it is not Grpc. After
"ready", a line on standard input lets the program go on when the server was started again.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

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
)
from rocketmq.grpc_protocol import FilterType
from said import WAIT_S, Listener, facts, got, message, patiently, say, started, wait_for

PREFIX = sys.argv[3] if len(sys.argv) > 3 else "Grpc"
TOPICS = [PREFIX + kind for kind in ("Normal", "Fifo", "Delay", "Failing")]
INVISIBLE_S = 15


class Failing(MessageListener):
    """Fails for every message."""

    def consume(self, message: Message) -> ConsumeResult:
        say(got="failing", **facts(message))
        return ConsumeResult.FAILURE


class Timed(MessageListener):
    """Says when it gets a message."""

    def consume(self, message: Message) -> ConsumeResult:
        say(got="delayed", at=time.time(), **facts(message))
        return ConsumeResult.SUCCESS


def receives(
    configuration: ClientConfiguration,
    who: str,
    group: str,
    topics: dict[str, FilterExpression],
    count: int,
) -> SimpleConsumer:
    """Receive messages with a simple consumer, and acknowledge them.

    The topic of dead letters exists only after the first one.
    """
    consumer = SimpleConsumer(configuration, group, topics, 5)
    consumer.startup()
    deadline = time.monotonic() + WAIT_S
    while got.get(who, 0) < count:
        assert time.monotonic() < deadline, f"{who} got {got.get(who, 0)} of {count}"
        try:
            messages = patiently(lambda: consumer.receive(16, INVISIBLE_S)) or []
        except Exception as error:
            assert "failed to fetch topic" in str(error), error
            time.sleep(0.5)
            continue
        for received in messages:
            say(got=who, **facts(received))
            consumer.ack(received)
    return consumer


def numbered(body: str, number: int) -> Message:
    made = message(PREFIX + "Normal", body)
    made.add_property("n", str(number))
    return made


def filtered(producer: Producer, configuration: ClientConfiguration) -> SimpleConsumer:
    for n in range(6):
        producer.send(numbered(f"n{n}", n))
    condition = FilterExpression("n > 2 AND colour = 'blue'", FilterType.SQL)
    return receives(configuration, "sql", PREFIX + "Sql", {PREFIX + "Normal": condition}, 3)


def ordered(producer: Producer, configuration: ClientConfiguration) -> PushConsumer:
    """Send messages of one group, of which one fails; the later ones have to wait for it."""
    for body in ("k0", "again-k1", "k2", "k3"):
        producer.send(message(PREFIX + "Fifo", body, group="keep"))
    topics = {PREFIX + "Fifo": FilterExpression()}
    consumer = PushConsumer(configuration, PREFIX + "Orderly", Listener("ordered"), topics)
    consumer.startup()
    wait_for("ordered", 5)
    return consumer


def failing(producer: Producer, configuration: ClientConfiguration) -> PushConsumer:
    """Send a message that its consumers never consume, and receive it as a dead letter."""
    producer.send(message(PREFIX + "Failing", "fails"))
    topics = {PREFIX + "Failing": FilterExpression()}
    consumer = PushConsumer(configuration, PREFIX + "FailingGroup", Failing(), topics)
    consumer.startup()
    wait_for("failing", 2)
    dead = {f"%DLQ%{PREFIX}FailingGroup": FilterExpression()}
    receives(configuration, "dead", PREFIX + "Undertaker", dead, 1)
    return consumer


def delayed(producer: Producer, configuration: ClientConfiguration) -> PushConsumer:
    """Send messages with a delivery time, and recall one of them."""
    topics = {PREFIX + "Delay": FilterExpression()}
    consumer = PushConsumer(configuration, PREFIX + "DelayGroup", Timed(), topics)
    consumer.startup()
    at = int(time.time()) + 4
    for body in ("later", "recalled"):
        made = message(PREFIX + "Delay", body)
        made.delivery_timestamp = at
        sent = producer.send(made)
        assert sent.recall_handle, "there is no recall handle"
        if body == "recalled":
            found = producer.recall_message(PREFIX + "Delay", sent.recall_handle)
            say(recalled=found, id=sent.message_id)
        else:
            say(sent="delayed", body=body, due=at, id=sent.message_id)
    past = message(PREFIX + "Delay", "past")
    past.delivery_timestamp = int(time.time()) - 10
    producer.send(past)
    wait_for("delayed", 2)
    return consumer


def prioritized(producer: Producer, configuration: ClientConfiguration) -> SimpleConsumer:
    """Send all messages before one is received: those with a higher priority come first."""
    for priority in (1, 3, 2):
        made = message(PREFIX + "Priority", f"p{priority}")
        made.priority = priority
        producer.send(made)
    topics = {PREFIX + "Priority": FilterExpression()}
    return receives(configuration, "priority", PREFIX + "Urgent", topics, 3)


def restarted(producer: Producer, configuration: ClientConfiguration) -> PushConsumer:
    """Send and receive before and after the server was killed and started again."""
    topics = {PREFIX + "Normal": FilterExpression("Restart")}
    consumer = PushConsumer(configuration, PREFIX + "Restart", Listener("restart"), topics)
    consumer.startup()
    producer.send(message(PREFIX + "Normal", "before", tag="Restart"))
    wait_for("restart", 1)
    say(ready="restart")
    sys.stdin.readline()
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            producer.send(message(PREFIX + "Normal", "after", tag="Restart"))
            break
        except Exception as error:
            assert time.monotonic() < deadline, f"no send succeeds after the restart: {error}"
            time.sleep(0.5)
    wait_for("restart", 2)
    return consumer


def main(endpoints: str, part: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = started(lambda: Producer(configuration, TOPICS))
    with ThreadPoolExecutor() as pool:
        parts = [filtered, ordered, failing, delayed]
        if part == "features-5.4":
            parts.append(prioritized)
        running = [pool.submit(part, producer, configuration) for part in parts]
        consumers = [part.result() for part in running]
    consumers.append(restarted(producer, configuration))
    time.sleep(2)  # acknowledgements are sent after the listener has returned
    say(done=True)
    sys.stdout.flush()
    os._exit(0)  # a shutdown waits for every long poll


main(*sys.argv[1:3])
