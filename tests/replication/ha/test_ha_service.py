"""The service of a master under bad and slow peers, and how fast and how much it sends."""

import logging
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from unittest.mock import Mock

import pytest
from tests.helpers import PATIENCE_S, eventually
from tests.replication.followers import LIMITS, MASTER, REPLICA, Master, following

from firetrail import FlushMode, Message, PutStatus
from firetrail.errors import FiretrailError, ReplicationError
from firetrail.pace.limited_log import BURST
from firetrail.replication.ha.flow_control import BURST_S
from firetrail.replication.ha.ha_frames import (
    HEADER,
    encode_introduction,
    encode_report,
    identity_number,
)
from firetrail.replication.ha.ha_service import CONNECTIONS_MAX
from firetrail.replication.ha.ha_source import AdmittedConnection, HALimits
from firetrail.replication.ha.ha_transfers import send_all
from firetrail.store.settings.store_config import BrokerRole

ASYNC = MASTER.replace(role=BrokerRole.ASYNC_MASTER)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    master = Master(tmp_path / "master")
    yield master
    master.close()


def peer_of(master: Master) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", master.port.port), PATIENCE_S)
    peer.settimeout(PATIENCE_S)
    return peer


def closed(peer: socket.socket) -> None:
    """Wait until the master closes the connection; read what it sends until then."""
    with suppress(ConnectionError):
        while peer.recv(1 << 16):
            pass


def ha_threads() -> int:
    return sum(thread.name.startswith("firetrail-ha-") for thread in threading.enumerate())


