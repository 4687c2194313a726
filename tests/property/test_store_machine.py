"""A store and a model of it take the same steps, and must agree after each crash and each reopen.

Hypothesis chooses the steps: messages of all kinds, reads, flushes, time passing, retention, clean
and unclean ends. The model is a list of the messages put, with the places that the store returned,
and how many of them were promised to survive. Files are so small that all three kinds roll. Threads
and the disk are simulated (``tests/crash``), so an example is the same each time it runs.

After a kill the same folder is opened again; it has the contents of the page cache. After a power
loss an image of the folder is opened that lacks some of the writes that were not synced.
"""

import random
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.crash.files_check import check_files
from tests.crash.oracle import COMMIT, PREPARED, ROLLBACK, History, Violation, check_store
from tests.crash.world.disk import Disk, random_image, write_image
from tests.crash.world.simulation import DEEP, SLOTS, Moment, Process, scratch, tiny_config

from firetrail import FiretrailError, GetStatus, Message

TOPICS = st.sampled_from(("orders", "t"))
QUEUES = st.integers(0, 1)
TAGS = st.sampled_from((None, "red", "green"))
KEYS = st.lists(st.sampled_from(("k1", "k2", "k3", "k4")), max_size=3, unique=True)
PADDINGS = st.sampled_from((0, 1, 60, 300, 900))
BATCHES = st.lists(st.tuples(st.sampled_from((0, 60, 300)), KEYS), min_size=1, max_size=5)
LONG = {"colour": "x" * 700}


