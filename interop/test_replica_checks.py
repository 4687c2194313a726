"""Replicas that are empty, too short, too long or of another history, and a Java master.

The tests named ``test_java_…`` keep a record of what Java does. Firetrail does the opposite on
purpose, and the test beside it says what.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.peer import Sizes
from interop.replicas import (
    NAME,
    TOPIC,
    check_same,
    create_topic,
    follower_of,
    log_bytes,
    log_end,
    log_files,
    reached,
    routed,
    send_some,
)
from interop.servers import (
    BROKER_CONF,
    LINES,
    SLAVE,
    Servers,
    ha_address,
    our_name_server,
)
from tests.torture.disk_failures import can_mount, small_file_system

from firetrail import Message
from firetrail.broker.replica.hand_over.live_master_check import live_master
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.replication.ha.ha_probe import is_ha_port
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import REQUEST_MAX_S, Master, MasterAddress
from firetrail.replication.replica.rewind import rewind
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

LIMIT_S = 180.0
pytestmark = pytest.mark.time_limit(LIMIT_S)
SIZES = Sizes(log=1 << 20, queue=60_000, slots=1000, entries=10_000)
CONF = (
    f"{BROKER_CONF}mappedFileSizeCommitLog={SIZES.log}\nmaxMessageSize=200000\n"
    "haSendHeartbeatInterval=500\n"
)
MASTERS_STORE = SIZES.config(max_message_size=200_000)
REPLICAS_STORE = MASTERS_STORE.replace(role=BrokerRole.SLAVE)
FILES, DELETED = 5, 2
QUIET_S = 1.2
"""Longer than two heartbeats."""


class JavaMaster(NamedTuple):
    """A Java master whose log has several files, and a copy of its folder from an earlier time."""

    java: Servers
    namesrv: str
    broker: str
    root: Path
    earlier: Path

    @property
    def end(self) -> int:
        """The end of its log."""
        return asyncio.run(log_end(self.namesrv, self.broker))


def write(root: Path, end: int, name: str) -> None:
    """Put messages with Firetrail until the log reaches ``end``."""
    with BrokerStore.open(root, MASTERS_STORE, system=SYSTEM) as store:
        number = 0
        while store.log.max_offset < end:
            body = b"%s %d:" % (name.encode(), number) + bytes(number * 131 % 2000)
            store.embedded.put(Message(TOPIC, body, queue_id=number % 4, wait_for_flush=False))
            number += 1
        store.embedded.wait_dispatched()


@pytest.fixture(scope="module", params=LINES)
def line(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(folder: Path) -> Path:
    """Write the folder of a master, and keep it as it was with one and a half files."""
    write(folder / NAME, SIZES.log * 3 // 2, "early")
    shutil.copytree(folder / NAME, folder / "earlier")
    write(folder / NAME, SIZES.log * FILES - SIZES.log // 2, "late")
    assert len(log_files(folder / NAME)) == FILES
    return folder


def run_master(line: str, folder: Path) -> Iterator[JavaMaster]:
    java = Servers(line, folder, settings=CONF)
    with our_name_server() as namesrv, java.broker(namesrv, NAME, signal.SIGKILL) as broker:
        asyncio.run(create_topic(broker))
        asyncio.run(routed(namesrv))
        yield JavaMaster(java, namesrv, broker, folder / NAME, folder / "earlier")


@pytest.fixture(scope="module")
def master(line: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaMaster]:
    """A master whose log begins at 0."""
    yield from run_master(line, written(tmp_path_factory.mktemp(line)))


@pytest.fixture(scope="module")
def aged(line: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaMaster]:
    """A master whose oldest files were deleted."""
    folder = written(tmp_path_factory.mktemp(f"{line}-aged"))
    for path in sorted((folder / NAME / "commitlog").iterdir())[:DELETED]:
        path.unlink()
    yield from run_master(line, folder)


@pytest.fixture(scope="module")
def young(line: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaMaster]:
    """A master whose log has one file."""
    folder = tmp_path_factory.mktemp(f"{line}-young")
    write(folder / NAME, SIZES.log // 2, "early")
    yield from run_master(line, folder)


class Wire:
    """A connection to an HA port that is used without any code of Firetrail."""

    def __init__(self, broker: str) -> None:
        host, _, port = ha_address(broker).rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.settimeout(0.1)
        self._data = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def report(self, offset: int) -> None:
        self._socket.sendall(struct.pack(">q", offset))

    def frames(self, seconds: float, enough: int = 1 << 62) -> list[tuple[int, bytes]]:
        """Return what the master sends within ``seconds``, or until ``enough`` bytes arrived."""
        found: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and sum(len(body) for _, body in found) < enough:
            try:
                data = self._socket.recv(1 << 20)
            except TimeoutError:
                continue
            assert data, "the master has closed the connection"
            self._data += data
            while (frame := self._next()) is not None:
                found.append(frame)
        return found

    def _next(self) -> tuple[int, bytes] | None:
        if len(self._data) < 12:
            return None
        offset, size = struct.unpack(">qi", self._data[:12])
        if len(self._data) < 12 + size:
            return None
        body, self._data = self._data[12 : 12 + size], self._data[12 + size :]
        return offset, body

    @property
    def is_closed(self) -> bool:
        """Whether the master closes the connection within a short time."""
        try:
            self.frames(QUIET_S)
        except (AssertionError, ConnectionError):
            return True
        return False


def asked(broker: str, offset: int, enough: int = 1 << 62) -> list[tuple[int, bytes]]:
    """Return what a master sends to a replica that reports this offset."""
    with Wire(broker) as wire:
        wire.report(offset)
        return wire.frames(QUIET_S if enough > 1 << 60 else LIMIT_S, enough)


# -- from an empty folder ---------------------------------------------------------------------


async def followed_to_the_end(master: JavaMaster, root: Path) -> int:
    """Follow with a replica in ``root`` until it has everything; return the end of the log."""
    await send_some(master.namesrv, 3, root.name)
    end = await log_end(master.namesrv, master.broker)
    async with follower_of(root, master.broker, REPLICAS_STORE) as (store, follower):
        while store.log.max_offset < end:
            await asyncio.sleep(0.02)
        assert follower.status.state is FollowerState.FOLLOWING
    return end


async def test_an_empty_replica_gets_the_whole_log(master: JavaMaster, tmp_path: Path) -> None:
    end = await followed_to_the_end(master, tmp_path / "empty")
    check_same(master.root, tmp_path / "empty", 0, end)


async def test_an_empty_replica_gets_a_log_of_one_file(young: JavaMaster, tmp_path: Path) -> None:
    assert len(log_files(young.root)) == 1
    end = await followed_to_the_end(young, tmp_path / "r")
    check_same(young.root, tmp_path / "r", 0, end)


async def test_a_full_disk_stops_a_replica_until_there_is_room(
    master: JavaMaster, tmp_path: Path
) -> None:
    if not can_mount():
        pytest.skip("this user may not mount file systems")
    root = tmp_path / "disk" / "r"
    with small_file_system(tmp_path / "disk", SIZES.log * (FILES - 1) // 1024) as grow:
        async with follower_of(root, master.broker, REPLICAS_STORE) as (store, follower):
            error = await reached(follower, FollowerState.FAILED)
            assert f"{root / 'commitlog'}" in error and "no space for" in error
            assert "free some or let retention delete older files" in error
            assert next(store.embedded.read(TOPIC)).body.startswith(b"early 0:")
            whole = store.log.max_offset
            assert 0 < whole < SIZES.log * (FILES - 1)
            assert log_bytes(root, 0, whole) == log_bytes(master.root, 0, whole)
            grow()
            end = await log_end(master.namesrv, master.broker)
            while store.log.max_offset < end:
                await asyncio.sleep(0.02)
            assert await reached(follower, FollowerState.FOLLOWING) == ""
        check_same(master.root, root, 0, end)


def test_java_sends_its_last_file_to_an_empty_replica(master: JavaMaster, aged: JavaMaster) -> None:
    for each in (master, aged):
        frames = asked(each.broker, 0, 1)
        assert frames[0][0] == each.end // SIZES.log * SIZES.log == SIZES.log * (FILES - 1)


def test_java_sends_from_the_second_byte_if_asked_for_it(master: JavaMaster) -> None:
    """This is what a replica of Firetrail relies on."""
    sent = b"".join(body for _, body in asked(master.broker, 1, SIZES.log + 1000))
    assert sent == log_bytes(master.root, 1, 1 + len(sent))


async def test_a_master_that_runs_is_not_replaced_by_force(master: JavaMaster) -> None:
    """Java does not know the request for the status of a broker, but tells its role."""
    client = RemotingClient()
    try:
        found = await live_master(client, master.broker)
    finally:
        await client.close()
    assert found.obstacle.startswith(f"its master {master.broker} runs, and messages that it acc")


async def test_the_ha_port_of_a_master_is_recognised(master: JavaMaster) -> None:
    assert await is_ha_port(ha_address(master.broker))
    assert not await is_ha_port(master.broker)


async def test_a_replica_continues_where_it_stopped(master: JavaMaster, tmp_path: Path) -> None:
    shutil.copytree(master.earlier, tmp_path / "r")
    end = await followed_to_the_end(master, tmp_path / "r")
    check_same(master.root, tmp_path / "r", 0, end)


async def test_a_replica_continues_at_the_end_of_a_file(master: JavaMaster, tmp_path: Path) -> None:
    root = tmp_path / "r"
    (root / "commitlog").mkdir(parents=True)
    shutil.copy(master.earlier / "commitlog" / f"{0:020}", root / "commitlog")
    end = await followed_to_the_end(master, root)
    check_same(master.root, root, 0, end)


async def test_an_empty_replica_begins_at_the_oldest_file(aged: JavaMaster, tmp_path: Path) -> None:
    end = await followed_to_the_end(aged, tmp_path / "r")
    assert min(log_files(tmp_path / "r")) == DELETED * SIZES.log
    check_same(aged.root, tmp_path / "r", DELETED * SIZES.log, end)


# -- of another history -----------------------------------------------------------------------


async def refused(master: JavaMaster, root: Path, state: FollowerState) -> str:
    """Return why a replica does not follow; it keeps what it has, and can be read."""
    before = log_files(root)
    async with follower_of(root, master.broker, REPLICAS_STORE) as (store, follower):
        error = await reached(follower, state)
        await send_some(master.namesrv, 3, root.name)
        assert next(store.embedded.read(TOPIC)).body.startswith(b"early 0:")
    assert log_files(root) == before
    return error


async def test_a_replica_of_another_history_does_not_follow(
    master: JavaMaster, tmp_path: Path
) -> None:
    shutil.copytree(master.earlier, tmp_path / "r")
    write(tmp_path / "r", SIZES.log * 2 + 1000, "other")
    error = await refused(master, tmp_path / "r", FollowerState.DIVERGED)
    assert "their records at offset" in error and "differ" in error


async def test_a_replica_that_is_longer_does_not_follow(master: JavaMaster, tmp_path: Path) -> None:
    shutil.copytree(master.earlier, tmp_path / "r")
    write(tmp_path / "r", SIZES.log * FILES - 1000, "other")
    error = await refused(master, tmp_path / "r", FollowerState.DIVERGED)
    assert "the replica has the log up to" in error and "the master only up to" in error


@pytest.mark.parametrize("files", [2, FILES - 1, FILES + 1])
async def test_a_rewound_replica_follows(master: JavaMaster, tmp_path: Path, files: int) -> None:
    """It may be shorter or longer than the master; both have one and a half files in common."""
    root = tmp_path / "r"
    shutil.copytree(master.earlier, root)
    with BrokerStore.open(root, MASTERS_STORE, system=SYSTEM) as store:
        common = store.log.max_offset
    write(root, SIZES.log * files - 1000, "other")
    client = RemotingClient()
    try:
        done = await rewind(
            SYSTEM, root, Master(client, MasterAddress(master.broker), REQUEST_MAX_S)
        )
    finally:
        await client.close()
    assert done.plan.cut.end == common
    assert done.kept is not None
    end = await followed_to_the_end(master, root)
    check_same(master.root, root, 0, end)


def test_java_joins_two_histories(line: str, master: JavaMaster) -> None:
    """A Java slave of another history gets what comes after its end, in the middle of a record."""
    root = master.root.parent / SLAVE.folder(NAME)
    shutil.copytree(master.earlier, root)
    write(root, SIZES.log * 2 + 1000, "other")
    (base, own), *_ = reversed(log_files(root).items())
    with BrokerStore.open(root, MASTERS_STORE, system=SYSTEM) as store:
        end = store.log.max_offset
    with master.java.broker(master.namesrv, NAME, signal.SIGKILL, role=SLAVE):
        deadline = time.monotonic() + LIMIT_S / 2
        while not log_files(root).get(SIZES.log * (FILES - 1), b"").strip(b"\0"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert log_bytes(root, base, end) == own[: end - base]
    assert log_bytes(root, base, end) != log_bytes(master.root, base, end)
    rest = (end, SIZES.log * (FILES - 1))
    assert log_bytes(root, *rest) == log_bytes(master.root, *rest)


def test_java_splices_a_replica_that_is_longer(line: str, master: JavaMaster) -> None:
    """It waits until its log has reached the place; 4.9.7 closes if the replica reports again."""
    ahead = master.end + 2000
    with Wire(master.broker) as wire:
        wire.report(ahead)
        assert {frame for frame in wire.frames(QUIET_S)} == {(ahead, b"")}
        asyncio.run(send_some(master.namesrv, 40))
        frames = [frame for frame in wire.frames(LIMIT_S, 100) if frame[1]]
        assert frames[0][0] == ahead
        assert frames[0][1] == log_bytes(master.root, ahead, ahead + len(frames[0][1]))
    with Wire(master.broker) as wire:
        ahead = master.end + 2000
        wire.report(ahead)
        wire.frames(QUIET_S)
        wire.report(ahead)
        assert wire.is_closed is (line == "v4")


# -- stuck ------------------------------------------------------------------------------------


async def test_a_replica_whose_place_was_deleted_is_stuck(aged: JavaMaster, tmp_path: Path) -> None:
    shutil.copytree(aged.earlier, tmp_path / "r")
    error = await refused(aged, tmp_path / "r", FollowerState.STUCK)
    assert f"the master has deleted everything before {DELETED * SIZES.log}" in error


def test_java_sends_nothing_but_heartbeats_to_a_replica_that_is_stuck(aged: JavaMaster) -> None:
    for offset in (100_000, SIZES.log * FILES, SIZES.log * (FILES + 1)):
        frames = asked(aged.broker, offset)
        assert frames and set(frames) == {(offset, b"")}


# -- of another shape -------------------------------------------------------------------------


async def test_files_of_another_length_are_refused(master: JavaMaster, tmp_path: Path) -> None:
    config = REPLICAS_STORE.for_files(commit_log_file_size=SIZES.log * 2)
    async with follower_of(tmp_path / "r", master.broker, config) as (_, follower):
        error = await reached(follower, FollowerState.FAILED)
    assert f"the master's log files have {SIZES.log} bytes, the replica's {SIZES.log * 2}" in error
