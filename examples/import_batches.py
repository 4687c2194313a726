"""Load many records fast: in batches, each stored in one piece, spread over queues by key.

Records with the same key go to the same queue, which keeps them in order.
"""

import json
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from firetrail import Message, Store

QUEUES = 4
BATCH = 500


def lines(count: int) -> Iterator[str]:
    """Yield records, as a file of JSON lines would."""
    for number in range(count):
        yield json.dumps({"sensor": f"s-{number % 97}", "value": number})


def load(store: Store, count: int) -> None:
    """Put the records in batches, one whenever a queue has enough of them."""
    waiting: dict[int, list[Message]] = defaultdict(list)
    for line in lines(count):
        sensor = json.loads(line)["sensor"]
        queue_id = zlib.crc32(sensor.encode()) % QUEUES
        waiting[queue_id].append(
            Message("readings", line.encode(), keys=[sensor], queue_id=queue_id)
        )
        if len(waiting[queue_id]) == BATCH:
            store.put_batch(waiting.pop(queue_id))
    for rest in waiting.values():
        store.put_batch(rest)


with TemporaryDirectory() as folder, Store.open(folder) as store:
    started = time.perf_counter()
    load(store, 20_000)
    store.wait_dispatched()
    print(f"20000 records stored and indexed after {time.perf_counter() - started:.2f} s")
    for queue_id in store.queues("readings"):
        print(f"readings/{queue_id}: {store.max_offset('readings', queue_id)} messages")
    newest = store.query("readings", "s-7", max_count=3)
    print("newest of s-7:", [json.loads(message.body)["value"] for message in newest])