class StoreMachine(RuleBasedStateMachine):
    """One folder, its store opened and closed again and again."""

    mode: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.config = tiny_config(self.mode, property_crc=True)
        self.history = History()
        self.serial = 0
        self._scratch = scratch()
        self.base = self._scratch.__enter__()
        self.generation = 0
        self.process: Process

    @initialize(seed=st.integers(0, 999))
    def begin(self, seed: int) -> None:
        self.seed = seed
        (self.base / "0").mkdir()
        self.open(Disk(self.base / "0"))

    def open(self, disk: Disk, now: float = 0.0) -> None:
        self.seed += 1
        process = Process(disk, self.config, self.history, self.seed, 0.2, now)
        try:
            process.open()
        except FiretrailError as error:
            raise Violation(f"I1: refused to open: {error}") from error
        self.process = process

    @property
    def store(self):  # type: ignore[no-untyped-def]
        return self.process.store

    def body(self, padding: int) -> bytes:
        self.serial += 1
        return b"%d:" % self.serial + b"\xa5" * padding

    # -- putting ------------------------------------------------------------------------------

    @rule(topic=TOPICS, queue=QUEUES, padding=PADDINGS, tags=TAGS, keys=KEYS, long=st.booleans())
    def put(
        self, topic: str, queue: int, padding: int, tags: str | None, keys: list[str], long: bool
    ) -> None:
        message = Message(topic, self.body(padding), tags, keys, queue_id=queue)
        if long:
            message.properties = LONG
        assert self.process.put(message).ok

    @rule(topic=TOPICS, level=st.integers(1, 3), keys=KEYS)
    def put_delayed(self, topic: str, level: int, keys: list[str]) -> None:
        assert self.process.put(Message(topic, self.body(5), keys=keys, delay_level=level)).ok

    @rule(topic=TOPICS, kind=st.sampled_from((PREPARED, COMMIT, ROLLBACK)), keys=KEYS)
    def put_transaction(self, topic: str, kind: int, keys: list[str]) -> None:
        assert self.process.put(Message(topic, self.body(20), keys=keys, sys_flag=kind)).ok

    @rule(topic=TOPICS, queue=QUEUES, items=BATCHES)
    def put_batch(self, topic: str, queue: int, items: list[tuple[int, list[str]]]) -> None:
        messages = [
            Message(topic, self.body(padding), keys=keys, queue_id=queue) for padding, keys in items
        ]
        assert self.process.put_batch(messages).ok

    # -- reading ------------------------------------------------------------------------------

    @rule(topic=TOPICS, queue=QUEUES, offset=st.integers(0, 40), count=st.integers(1, 5))
    def get(self, topic: str, queue: int, offset: int, count: int) -> None:
        known = {
            m.queue_offset: m
            for m in self.history.messages
            if m.is_in_queue and m.queue == (topic, queue)
        }
        result = self.store.get(topic, queue, offset, count)
        records = list(result.messages())
        assert len(records) <= count
        assert (result.status is GetStatus.FOUND) == bool(records)
        if records:
            assert [r.queue_offset for r in records] == list(range(offset, result.next_offset))
        for record in records:
            assert record.body == known[record.queue_offset].body
        if records and self.mode == "sync":
            # Messages that a consumer has seen must not vanish.
            seen = self.history.position_of(records[-1].physical_offset + records[-1].size)
            self.history.promise(power_loss=seen)

    @rule(topic=TOPICS, key=st.sampled_from(("k1", "k2", "k3", "k4")))
    def query(self, topic: str, key: str) -> None:
        found = [record.physical_offset for record in self.store.query(topic, key)]
        known = [m.physical_offset for m in self.history.messages if m.topic == topic]
        having = {
            m.physical_offset for m in self.history.messages if m.topic == topic and key in m.keys
        }
        assert found == sorted(set(found) & having, reverse=True)
        assert set(found) <= set(known)

    @rule()
    def check_everything(self) -> None:
        count = len(self.history.messages)
        if self.mode == "pool":
            self.process.flush()
        assert check_store(self.store, self.history, count) == count

    # -- events between the puts --------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.process.flush()

    @rule(seconds=st.sampled_from((0.001, 0.3, 1.1, 15.0)))
    def time_passes(self, seconds: float) -> None:
        self.process.world.pause(seconds)

    @rule()
    def settle(self) -> None:
        self.process.world.settle()

    @rule()
    def expire(self) -> None:
        self.process.expire()

    # -- ends ---------------------------------------------------------------------------------

    @rule()
    def close_and_reopen(self) -> None:
        count = len(self.history.messages)
        self.process.close()
        check_files(self.process.disk.root, SLOTS)
        self.history.promise(power_loss=count)
        self.open(self.process.disk, self.process.world.now)
        assert check_store(self.store, self.history, count) == count

    @rule()
    def kill_and_reopen(self) -> None:
        self.process.kill()
        self.open(self.process.disk, self.process.world.now)
        count = check_store(self.store, self.history, self.history.survive_kill)
        self.history.cut(count, durable=True)

    @rule(choice=st.integers(0, 2**32))
    def power_loss_and_reopen(self, choice: int) -> None:
        moment = Moment(self.process.disk.snapshot(), self.history)
        self.process.kill()
        self._reopen_image(moment, random.Random(choice))

    @rule(choice=st.integers(0, 2**32), again=st.integers(0, 40))
    def power_loss_during_recovery(self, choice: int, again: int) -> None:
        """After a kill, while the store is being opened."""
        self.process.kill()
        process = Process(self.process.disk, self.config, self.history, self.seed, 0.2)
        process.record()
        process.open()
        process.kill()
        moment = process.moments[min(again, len(process.moments) - 1)]
        self._reopen_image(moment, random.Random(choice))

    def _reopen_image(self, moment: Moment, source: random.Random) -> None:
        self.generation += 1
        folder = self.base / f"{self.generation}"
        how, image = random_image(moment.snapshot, source)
        write_image(image, folder)
        try:
            self.open(Disk(folder), self.process.world.now)
            count = check_store(self.store, self.history, self.history.survive_power_loss)
        except AssertionError as error:
            error.add_note(how)
            raise
        self.history.cut(count, durable=True)

    @precondition(lambda self: hasattr(self, "process"))
    @invariant()
    def is_writable(self) -> None:
        assert self.store.refusal == ""

    def teardown(self) -> None:
        if hasattr(self, "process"):
            self.process.kill()
        self._scratch.__exit__(None, None, None)


class SyncMachine(StoreMachine):
    mode = "sync"


class AsyncMachine(StoreMachine):
    mode = "async"


class PoolMachine(StoreMachine):
    mode = "pool"


HOW_MUCH = settings(
    max_examples=200 if DEEP else 15,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)

TestSync = SyncMachine.TestCase
TestSync.settings = HOW_MUCH
TestAsync = AsyncMachine.TestCase
TestAsync.settings = HOW_MUCH
TestPool = PoolMachine.TestCase
TestPool.settings = HOW_MUCH
