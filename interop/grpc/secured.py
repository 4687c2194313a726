"""A client with TLS and credentials: it sends a message, and receives it."""

import sys
import time

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)
from said import WAIT_S, say


def main(endpoints: str, user: str, password: str, topic: str, group: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials(user, password))
    producer = Producer(configuration, (topic,), tls_enable=True)
    producer.startup()
    message = Message()
    message.topic = topic
    message.body = b"through gRPC"
    producer.send(message)
    say(sent="normal", body="through gRPC")
    producer.shutdown()
    consumer = SimpleConsumer(
        configuration, group, {topic: FilterExpression("*")}, 5, tls_enable=True
    )
    consumer.startup()
    deadline = time.monotonic() + WAIT_S
    received = False
    while not received:
        assert time.monotonic() < deadline, "nothing was received"
        for each in consumer.receive(16, 15) or []:
            say(got="simple", body=each.body.decode())
            consumer.ack(each)
            received = received or each.body == b"through gRPC"
    consumer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
