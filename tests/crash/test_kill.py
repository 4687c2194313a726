"""Kills of real processes: the messages that they acknowledged are found by the next open.

One test kills at random moments, again and again over the same store, also during its recovery.
The other kills before the first, the second, ... operation on the file system of a short run,
until a run ends without meeting its kill.
"""

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.files_check import check_files
from tests.crash.oracle import History, Stored, Violation, check_store, stored
from tests.crash.world.child import Ended, Life, Server, message_of
from tests.crash.world.simulation import DEEP, MODES, SLOTS, scratch, tiny_config

from firetrail import FiretrailError, PutResult, PutStatus, Record, Store

KILLS = 200 if DEEP else 14
SEEDS = range(10) if DEEP else range(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


class Oracle:
    """The messages of all children over all their lives, and their acknowledgements."""

    def __init__(self, root: Path, mode: str, seed: int) -> None:
        self.root = root
        self.mode = mode
        self.seed = seed
        self.history = History()
        self.next_serial = 0
        self._since: list[Ended] = []

    def life(self, **more: Any) -> Life:
        settings = {"delete_interval_ms": 0, "destroy_forcibly_after_ms": 0}
        return Life(
            str(self.root), self.mode, self.seed, self.next_serial, settings=settings, **more
        )

    def note(self, ended: Ended) -> None:
        """Note the report of a child."""
        if ended.error:
            raise Violation(f"I8: {ended.error}")
        self.next_serial = max([self.next_serial, *(serial + 1 for serial in ended.sent)])
        self._since.append(ended)

    def check(self) -> None:
        """Open the store, hold it against everything known, and close it."""
        try:
            store = Store.open(self.root, tiny_config(self.mode))
        except FiretrailError as error:
            raise Violation(f"I1: refused to open: {error}") from error
        with store:
            self._enter(store)
            count = check_store(store, self.history, len(self.history.messages))
            self.history.cut(count, durable=True)
        check_files(self.root, SLOTS)
        self._since.clear()

    def _enter(self, store: Store) -> None:
        """Add what is new in the store to the history: the acknowledged and the unanswered."""
        log_min = store.log_range[0]
        if log_min != self.history.log_min and not any(ended.expired for ended in self._since):
            raise Violation(f"I1: the log begins at {log_min}, nothing was deleted")
        self.history.log_min = log_min
        known = {message.physical_offset for message in self.history.messages}
        found = {
            int(record.body.partition(b":")[0]): record
            for record in walk(store)
            if record.physical_offset not in known
        }
        sent = {serial for ended in self._since for serial in ended.sent}
        acked = {n: place for ended in self._since for n, place in ended.acknowledged.items()}
        for serial in found.keys() - sent:
            raise Violation(f"I6: message {serial} was not sent since the last look")
        for serial in self._promised() - found.keys():
            if acked[serial][1] >= log_min:
                raise Violation(f"I1: message {serial} was acknowledged and is gone")
            self.history.add([self._stored(serial, acked[serial])])
        for serial, record in found.items():
            place = [record.queue_offset, record.physical_offset, record.size, record.store_time]
            if acked.get(serial, place) != place:
                raise Violation(f"I2: message {serial} was put at {acked[serial]}, is at {place}")
            self.history.add([self._stored(serial, place)])

    def _promised(self) -> set[int]:
        """Return the messages that must have survived.

        With the write-buffer pool, these are only the flushed messages.
        """
        promised: set[int] = set()
        for ended in self._since:
            count = ended.flushed if self.mode == "pool" else len(ended.acknowledged)
            promised.update(list(ended.acknowledged)[:count])
        return promised

    def _stored(self, serial: int, place: list[int]) -> Stored:
        queue_offset, physical_offset, size, store_time = place
        result = PutResult(PutStatus.PUT_OK, 0, queue_offset, physical_offset, size, store_time)
        return stored(message_of(self.seed, serial), result)


def walk(store: Store) -> Iterator[Record]:
    offset, end = store.log_range
    size = store.config.commit_log_file_size
    while offset < end:
        record = store.at(offset)
        if record is not None:
            yield record
            offset += record.size
        else:
            offset = (offset // size + 1) * size


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_survives_kills_at_random_times(
    server: Server, tmp_path: Path, mode: str, seed: int
) -> None:
    source = random.Random(f"{mode} {seed}")
    oracle = Oracle(tmp_path / "store", mode, seed)
    for number in range(KILLS):
        # Every third one dies while it recovers what the one before has left.
        after_ms = source.uniform(1, 25) if number % 3 == 2 else source.uniform(5, 300)
        life = oracle.life(steps=150, threads=source.choice((1, 3)), kill_after_ms=after_ms)
        try:
            ended = server.run(life)
            assert ended.killed
            oracle.note(ended)
            if number % 3 != 1:
                oracle.check()
        except AssertionError as error:
            error.add_note(f"mode {mode}, seed {seed}, kill {number} after {after_ms:.1f} ms")
            raise
    print(f"seed {seed}: {KILLS} kills, {oracle.next_serial} messages")


@pytest.mark.parametrize("mode", MODES if DEEP else ["sync"])
def test_a_store_survives_a_kill_at_every_file_operation(server: Server, mode: str) -> None:
    """Of a first life, and of a second one that recovers it."""
    kinds = Counter[str]()
    with scratch() as folder:
        for second in (False, True):
            for number in itertools.count(1):
                oracle = Oracle(folder / f"{second}-{number}", mode, seed=1)
                if second:
                    oracle.note(server.run(oracle.life(steps=20, kill_at_operation=90)))
                ended = server.run(oracle.life(steps=3 if second else 12, kill_at_operation=number))
                oracle.note(ended)
                try:
                    oracle.check()
                except AssertionError as error:
                    error.add_note(f"killed before operation {number}: {ended.last_operation}")
                    raise
                shutil.rmtree(oracle.root)
                if not ended.killed:
                    break
                kinds[ended.last_operation] += 1
    print(f"{kinds.total()} points: {dict(kinds)}")
    assert set(kinds) >= {"give_name", "set_size", "allocate", "write", "sync", "sync_folder"}
    assert set(kinds) >= {"rename", "remove", "make_folder", "write_zeros"}
