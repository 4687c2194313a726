"""A store whose topics are deleted and created again, and a model of what consumers must see."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.helpers import PATIENCE_S, crash_image, small_config
from tests.stores import list_topics

from firetrail import Message, Store
from firetrail.format.names import LOCK_CONTENT
from firetrail.store.broker_store import BrokerStore
from firetrail.store.queues.queue_table import QueueKey

CONFIG = small_config(log=2048, units=5, entries=32, light_queues=True)
Seen = dict[QueueKey, list[bytes]]
Damage = Callable[[Path], None]


class Shop:
    """An open store, and the messages of each queue that a consumer must see."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened = Store.open(root, CONFIG)
        self.store = BrokerStore(self._opened._engine)
        self.seen: Seen = {}
        self.topics: set[str] = set()
        self._serial = 0

    def put(self, topic: str, queue_id: int = 0, count: int = 1, light: str = "") -> None:
        self.topics.add(topic)
        for _ in range(count):
            self._serial += 1
            body = b"%s/%d: %d" % (topic.encode(), queue_id, self._serial)
            properties = {"INNER_MULTI_DISPATCH": light} if light else {}
            self.store.embedded.put(
                Message(topic, body, queue_id=queue_id, keys=["k"], properties=properties)
            )
            self.seen.setdefault((topic, queue_id), []).append(body)
            if light:
                self.seen.setdefault((light, 0), []).append(body)

    def delete(self, topic: str) -> None:
        """Delete a topic as the broker does."""
        assert self.store.embedded.wait_dispatched(PATIENCE_S)
        while not self.store.removal.remove(topic, self.store.removal.settle()):
            pass  # queues are being synced
        self.topics.discard(topic)
        for key in [key for key in self.seen if key[0] == topic]:
            del self.seen[key]

    def create(self, topic: str) -> None:
        self.topics.add(topic)

    def expire(self) -> None:
        """Let retention delete all files of the log but the last."""
        assert self.store.embedded.wait_dispatched(PATIENCE_S)
        self.store.embedded.delete_expired(forced=True)
        for topic, queue_id in self.seen:
            left = self.store.queues.max_offset(topic, queue_id) - self.store.queues.min_offset(
                topic, queue_id
            )
            bodies = self.seen[topic, queue_id]
            del bodies[: len(bodies) - left]

    def close(self) -> None:
        self._opened.close()
        list_topics(self.root, *self.topics)


def seen_in(root: Path, queues: Iterable[QueueKey] | None = None) -> Seen:
    """Return the messages that a consumer sees in all queues, or in some."""
    with Store.open(root) as store:
        there = [(topic, queue_id) for topic in store.topics() for queue_id in store.queues(topic)]
        found = {key: [message.body for message in store.read(*key)] for key in there}
    return {key: found.get(key, []) for key in (found if queues is None else queues)}


def not_empty(seen: Seen) -> Seen:
    return {key: bodies for key, bodies in seen.items() if bodies}


def copy_with(root: Path, name: str, *damages: Damage) -> Path:
    """Return a copy of a store, next to it, with a change applied."""
    copy = Path(shutil.copytree(root, root.with_name(name)))
    for damage in damages:
        damage(copy)
    return copy


def crashed_copy(shop: Shop) -> Path:
    """Return a copy of an open store, as if its process had been killed after dispatching."""
    assert shop.store.embedded.wait_dispatched(PATIENCE_S)
    shop.store.removal.settle()
    return crash_image(shop.root, shop.root.with_name("killed"))


def as_java_leaves_it(root: Path) -> None:
    """Remove the files that only Firetrail writes."""
    for name in ("firetrail.watermark", "firetrail.inventory"):
        (root / name).unlink(missing_ok=True)
    (root / "lock").write_bytes(LOCK_CONTENT)


def as_java_crashes(root: Path) -> None:
    """Remove the files that only Firetrail writes, and make the store look crashed."""
    as_java_leaves_it(root)
    (root / "abort").write_bytes(b"")
    (root / "checkpoint").unlink(missing_ok=True)
