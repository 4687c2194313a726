"""A sync that fails, a sync that takes long, a full disk: at each place where it can happen.

A run is repeated with the fault at its first, second, ... operation of the kind, until a run ends
without meeting it. Whatever happens, nothing is acknowledged that is not safe, messages that were
there can be read, and after a power loss the promises hold: with a failed sync the pages that it
should have written count as clean and are lost, so that a second one would succeed for nothing.
"""

import errno
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.oracle import History, Violation, check_store
from tests.crash.world.disk import NEW, Disk, random_image
from tests.crash.world.simulation import (
    DEEP,
    MODES,
    Checker,
    Process,
    Producer,
    scratch,
    tiny_config,
)

from firetrail import FiretrailError, Message, PutStatus

STEPS = 40
EVERY = 1 if DEEP else 2


class Fault:
    """Lets the n-th operation of a kind fail."""

    def __init__(self, kind: str, number: int, code: int, *, lasting: bool) -> None:
        self._kind = kind
        self._left = number
        self._code = code
        self._lasting = lasting
        self.hit = ""
        self.healed = False

    def __call__(self, kind: str, name: str) -> None:
        if kind != self._kind or self.healed or (self.hit and not self._lasting):
            return
        self._left -= 1
        if self._left <= 0:
            self.hit = self.hit or f"{kind} {name}"
            raise OSError(self._code, os.strerror(self._code), name)


def faulty_run(
    folder: Path, mode: str, fault: Fault, source: random.Random
) -> tuple[Process, list[PutStatus]]:
    """Open a store and put messages; how each put ended after the fault was met."""
    (folder / "live").mkdir()
    config = tiny_config(mode, property_crc=True)
    process = Process(Disk(folder / "live"), config, History(), seed=1)
    process.open()
    process.files.hooks.append(fault)
    producer = Producer(source)
    after = []
    for _ in range(STEPS):
        met = bool(fault.hit)
        result = (
            process.put(producer.message())
            if source.random() < 0.8
            else process.put_batch(producer.batch())
        )
        if met:
            after.append(result.status)
        if source.random() < 0.1:
            with_fault(process.flush)
        process.world.pause(source.choice((0.001, 0.2, 1.1)))
    return process, after


def with_fault(call: Callable[[], object]) -> bool:
    """Return whether the call succeeded; only Firetrail's own errors are allowed."""
    try:
        call()
    except FiretrailError:
        return False
    return True


def check_reads(process: Process) -> None:
    """Check that everything dispatched can be read, and that all of it was put."""
    bodies = {(m.queue, m.queue_offset): m.body for m in process.history.messages if m.is_in_queue}
    for topic in process.store.topics():
        for queue_id in process.store.queues(topic):
            for record in process.store.read(topic, queue_id):
                key = (record.topic, record.queue_id), record.queue_offset
                if bodies.get(key) != record.body:
                    raise Violation(f"I2: {key} reads {record.body!r}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "sync_folder"])
def test_failed_sync(mode: str, kind: str) -> None:
    places = Counter[str]()
    for number in itertools.count(1, EVERY):
        fault = Fault(kind, number, errno.EIO, lasting=False)
        source = random.Random(f"{mode} {kind} {number}")
        with scratch() as folder:
            process, after = faulty_run(folder, mode, fault, source)
            try:
                _check_failed_sync(folder, process, after, fault, source)
            except AssertionError as error:
                error.add_note(f"{kind} {number} failed: {fault.hit}")
                raise
        if not fault.hit:
            break
        places[fault.hit.split("/")[0]] += 1
    print(f"{places.total()} failed syncs: {dict(places)}")
    assert len(places) > 1


def _check_failed_sync(
    folder: Path, process: Process, after: list[PutStatus], fault: Fault, source: random.Random
) -> None:
    check_reads(process)
    # A file of the log may have been prepared ahead: its failure counts when it is needed.
    ahead = "commitlog" in fault.hit and (NEW in fault.hit or fault.hit.startswith("sync_folder"))
    if fault.hit and after.count(PutStatus.PUT_OK) > (20 if ahead else 1):
        raise Violation(f"I1: acknowledged after a failed sync: {after}")
    snapshot = process.disk.snapshot()
    promised = process.history.survive_power_loss
    closed = with_fault(process.close)
    if fault.hit and closed and not ahead:
        raise Violation(f"a store that has failed was closed as if it had not: {after}")
    checker = Checker(folder, process.config)
    for taken in (snapshot, process.disk.snapshot()):
        _, image = random_image(taken, source)
        checker.check(image, process.history, promised)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["create", "allocate"])
def test_a_store_continues_after_a_full_disk(mode: str, kind: str) -> None:
    """Let each allocation fail; then there is space again, and the store continues."""
    places = Counter[str]()
    for number in itertools.count(1, EVERY):
        fault = Fault(kind, number, errno.ENOSPC, lasting=True)
        source = random.Random(f"{mode} {kind} {number}")
        with scratch() as folder:
            process, after = faulty_run(folder, mode, fault, source)
            try:
                check_reads(process)
                assert set(after) <= {
                    PutStatus.PUT_OK,
                    PutStatus.CREATE_MAPPED_FILE_FAILED,
                    PutStatus.SERVICE_NOT_AVAILABLE,
                }
                fault.healed = True
                process.world.pause(5)
                result = process.put(Message("orders", b"space again"))
                assert result.ok, f"{result} after the disk had space again"
                process.flush()
                count = len(process.history.messages)
                assert check_store(process.store, process.history, count) == count
                process.close()
            except AssertionError as error:
                error.add_note(f"allocation {number} failed: {fault.hit}")
                raise
        if not fault.hit:
            break
        places[fault.hit.split("/")[0]] += 1
    print(f"{places.total()} times full: {dict(places)}")
    assert len(places) > 1


def test_a_slow_sync_leaves_one_put_unconfirmed() -> None:
    """A put says that it does not know, others can be read, and later ones are fine again."""
    with scratch() as folder:
        (folder / "live").mkdir()
        config = tiny_config("sync", sync_flush_timeout_ms=500)
        process = Process(Disk(folder / "live"), config, History(), seed=1)
        process.open()
        for number in range(5):
            assert process.put(Message("orders", b"%d" % number)).ok
        process.world.settle()
        slow = True

        def stall(kind: str, name: str) -> None:
            if slow and kind == "sync" and name.startswith("commitlog"):
                process.world.pause(5)

        process.files.hooks.append(stall)
        started = process.world.now
        assert process.put(Message("orders", b"5")).status is PutStatus.FLUSH_DISK_TIMEOUT
        assert 0.5 <= process.world.now - started < 1
        assert [record.body for record in process.store.read("orders")] == [
            b"%d" % number for number in range(5)
        ]
        slow = False
        process.world.pause(6)
        assert process.put(Message("orders", b"6")).ok
        count = len(process.history.messages)
        assert check_store(process.store, process.history, count) == 7
        process.close()
