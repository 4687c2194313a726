"""Lives of a store in a simulated world: run it, record it, crash it, look at what is left."""

import copy
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.files_check import check_files
from tests.crash.oracle import (
    COMMIT,
    PREPARED,
    ROLLBACK,
    History,
    QueueKey,
    Stored,
    TornProperties,
    Violation,
    batch_of,
    check_store,
    stored,
    stored_batch,
)
from tests.crash.world.disk import Disk, Image, SimulatedFiles, Snapshot, random_image, write_image
from tests.crash.world.threads import World

from firetrail import FiretrailError, FlushMode, Message, PutResult, PutStatus, Store, StoreConfig
from firetrail.settings import descriptors
from firetrail.store import engine
from firetrail.store.evidence import inventory
from firetrail.store.root import folder

SLOTS = 8
TINY: dict[str, Any] = {
    "commit_log_file_size": 8192,
    "consume_queue_file_size": 200,
    "index_slots": SLOTS,
    "index_entries": 24,
    "max_message_size": 4096,
    "delete_interval_ms": 0,
    "destroy_forcibly_after_ms": 0,
}
"""Files so small that a few dozen messages roll all three kinds."""

MODES: dict[str, dict[str, Any]] = {
    "sync": {"flush": FlushMode.SYNC},
    "async": {"flush": FlushMode.ASYNC},
    "pool": {"flush": FlushMode.ASYNC, "write_buffer_pool": True, "write_buffer_count": 2},
}
DEEP = bool(os.environ.get("FIRETRAIL_DEEP"))
"""Whether to try much more than a test run has time for."""


def tiny_config(mode: str, **changes: Any) -> StoreConfig:
    """Settings of a store with tiny files."""
    return StoreConfig(**TINY | MODES[mode] | changes)


def scratch_parent() -> Path | None:
    """Return a folder whose files are in memory, or None if there is none."""
    shared_memory = Path("/dev/shm")
    return shared_memory if shared_memory.is_dir() else None


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder, in memory if possible; it is removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="firetrail-crash-", dir=scratch_parent()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def few_open_files() -> Iterator[None]:
    """Allow only two open files of queues: the others are closed and reopened all the time."""
    least, descriptors.FILES_LEAST = descriptors.FILES_LEAST, 2
    try:
        yield
    finally:
        descriptors.FILES_LEAST = least


@contextmanager
def lists_at_once() -> Iterator[None]:
    """New queues and index files are listed in the next round of the housekeeper."""
    interval, inventory.NOTE_INTERVAL_S = inventory.NOTE_INTERVAL_S, 0.0
    try:
        yield
    finally:
        inventory.NOTE_INTERVAL_S = interval


