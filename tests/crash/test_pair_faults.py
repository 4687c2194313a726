"""Cuts, slow wires and failing disks between a master and its replica (T7, T12).

All of it is simulated: the replica stops, says why, and goes on when the cause is gone.
"""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.oracle import check_store
from tests.crash.world.pair import Pair, check_same_log, pair_config
from tests.crash.world.simulation import Producer

from firetrail import Message, PutStatus
from firetrail.errors import DiskFullError, StoreError, StoreReadOnlyError
from firetrail.replication.ha.ha_frames import HEADER, REPORT

CONFIG = pair_config("sync", "sync", property_crc=True)
FIRST_FRAMES = 330
"""Bytes of the first frames of a connection: two records of 150 bytes each, and their headers."""


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, CONFIG, seed=1, preemption=0.0)


def fill(pair: Pair, end: int) -> None:
    """Put messages up to an offset, without waiting for the replica."""
    producer = Producer(random.Random(2))
    while pair.master.broker_store.log.max_offset < end:
        pair.master.put_without_waiting(producer.message())


def test_a_cut_after_every_byte_of_the_first_frames(pair: Pair) -> None:
    """Each connection gets one byte further than the one before, or reports one byte more."""
    cuts = [(size, 1 << 40) for size in range(1, FIRST_FRAMES)]
    cuts += [(1 << 40, size) for size in range(1, 3 * REPORT.size)]
    pair.network.next_cuts.extend(cuts)
    with pair.running():
        fill(pair, 20_000)
        pair.world.block(lambda: not pair.network.next_cuts, 1000.0)
        pair.catch_up()
        check_same_log(pair)
        check_store(pair.replica.store, pair.history, len(pair.history.messages))
        assert pair.network.connections > len(cuts)
        assert not pair.errors


@pytest.mark.parametrize(
    ("delay_s", "bytes_per_s"), [(0.3, float("inf")), (0.0, 10_000.0), (0.3, 10_000.0)]
)
def test_a_slow_wire_only_delays(pair: Pair, delay_s: float, bytes_per_s: float) -> None:
    pair.network.to_replica.delay_s = pair.network.to_master.delay_s = delay_s
    pair.network.to_replica.bytes_per_s = bytes_per_s
    with pair.running():
        fill(pair, 20_000)
        pair.catch_up()
        check_same_log(pair)
        assert pair.network.connections == 1
        sent = 20_000 + HEADER.size
        assert pair.world.now > max(delay_s, sent / bytes_per_s)
        assert pair.master.put(Message("t", b"one more")).ok


@pytest.mark.parametrize("direction", ["to_replica", "to_master", "both"])
def test_a_silent_wire_is_given_up_after_20_seconds(pair: Pair, direction: str) -> None:
    network = pair.network
    links = [network.to_replica, network.to_master]
    silent = links if direction == "both" else [getattr(network, direction)]
    with pair.running():
        fill(pair, 3_000)
        pair.catch_up()
        for link in silent:
            link.is_silent = True
        begin = pair.world.now
        result = pair.master.put(Message("t", b"nobody hears it"))
        assert result.status is PutStatus.FLUSH_SLAVE_TIMEOUT
        pair.world.block(lambda: network.connections > 1, 60.0)
        assert 19 < pair.world.now - begin < 25
        assert pair.master.confirmed == 0
        for link in silent:
            link.is_silent = False
        network.cut_all()
        pair.catch_up()
        check_same_log(pair)


def test_a_full_disk_stops_the_replica_until_there_is_room(pair: Pair) -> None:
    with pair.running():
        fill(pair, 3_000)
        pair.catch_up()
        with pair.full_disk():
            fill(pair, 20_000)
            pair.master.flush()
            pair.world.block(lambda: bool(pair.errors), 60.0)
            pair.world.pause(5.0)
            error = pair.errors[-1]
            assert isinstance(error, DiskFullError)
            assert "replica/commitlog" in str(error)
            assert "free some or let retention delete older files" in str(error)
            assert pair.replica.broker_store.log.max_offset < 20_000
            refused = pair.master.put(Message("t", b"x"))
            assert refused.status in (PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.FLUSH_SLAVE_TIMEOUT)
        pair.catch_up()
        check_same_log(pair)
        check_store(pair.replica.store, pair.history, len(pair.history.messages))
        assert pair.master.put(Message("t", b"x")).ok


def failing(
    kind: str, part: str, persists: Callable[[], bool] | None = None
) -> Callable[[str, str], None]:
    """Return a hook that lets the first operation on a file fail, or all while it ``persists``."""
    failed: list[str] = []

    def fail(now: str, name: str) -> None:
        lasts = persists() if persists is not None else not failed
        if now == kind and name.startswith(part) and lasts:
            failed.append(name)
            raise OSError(errno.EIO, "Input/output error", name)

    return fail


@pytest.mark.parametrize(
    "part",
    [
        "commitlog/00000000000000000000",  # of records
        "commitlog/00000000000000008192",  # of a new file
    ],
)
def test_a_failed_sync_of_the_replica_is_final(pair: Pair, part: str) -> None:
    with pair.running():
        fill(pair, 1_000)
        pair.catch_up()
        confirmed = max(pair.reports)
        pair.replica.files.hooks.append(failing("sync", part))
        fill(pair, 12_000)
        pair.master.flush()
        pair.world.block(lambda: bool(pair.errors), 60.0)
        pair.world.pause(5.0)
        assert all(isinstance(error, StoreError) for error in pair.errors)
        assert isinstance(pair.errors[-1], StoreReadOnlyError)
        assert "Input/output error" in str(pair.errors[-1])
        assert "reopen the store" in str(pair.errors[-1])
        assert max(pair.reports) < 12_000
        assert max(pair.reports) >= confirmed
        assert pair.master.put(Message("t", b"x")).status is not PutStatus.PUT_OK


def test_an_error_of_the_replicas_disk_is_not_taken_for_a_lost_connection(pair: Pair) -> None:
    with pair.running():
        fill(pair, 1_000)
        pair.catch_up()
        # The allocator may fail first; it leaves the next attempt to the append, which reports it.
        pair.replica.files.hooks.append(failing("create", "commitlog/", lambda: not pair.errors))
        fill(pair, 12_000)
        pair.catch_up()  # the next attempt succeeds: nothing was written before
        assert [type(error) for error in pair.errors] == [StoreError]
        assert "the replica cannot store records: [Errno 5]" in str(pair.errors[0])
        check_same_log(pair)