class TestHostilePeers:
    def test_random_bytes_confirm_nothing(self, master: Master) -> None:
        chance = random.Random(7)
        master.fill(3)
        end = master.store.log.max_offset
        for _ in range(100):
            with peer_of(master) as peer:
                content = b"\x7f" + chance.randbytes(chance.randrange(7, 200))
                with suppress(ConnectionError):
                    peer.sendall(content)
                closed(peer)
        assert master.store.log.confirmed_offset == 0
        result = master.store.embedded.try_put(Message("T", b"1"))
        assert result.status is PutStatus.SLAVE_NOT_AVAILABLE
        assert master.store.log.max_offset > end
        assert master.store.embedded.max_offset("T") == 0
        eventually(lambda: not master.service.connections)
        eventually(lambda: ha_threads() == 0)

    @pytest.mark.parametrize("refusal", ["", "it is a stranger"])
    def test_bad_peers_do_not_flood_the_log(
        self, master: Master, caplog: pytest.LogCaptureFixture, refusal: str
    ) -> None:
        caplog.set_level(logging.INFO)
        master.service._refusal = lambda ip: refusal
        for _ in range(2 * BURST):
            with peer_of(master) as peer:
                with suppress(ConnectionError):
                    peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
                closed(peer)
        eventually(lambda: not master.service.connections)
        warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert len(warnings) == BURST
        assert len(caplog.records) <= 2 * BURST

    def test_idle_connections_make_room_for_a_replica(
        self, master: Master, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        master.fill(10)
        with ExitStack() as idle:
            for _ in range(3 * CONNECTIONS_MAX):
                idle.enter_context(peer_of(master))
            eventually(lambda: len(master.service.connections) == CONNECTIONS_MAX)
            eventually(lambda: ha_threads() <= 2 * CONNECTIONS_MAX + 2)
            with following(tmp_path / "replica", master.address):
                master.wait_acked()
                assert len(master.service.connections) == CONNECTIONS_MAX
        assert "it has reported nothing" in caplog.text
        eventually(lambda: not master.service.connections)
        eventually(lambda: ha_threads() == 0)

    def test_replicas_are_not_pushed_out(
        self, master: Master, caplog: pytest.LogCaptureFixture
    ) -> None:
        with ExitStack() as replicas:
            for _ in range(CONNECTIONS_MAX):
                peer = replicas.enter_context(peer_of(master))
                peer.sendall(encode_report(0))
                assert peer.recv(HEADER.size)
            with peer_of(master) as late:
                closed(late)
            assert len(master.service.connections) == CONNECTIONS_MAX
        assert f"refused: there are {CONNECTIONS_MAX} connections" in caplog.text

    def test_a_peer_that_reports_nothing_whole_is_closed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        master = Master(tmp_path, limits=HALimits(heartbeat_s=0.05, silence_s=0.2))
        try:
            with peer_of(master) as silent, peer_of(master) as dribbling:
                closed(silent)
                with suppress(ConnectionError):
                    for _ in range(7):  # at most: seven bytes are no report
                        dribbling.sendall(b"\0")
                        dribbling.settimeout(0.1)
                        with suppress(TimeoutError):
                            if dribbling.recv(1) == b"":
                                break
                eventually(lambda: not master.service.connections)
        finally:
            master.close()
        assert "nothing for 0.2 seconds" in caplog.text

    def test_a_report_that_comes_with_the_end_of_its_connection_does_not_count(
        self, master: Master
    ) -> None:
        """The sender may close a connection while the reader notes a report."""
        with peer_of(master) as peer:
            peer.sendall(encode_report(0))
            assert peer.recv(HEADER.size)
            (connection,) = master.service.connections
            connection.close()
            connection._note()
            assert master.acks.in_sync(0) == 0

    def test_nobody_is_served_who_is_refused(
        self, master: Master, caplog: pytest.LogCaptureFixture
    ) -> None:
        master.service._refusal = lambda ip: f"{ip} is a stranger"
        with peer_of(master) as peer:
            closed(peer)
        assert "refused: 127.0.0.1 is a stranger" in caplog.text
        assert not master.service.connections

    def test_a_replica_has_connected_once_it_is_admitted(
        self, master: Master, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(connection: socket.socket, address: str) -> AdmittedConnection:
            raise ReplicationError("no signature")

        caplog.set_level(logging.INFO)
        master.service._source = replace(master.service._source, admit=refuse)
        with peer_of(master) as peer:
            closed(peer)
        eventually(lambda: "no signature" in caplog.text)
        assert "has connected" not in caplog.text


def report_as(peer: socket.socket, identity: str, offset: int) -> None:
    """Report as a Firetrail replica does first; return when the master has taken it."""
    peer.sendall(encode_introduction(0, identity_number(identity)) + encode_report(offset))
    assert peer.recv(HEADER.size)


class TestOneReplica:
    def test_a_replica_that_has_connected_twice_is_one_copy(self, tmp_path: Path) -> None:
        """inSyncReplicas=3: one replica is paused, the other one was cut off and restarted."""
        config = MASTER.replace(in_sync_replicas=3, slave_timeout_ms=20)
        master = Master(tmp_path / "master", config)
        try:
            with peer_of(master) as paused, peer_of(master) as cut_off, peer_of(master) as again:
                report_as(paused, "one", 0)
                report_as(cut_off, "two", 0)
                report_as(again, "two", 0)
                eventually(lambda: master.acks.in_sync(0) == 2)
                assert len(master.service.connections) == 3
                late = master.store.embedded.try_put(Message("T", b"1"))
                again.sendall(encode_report(master.store.log.max_offset))
                end = master.store.log.max_offset
                eventually(lambda: any(c.session.acked == end for c in master.service.connections))
                assert late.status is PutStatus.FLUSH_SLAVE_TIMEOUT
                assert not master.acks.have_confirmed(end)
                paused.sendall(encode_report(end))
                eventually(lambda: master.acks.have_confirmed(end))
        finally:
            master.close()

    def test_replicas_without_an_identity_are_told_apart_by_their_address(
        self, master: Master
    ) -> None:
        with peer_of(master) as first, peer_of(master) as second:
            for peer in (first, second):
                peer.sendall(encode_report(0))
                assert peer.recv(HEADER.size)
            eventually(lambda: all(c.has_reported for c in master.service.connections))
            assert master.acks.in_sync(0) == 1
            with peer_of(master) as other:
                report_as(other, "a store", 0)
                eventually(lambda: master.acks.in_sync(0) == 2)


class TestSending:
    def test_a_slow_replica_is_waited_for_as_long_as_it_takes_something(
        self, master: Master
    ) -> None:
        """The time limit is for each call of the socket, so none may have to send everything."""
        taken: list[bytes] = []

        def take(parts: Sequence[memoryview]) -> int:
            taken.append(b"".join(parts)[:7])
            return len(taken[-1])

        slow = Mock(socket.socket, sendmsg=take, send=lambda part: take([part]))
        slow.sendall.side_effect = AssertionError
        parts = [b"a header, say", b"and a body" * 20]
        send_all(slow, [memoryview(part) for part in parts])
        assert b"".join(taken) == b"".join(parts)

    @pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
    @pytest.mark.parametrize("flush", list(FlushMode))
    def test_new_messages_are_sent_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: BrokerRole, flush: FlushMode
    ) -> None:
        """A sender is woken, and does not only look for messages now and then."""
        monkeypatch.setattr("firetrail.replication.ha.ha_transfers.IDLE_S", 2 * PATIENCE_S)
        config = MASTER.replace(role=role, flush=flush, slave_timeout_ms=int(PATIENCE_S * 1000))
        master = Master(tmp_path / "master", config, HALimits(heartbeat_s=3 * PATIENCE_S))
        try:
            master.fill(1)
            with following(tmp_path / "replica", master.address) as replica:
                eventually(lambda: master.acks.in_sync(0) == 1)
                for number in range(20):
                    assert master.store.embedded.try_put(Message("T", b"%d" % number)).ok
                    eventually(
                        lambda: replica.embedded.log_range == master.store.embedded.log_range
                    )
                master.fill(20)  # these do not wait
                master.store.writer.push()
                eventually(lambda: replica.embedded.log_range == master.store.embedded.log_range)
        finally:
            master.close()

    def test_only_synced_bytes_are_sent_with_sync_flush(self, tmp_path: Path) -> None:
        master = Master(tmp_path / "master", ASYNC.replace(flush=FlushMode.SYNC))
        try:
            log = master.store.log
            log.flush = lambda least_pages=0: False  # type: ignore[method-assign]
            master.fill(3)
            assert log.sendable_offset == log.flushed_offset == 0 < log.readable_offset
        finally:
            del log.flush
            master.close()

    def test_flow_control_limits_the_rate(self, tmp_path: Path) -> None:
        rates: list[int | None] = [100_000]
        limits = HALimits(batch_size=1 << 20, heartbeat_s=0.05, rate=lambda: rates[-1])
        master = Master(tmp_path / "master", ASYNC, limits)
        try:
            master.fill(200, 200)
            began = monotonic()
            with following(tmp_path / "replica", master.address, REPLICA) as replica:
                eventually(lambda: replica.embedded.log_range == master.store.embedded.log_range)
                took = monotonic() - began
                assert took > master.store.log.max_offset / rates[0] - BURST_S  # type: ignore[operator]
                rates.append(None)
                master.fill(500, 200)
                eventually(lambda: replica.embedded.log_range == master.store.embedded.log_range)
        finally:
            master.close()

    def test_a_stop_lets_replicas_catch_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("firetrail.replication.ha.ha_service.FINISH_S", PATIENCE_S)
        master = Master(tmp_path / "master", ASYNC, LIMITS)
        errors: list[FiretrailError] = []
        with following(tmp_path / "replica", master.address, errors=errors) as replica:
            eventually(lambda: bool(master.service.connections))
            eventually(lambda: master.service.connections[0].has_reported)
            master.fill(500)
            end = master.store.embedded.log_range
            master.close()
            assert replica.embedded.log_range == end
