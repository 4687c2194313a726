"""A master and a replica over real sockets."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, PropertyMock

import pytest
from tests.helpers import PATIENCE_S, eventually
from tests.replication.followers import LIMITS, MASTER, REPLICA, Master, following, running_loop
from tests.replication.logs import log_content

from firetrail import FlushMode
from firetrail.errors import FiretrailError, NotReachedError
from firetrail.replication.ha import ha_connection
from firetrail.replication.ha.ha_connection import has_unread
from firetrail.replication.ha.ha_frames import TransferReader, encode_report
from firetrail.replication.ha.ha_transfers import HATransfers
from firetrail.store.broker_store import BrokerStore
from firetrail.store.log.flusher import ThreadWaiter
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM


@pytest.fixture(params=["threads", "event loop"])
def master(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Master]:
    """A master whose replicas are served by threads, or by an event loop as far as possible."""
    with running_loop() if request.param == "event loop" else nullcontext() as loop:
        master = Master(tmp_path / "master", loop=loop)
        yield master
        master.close()


def assert_same_log(folder: Path, master: Master) -> None:
    end = master.store.log.max_offset
    assert log_content(folder / "replica")[:end] == log_content(folder / "master")[:end]


def bodies(store: BrokerStore) -> list[bytes]:
    store.embedded.wait_dispatched()
    return [message.body for message in store.embedded.read("T")]


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_replica_gets_what_the_master_has_and_will_have(
    master: Master, tmp_path: Path, flush: FlushMode
) -> None:
    master.fill(200)
    with following(tmp_path / "replica", master.address, REPLICA.replace(flush=flush)) as replica:
        master.wait_acked()
        assert bodies(replica) == bodies(master.store)
        master.fill(200)
        master.wait_acked()
        assert bodies(replica) == bodies(master.store)
    assert_same_log(tmp_path, master)


def test_a_replica_continues_where_it_stopped(master: Master, tmp_path: Path) -> None:
    for _ in range(4):
        master.fill(60)
        with following(tmp_path / "replica", master.address) as replica:
            master.wait_acked()
            assert replica.embedded.log_range == master.store.embedded.log_range
    assert_same_log(tmp_path, master)


def test_a_put_is_confirmed_only_after_the_replica_has_it(master: Master, tmp_path: Path) -> None:
    master.fill(1)
    waiter = ThreadWaiter(master.store.log.max_offset, SYSTEM.threads)
    master.acks.add(waiter)
    assert not waiter.wait(0.1)
    with following(tmp_path / "replica", master.address) as replica:
        assert waiter.wait(PATIENCE_S)
        assert replica.embedded.log_range == master.store.embedded.log_range


def test_a_stop_of_the_master_tells_replicas_that_they_have_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firetrail.replication.ha.ha_service.FINISH_S", PATIENCE_S)
    rare = replace(LIMITS, heartbeat_s=PATIENCE_S)  # heartbeats would bring the confirmation, too
    master = Master(tmp_path / "master", limits=rare)
    with following(tmp_path / "replica", master.address, errors=[]) as replica:
        master.fill(20)
        master.wait_acked()
        master.fill(1)
        master.service.stop()
        eventually(lambda: replica.log.confirmed_offset == master.store.log.max_offset)
        assert bodies(replica) == bodies(master.store)
    master.close()


def test_a_disconnected_replica_confirms_nothing(master: Master, tmp_path: Path) -> None:
    master.fill(1)
    with following(tmp_path / "replica", master.address):
        master.wait_acked()
    eventually(lambda: not master.service.connections)
    assert master.store.log.confirmed_offset == 0


def test_a_disconnected_replica_is_logged_once(
    master: Master, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that has never reported, such as a check of the port, is not a replica."""
    caplog.set_level("INFO", "firetrail.replication")
    master.fill(1)
    with following(tmp_path / "replica", master.address):
        master.wait_acked()
        address = master.service.connections[0].address
    eventually(lambda: not master.service.connections)
    socket.create_connection(("127.0.0.1", master.port.port), PATIENCE_S).close()
    master.service.stop()
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "disconnected" in line] == [
        f"replica {address} has disconnected"
    ]


def test_a_replica_ahead_of_its_master_is_not_served(master: Master, tmp_path: Path) -> None:
    master.fill(10)
    with following(tmp_path / "replica", master.address):
        master.wait_acked()
    other = Master(tmp_path / "other")
    try:
        other.fill(5)
        errors: list[FiretrailError] = []
        with following(tmp_path / "replica", other.address, errors=errors) as replica:
            eventually(lambda: bool(errors))
            assert replica.embedded.log_range == master.store.embedded.log_range
        assert isinstance(errors[0], NotReachedError)
        assert other.acks.in_sync(0) == 0
    finally:
        other.close()


def expect_rejection_after_report(master: Master) -> None:
    """Connect to a master, report, and expect to be disconnected; then close the master."""
    try:
        with socket.create_connection(("127.0.0.1", master.port.port)) as peer:
            peer.settimeout(PATIENCE_S)
            peer.sendall(encode_report(1))
            expect_rejection(master, peer)
    finally:
        master.close()


def expect_rejection(master: Master, peer: socket.socket) -> None:
    """Wait until the master has closed the connection, without a confirmation."""
    with suppress(ConnectionError):
        while peer.recv(4096):
            pass
    eventually(lambda: not master.service.connections)
    assert master.store.log.confirmed_offset == 0


