"""The C++ client, through the Python package ``rocketmq``: every way to send and to consume.

Runs in the environment of that package, not in Firetrail's. Argument: name server. If the
environment has CLIENT_USER and CLIENT_PASSWORD, all requests are signed; if it has CLIENT_TOPIC,
the program only sends a message to this topic and consumes it.
"""

import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, SendResult
from rocketmq.ffi import MessageModel

WAIT_S = 60
said = threading.Lock()
got: dict[str, int] = {}  # by whom: how many


def say(**event: object) -> None:
    with said:
        print(json.dumps(event), flush=True)
        who = event.get("got")
        if isinstance(who, str):
            got[who] = got.get(who, 0) + 1


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def message(topic: str, body: str, tags: str = "TagA", **properties: str) -> Message:
    made = Message(topic)
    made.set_body(body)
    made.set_keys("key-" + body[:20])
    made.set_tags(tags)
    for name, value in properties.items():
        made.set_property(name, value)
    return made


def facts(received: Message) -> dict[str, object]:
    return {
        "body": text(received.body),
        "keys": text(received.keys),
        "tags": text(received.tags),
        "id": received.id,
        "colour": text(received["colour"]),
        "times": received.reconsume_times,
        "queue": received.queue_id,
        "offset": received.queue_offset,
        "topic": received.topic,
    }


def sends(producer: Producer) -> None:
    sent = producer.send_sync(message("CppSends", "sync", colour="blue"))
    say(sent="sync", body="sync", id=sent.msg_id, offset=sent.offset, status=int(sent.status))
    large = "large " * 5000
    sent = producer.send_sync(message("CppSends", large))
    say(sent="sync", body=large, id=sent.msg_id, offset=sent.offset, status=int(sent.status))
    answered = threading.Event()

    def success(result: SendResult) -> None:
        say(sent="async", body="async", id=result.msg_id, offset=result.offset)
        answered.set()

    producer.send_async(message("CppSends", "async"), success, lambda error: None)
    assert answered.wait(10), "no answer to an asynchronous send"
    producer.send_oneway(message("CppSends", "oneway"))
    sent = producer.send_batch([message("CppSends", f"batch{n}") for n in range(3)])
    say(sent="batch", body="batch", id=sent.msg_id, offset=sent.offset, status=int(sent.status))
    delayed = message("CppSends", "delayed")
    delayed.set_delay_time_level(1)
    producer.send_sync(delayed)
    for n in range(20):
        body = f"{n % 4}-{n // 4:02}"
        sent = producer.send_orderly(message("CppOrder", body), n % 4)
        say(sent="orderly", body=body, id=sent.msg_id, offset=sent.offset)
    for n in range(6):
        producer.send_sync(message("CppTags", str(n), "Odd" if n % 2 else "Even"))
    producer.send_sync(message("CppRetry", "again"))


def configure(client: Producer | PullConsumer | PushConsumer, namesrv: str) -> None:
    """Tell a client its name server and its credentials, if there are any."""
    client.set_namesrv_addr(namesrv)
    if user := os.environ.get("CLIENT_USER"):
        client.set_session_credentials(user, os.environ["CLIENT_PASSWORD"], "")


def consumer(
    who: str, namesrv: str, topic: str, expression: str = "*", failures: int = 0, **options: object
) -> PushConsumer:
    failed: list[str] = []

    def listener(received: Message) -> None:
        say(got=who, **facts(received))
        if len(failed) < failures:
            failed.append(received.id)
            raise ValueError("not yet")

    made = PushConsumer("CPP_" + who.upper(), **options)
    made.set_instance_name(who)
    configure(made, namesrv)
    made.subscribe(topic, listener, expression)
    made.start()
    return made


def broadcast(producer: Producer, namesrv: str) -> list[PushConsumer]:
    """To two consumers, which begin with what is sent after they have found their queues."""
    producer.send_sync(message("CppAll", "early"))
    time.sleep(0.5)
    model = MessageModel.BROADCASTING
    made = [consumer(who, namesrv, "CppAll", message_model=model) for who in ("one", "two")]
    time.sleep(2)
    for n in range(4):
        producer.send_sync(message("CppAll", f"all{n}"))
    return made


def pull(namesrv: str) -> None:
    pulling = PullConsumer("CPP_PULL")
    configure(pulling, namesrv)
    pulling.start()
    while got.get("pull", 0) < 3:  # pulls do not wait for messages that are on their way
        for received in pulling.pull("CppTags", "Even"):
            say(got="pull", **facts(received))
    pulling.shutdown()


def wait_for(**wanted: int) -> None:
    """Wait until these consumers got as many messages; the caller notices if they do not."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and any(got.get(who, 0) < n for who, n in wanted.items()):
        time.sleep(0.05)


def main(namesrv: str) -> None:
    producer = Producer("CPP_PRODUCER")
    configure(producer, namesrv)
    producer.start()
    if topic := os.environ.get("CLIENT_TOPIC"):
        consumers = one(producer, namesrv, topic)
    else:
        consumers = everything(producer, namesrv)
    for made in consumers:
        made.shutdown()
    producer.shutdown()


def one(producer: Producer, namesrv: str, topic: str) -> list[PushConsumer]:
    """Send a message and consume it; the listener fails once, so a retry topic is used, too."""
    producer.send_sync(message(topic, "signed"))
    say(sent="sync", body="signed")
    made = consumer("secured", namesrv, topic, failures=1)
    wait_for(secured=2)
    return [made]


def everything(producer: Producer, namesrv: str) -> list[PushConsumer]:
    """Send and consume in every way."""
    sends(producer)
    pull(namesrv)
    consumers = [
        *broadcast(producer, namesrv),
        consumer("push", namesrv, "CppSends"),
        consumer("orderly", namesrv, "CppOrder", orderly=True),
        consumer("tags", namesrv, "CppTags", "Odd || Other"),
        consumer("retry", namesrv, "CppRetry", failures=2),
    ]
    wait_for(push=8, orderly=20, tags=3, retry=3, one=4, two=4)
    return consumers


main(sys.argv[1])