class Process:
    """A process that has the store in ``disk.root`` open, from its start to its end."""

    files_class: type[SimulatedFiles] = SimulatedFiles

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        history: History,
        seed: int,
        preemption: float = 0.0,
        now: float = 0.0,
    ) -> None:
        self.disk = disk
        self.config = config
        self.history = history
        self.world = World(seed, preemption, now)
        self.files = self.files_class(disk, self.world)
        self.moments: list[Moment] = []
        self._store: Store | None = None
        self._threading = self.world.replaces_threading()

    def open(self) -> Store:
        """Open the store; errors of recovery are raised."""
        self._threading.__enter__()
        try:
            self._store = Store.open(self.disk.root, self.config, system=self.files.system())
        except BaseException:
            self._end()
            raise
        return self._store

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    def close(self) -> None:
        try:
            self.store.close()
        finally:
            self._end()

    def kill(self) -> None:
        """SIGKILL."""
        self._end()

    def _end(self) -> None:
        self.world.abandon()
        self._release()
        self._threading.__exit__(None, None, None)
        for failure in self.world.failures:
            raise Violation("I8: a thread of the store died") from failure

    def _release(self) -> None:
        """Do what the operating system does for a process that has ended."""
        self.files.abandon()
        folder._held.pop(self.disk.root.resolve(), None)  # the lock went with its descriptor
        for opened in list(engine._engines):
            if opened.root == self.disk.root.absolute():
                opened._stopped = True  # otherwise it would warn that it was not closed

    def record(self) -> None:
        """Keep a snapshot of the disk before each operation from now on."""

        def keep(kind: str, name: str) -> None:
            snapshot = self.disk.snapshot(f"{self.files.operations}: {kind} {name}")
            self.moments.append(Moment(snapshot, copy.copy(self.history), self._visible()))

        self.files.hooks.append(keep)

    def _visible(self) -> dict[QueueKey, int]:
        """Return the end offset of each queue, as consumers see it."""
        store = self._store
        if store is None or self.config.flush is not FlushMode.SYNC:
            return {}
        queues = ((topic, queue_id) for topic in store.topics() for queue_id in store.queues(topic))
        return {queue: store.max_offset(*queue) for queue in queues}

    # -- what a program does ------------------------------------------------------------------

    def put(self, message: Message) -> PutResult:
        result = self.store.try_put(message)
        if result.physical_offset >= 0:
            self._note([stored(message, result)], result)
        return result

    def put_batch(self, messages: Sequence[Message]) -> PutResult:
        """Put a batch in the same way."""
        result = self.store.try_put_batch(batch_of(messages))
        if result.physical_offset >= 0:
            self._note(stored_batch(messages, result, self.config.property_crc), result)
        return result

    def _note(self, new: list[Stored], result: PutResult) -> None:
        self.history.add(new)
        if result.status is PutStatus.PUT_OK:
            count = self.history.position_of(result.physical_offset + result.size)
            if self.config.flush is FlushMode.SYNC:
                self.history.promise(power_loss=count)
            elif not self.config.write_buffer_pool:
                self.history.promise(kill=count)

    def flush(self) -> None:
        """Flush; after that, everything that was put is on the disk."""
        count = len(self.history.messages)
        self.store.flush()
        self.history.promise(power_loss=count)

    def expire(self) -> int:
        """Delete all old files of the log, expired or not."""
        removed = self.store.delete_expired(forced=True)
        self.history.log_min = self.store.log_range[0]
        return removed


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot, and what had been promised by then."""

    snapshot: Snapshot
    promised: History
    visible: dict[QueueKey, int] = field(default_factory=dict)

    def history(self, final: History) -> History:
        """Return everything that was put, with the beginning of the log at this moment."""
        history = copy.copy(final)
        history.log_min = self.promised.log_min
        return history

    def least(self, final: History) -> int:
        """Return how many messages must survive a power loss: those acknowledged or seen."""
        seen = [
            number
            for number, message in enumerate(final.messages, 1)
            if message.is_in_queue and message.queue_offset < self.visible.get(message.queue, 0)
        ]
        return max([self.promised.survive_power_loss, *seen])


# -- messages -------------------------------------------------------------------------------------


class Producer:
    """Makes messages of all kinds, each with a body that no other has."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._serial = itertools.count()

    def message(self) -> Message:
        source = self._source
        number = next(self._serial)
        kind = source.choice(("plain", "plain", "tags", "keys", "all", "delay", "transaction"))
        message = Message(
            source.choice(("orders", "t")),
            b"%d:" % number + source.randbytes(source.choice((0, 7, 60, 300))),
            queue_id=source.randrange(2),
            flag=number,
        )
        if kind in ("tags", "all"):
            message.tags = source.choice(("red", "green"))
        if kind in ("keys", "all"):
            message.keys = source.sample(("k1", "k2", "k3", f"n{number}"), source.randint(1, 3))
        if kind == "all":
            message.properties = {"colour": "x" * source.choice((1, 30, 700))}
        if kind == "delay":
            message.delay_level = source.randint(1, 2)
        if kind == "transaction":
            message.sys_flag = source.choice((PREPARED, COMMIT, ROLLBACK))
            message.keys = [f"tx{number}"]
        return message

    def batch(self) -> list[Message]:
        source = self._source
        topic, queue_id = source.choice(("orders", "t")), source.randrange(2)
        return [
            Message(
                topic,
                b"%d:" % next(self._serial) + source.randbytes(source.choice((0, 50))),
                queue_id=queue_id,
                tags=source.choice((None, "red")),
                keys=source.choice(((), ("k1",))),
            )
            for _ in range(source.randint(1, 5))
        ]


def run_workload(process: Process, source: random.Random, steps: int) -> None:
    """Use the store in every way, as the generator will have it."""
    producer = Producer(source)
    for _ in range(steps):
        process.world.now += source.choice((0, 0.001, 0.02))
        step = source.random()
        if step < 0.70:
            process.put(producer.message())
        elif step < 0.80:
            process.put_batch(producer.batch())
        elif step < 0.86:
            process.flush()
        elif step < 0.92:
            process.world.settle()
        elif step < 0.98:
            process.world.pause(source.choice((0.3, 1.1)))
        else:
            process.expire()