@pytest.mark.parametrize(
    "content", [b"\x7f" * 8, b"\xff" * 8, b"\x80" * 4096, b"GET / HTTP/1.1\r\n"]
)
def test_hostile_bytes_confirm_nothing(master: Master, content: bytes) -> None:
    master.fill(1)
    with socket.create_connection(("127.0.0.1", master.port.port)) as peer:
        peer.settimeout(PATIENCE_S)
        peer.sendall(content)
        expect_rejection(master, peer)


def test_a_replica_that_confirms_too_much_is_disconnected(master: Master) -> None:
    master.fill(1)
    end = master.store.log.max_offset
    with socket.create_connection(("127.0.0.1", master.port.port)) as peer:
        peer.settimeout(PATIENCE_S)
        peer.sendall(encode_report(1))
        assert peer.recv(12)
        peer.sendall(encode_report(end + 1))
        expect_rejection(master, peer)


def test_half_a_report_is_waited_for(master: Master) -> None:
    master.fill(1)
    end = master.store.log.max_offset
    with socket.create_connection(("127.0.0.1", master.port.port)) as peer:
        peer.settimeout(PATIENCE_S)
        report = encode_report(end)
        peer.sendall(report[:4])
        peer.sendall(report[4:])
        master.wait_acked()


class TestInTheEventLoop:
    """The work of the loop, while the sender thread waits for a call that never comes."""

    @pytest.fixture
    def loop(self) -> Iterator[asyncio.AbstractEventLoop]:
        with running_loop() as loop:
            yield loop

    def test_the_loop_sends_what_it_puts(
        self, tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pause = PropertyMock(return_value=2 * PATIENCE_S)
        monkeypatch.setattr(HATransfers, "pause_s", pause)
        calm = replace(LIMITS, batch_size=1 << 20, heartbeat_s=3 * PATIENCE_S)
        master = Master(tmp_path / "master", limits=calm, loop=loop)
        try:
            master.fill(1)
            with following(tmp_path / "replica", master.address):
                master.wait_acked()
                (connection,) = master.service.connections
                eventually(lambda: connection._loop_socket is not None)
                # The thread was woken by the first report, and waits again.
                eventually(lambda: pause.call_count >= 2 and connection._wake._lock.locked())
                wake = Mock()
                monkeypatch.setattr(connection, "_wake", wake)
                for count in (1, 20, 3):
                    master.fill(count)
                    master.wait_acked()
                wake.set.assert_not_called()
                monkeypatch.undo()
                connection._wake.set()
        finally:
            master.close()

    def test_a_replica_that_reads_late_gets_everything_in_order(
        self, tmp_path: Path, loop: asyncio.AbstractEventLoop
    ) -> None:
        """The loop does not wait for it: the thread sends what the socket did not take."""
        config = MASTER.replace(role=BrokerRole.ASYNC_MASTER, commit_log_file_size=16 << 20)
        master = Master(tmp_path / "master", config, replace(LIMITS, batch_size=1 << 20), loop)
        try:
            master.fill(1)
            with socket.create_connection(("127.0.0.1", master.port.port)) as peer:
                peer.settimeout(PATIENCE_S)
                peer.sendall(encode_report(1))
                eventually(lambda: any(one._loop_socket for one in master.service.connections))
                for _ in range(100):
                    master.fill(100, size=900)
                end = master.store.log.max_offset
                assert end > 8 << 20
                reader = TransferReader()
                got = bytearray(b"\0")
                while len(got) < end:
                    for piece in reader.feed(memoryview(peer.recv(1 << 20))):
                        assert not piece.content or piece.offset == len(got)
                        got += piece.content
            assert bytes(got[1:]) == log_content(tmp_path / "master")[1:end]
        finally:
            master.close()

    def test_a_silent_replica_is_disconnected(
        self, tmp_path: Path, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
    ) -> None:
        hasty = replace(LIMITS, silence_s=0.2)
        master = Master(tmp_path / "master", limits=hasty, loop=loop)
        expect_rejection_after_report(master)
        assert "nothing for 0.2 seconds" in caplog.text

    def test_a_closed_loop_ends_the_connection(self, tmp_path: Path) -> None:
        loop = asyncio.new_event_loop()
        loop.close()
        master = Master(tmp_path / "master", loop=loop)
        expect_rejection_after_report(master)


def test_a_busy_event_loop_does_not_disconnect_its_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their reports have arrived, although nobody has read them."""
    looks = Mock(side_effect=has_unread)
    monkeypatch.setattr(ha_connection, "has_unread", looks)
    monkeypatch.setattr(ha_connection, "SILENCE_CHECKS", 100 * PATIENCE_S)
    limits = replace(LIMITS, silence_s=PATIENCE_S)
    held, release = threading.Event(), threading.Event()

    def hold_up() -> None:
        held.set()
        release.wait(PATIENCE_S)

    with running_loop() as loop:
        master = Master(tmp_path / "master", limits=limits, loop=loop)
        with following(tmp_path / "replica", master.address, errors=[]):
            eventually(lambda: any(each._loop_socket for each in master.service.connections))
            (connection,) = master.service.connections
            loop.call_soon_threadsafe(hold_up)
            assert held.wait(PATIENCE_S)
            eventually(lambda: has_unread(connection._raw))
            connection.session.read_at -= 2 * PATIENCE_S
            seen = looks.call_count
            eventually(lambda: looks.call_count >= seen + 2)
            connection._loop_read_at = SYSTEM.clock.monotonic()
            looks.side_effect = lambda _: False  # the loop has just taken the reports
            seen = looks.call_count
            eventually(lambda: looks.call_count >= seen + 2)
            looks.side_effect = has_unread
            release.set()
            assert not connection.is_closed
            master.fill(1)
            master.wait_acked()
        master.close()
