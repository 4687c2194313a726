"""Put messages, read them back, find one: the store in twenty lines."""

from tempfile import TemporaryDirectory

from firetrail import Message, Store

with TemporaryDirectory() as folder, Store.open(folder) as store:
    for number in range(3):
        result = store.put(
            Message("orders", f"order {number}".encode(), tags="new", keys=[f"o-{number}"])
        )
        print("stored as", result.message_id, "at queue offset", result.queue_offset)

    store.wait_dispatched()  # queues and index are updated in the background

    for message in store.read("orders"):
        print(message.queue_offset, message.tags, message.body.decode())

    (found,) = store.query("orders", "o-1")
    print("o-1 is", found.body.decode())
