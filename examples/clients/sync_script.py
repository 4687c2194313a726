"""Firetrail's client without asyncio: python sync_script.py 127.0.0.1:9876."""

import sys

from firetrail.client import Message
from firetrail.client.sync import SyncProducer, SyncPullConsumer, SyncSimpleConsumer

namesrv = sys.argv[1]

with SyncProducer(namesrv, "scripts") as producer:
    sent = [producer.send(Message("HelloSync", b"job %d" % n)) for n in range(3)]

with SyncSimpleConsumer(namesrv, "workers", {"HelloSync": "*"}) as consumer:
    left = len(sent)
    while left:
        for message in consumer.receive(wait_s=5):
            print("did", message.body.decode())
            consumer.ack(message)
            left -= 1

with SyncPullConsumer(namesrv) as reader:
    kept = [message for queue in reader.queues("HelloSync") for message in reader.read(queue)]
print(len(kept), "messages are still stored")