# -- after a crash --------------------------------------------------------------------------------


class Checker:
    """Opens images of crashed stores and holds them against the history."""

    def __init__(
        self, below: Path, config: StoreConfig, process_class: type[Process] = Process
    ) -> None:
        self.config = config
        self.images = 0
        self.torn_properties = 0
        """Images left alone because a record had lost its properties and had no checksum."""
        self._folder = below
        self._process_class = process_class

    def check(
        self,
        image: Image,
        history: History,
        least: int,
        *,
        exactly: int | None = None,
        then: Callable[[Process], None] | None = None,
    ) -> int:
        """Recover an image, compare it, close it and compare its files.

        Return the number of messages, which must be at least ``least``. ``then`` is called with
        the open store, of which every operation was recorded.
        """
        self.images += 1
        root = self._folder / f"image-{self.images}"
        write_image(image, root)
        history = history.copy()
        process = self._process_class(Disk(root), self.config, history, self.images)
        if then is not None:
            process.record()
        try:
            count = self._check_open(process, least, exactly)
            if then is not None:
                then(process)
        except TornProperties as torn:
            process.kill()
            if torn.place < least or self.config.property_crc:
                raise
            self.torn_properties += 1
            return -1
        except BaseException:
            process.kill()
            raise
        process.close()
        check_files(root, SLOTS)
        shutil.rmtree(root)
        return count

    def _check_open(self, process: Process, least: int, exactly: int | None) -> int:
        try:
            store = process.open()
        except FiretrailError as error:
            raise Violation(f"I1: refused to open: {error}") from error
        recovery = store.recovery
        if recovery.restored_queues or recovery.restored_index:
            raise Violation(f"I9: files were missed that no crash takes: {recovery}")
        count = check_store(store, process.history, least)
        if exactly is not None and count != exactly:
            raise Violation(f"I5: {count} messages recovered, {exactly} the time before")
        process.history.cut(count, durable=True)
        return count

    def check_again_and_again(
        self, image: Image, history: History, least: int, source: random.Random
    ) -> None:
        """Crash once more during the recovery of an image, and after messages that were put then.

        An interrupted recovery must end in the same state as an uninterrupted one (I5), and
        messages that it has dropped must never come back (I6).
        """
        recovering: list[Moment] = []
        later: list[Moment] = []
        later_history: list[History] = []

        def go_on(process: Process) -> None:
            recovering.extend(process.moments)
            run_workload(process, source, 8)
            later.extend(process.moments[len(recovering) :])
            later_history.append(process.history.copy())

        count = self.check(image, history, least, then=go_on)
        if count < 0:
            return
        for moment in source.sample(recovering, min(2, len(recovering))):
            _, again = random_image(moment.snapshot, source)
            self.check(again, history, least, exactly=count)
        for moment in source.sample(later, min(2, len(later))):
            _, again = random_image(moment.snapshot, source)
            after = later_history[0]
            self.check(again, moment.history(after), moment.least(after))


def survey(
    config: StoreConfig,
    seed: int,
    source: random.Random,
    process_class: type[Process] = Process,
    images_per_moment: int = 1,
    chain_share: float = 0.15,
    share: float = 1.0,
) -> Checker:
    """Let the power go at every operation of a run, or at a ``share`` of them.

    Raises the first Violation that is found.
    """
    with scratch() as below, lists_at_once():
        (below / "live").mkdir()
        process = process_class(Disk(below / "live"), config, History(), seed, preemption=0.2)
        process.record()
        process.open()
        run_workload(process, source, 60)
        process.close()
        checker = Checker(below, config, process_class)
        for moment in process.moments:
            if share < 1.0 and source.random() >= share:
                continue
            for _ in range(images_per_moment):
                how, image = random_image(moment.snapshot, source)
                history = moment.history(process.history)
                least = moment.least(process.history)
                try:
                    if source.random() < chain_share:
                        checker.check_again_and_again(image, history, least, source)
                    else:
                        checker.check(image, history, least)
                except AssertionError as error:
                    error.add_note(f"seed {seed}, before {moment.snapshot.label}, {how}")
                    raise
        return checker
