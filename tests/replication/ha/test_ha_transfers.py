"""Transfers that a master sends without waiting, and those that it leaves to a thread."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.helpers import ManualClock
from tests.replication.logs import FILE_SIZE, MemoryLog

from firetrail.errors import NotReachedError
from firetrail.replication.ha.ha_frames import HEADER, TransferReader, encode_report
from firetrail.replication.ha.ha_source import HALimits, HASource
from firetrail.replication.ha.ha_transfers import IDLE_S, LIMITED_S, HATransfers
from firetrail.replication.ha.master_session import MasterSession
from firetrail.system import SYSTEM


class SentLog(MemoryLog):
    """A log in memory that can be read."""

    def read(self, offset: int, size: int) -> memoryview | None:
        at = offset - self.min_offset
        return memoryview(bytes(self.content))[at : at + size] if at >= 0 else None


class Pair:
    """Transfers, and the peer that takes them."""

    def __init__(self, **limits: object) -> None:
        self.log = SentLog()
        self.clock = ManualClock()
        source = HASource(
            self.log,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            replace(HALimits(batch_size=1000), **limits),  # type: ignore[arg-type]
            self.clock,
            SYSTEM.threads,
        )
        now = self.clock.monotonic()
        session = MasterSession(self.log, source.limits.batch_size, 5.0, now)
        self.transfers = HATransfers(source, session)
        self.socket, self.peer = socket.socketpair()
        self.socket.setblocking(False)
        self.peer.setblocking(False)
        self._reader = TransferReader()
        session.receive(encode_report(1), now)
        self.log.content += b"\0"
        assert not self.transfers.try_send(self.socket)  # the first heartbeat
        assert len(self.peer.recv(100)) == HEADER.size

    def taken(self) -> bytes:
        found = bytearray()
        try:
            while True:
                for piece in self._reader.feed(memoryview(self.peer.recv(1 << 20))):
                    found += piece.content
        except BlockingIOError:
            return bytes(found)

    def close(self) -> None:
        self.socket.close()
        self.peer.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_new_bytes_are_sent_without_waiting(pair: Pair) -> None:
    pair.log.content += b"a" * 300
    assert not pair.transfers.try_send(pair.socket)
    assert pair.taken() == b"a" * 300
    assert not pair.transfers.try_send(pair.socket)
    assert pair.taken() == b""


def test_a_replica_that_is_behind_is_left_to_the_thread(pair: Pair) -> None:
    pair.log.content += b"a" * 1001
    assert pair.transfers.try_send(pair.socket)
    assert pair.taken() == b""
    assert pair.transfers.send(pair.socket)
    assert pair.transfers.send(pair.socket)
    assert not pair.transfers.send(pair.socket)
    assert pair.taken() == b"a" * 1001


def test_the_next_file_is_left_to_the_thread(pair: Pair) -> None:
    pair.log.content += b"a" * (FILE_SIZE - 500)
    while pair.transfers.send(pair.socket):
        pass
    pair.log.content += b"b" * 600
    assert pair.transfers.try_send(pair.socket)
    assert pair.transfers.send(pair.socket)
    assert pair.taken() == b"a" * (FILE_SIZE - 500) + b"b" * 600


def test_flow_control_is_left_to_the_thread() -> None:
    rates: list[int | None] = [None]
    pair = Pair(rate=lambda: rates[-1])
    try:
        rates.append(100_000)
        pair.log.content += b"a" * 300
        assert pair.transfers.try_send(pair.socket)
        assert pair.taken() == b""
        assert pair.transfers.pause_s == LIMITED_S
        rates.append(None)
        assert pair.transfers.pause_s == IDLE_S
        assert not pair.transfers.try_send(pair.socket)
        assert pair.taken() == b"a" * 300
    finally:
        pair.close()


def test_a_full_socket_leaves_the_rest_to_the_thread(pair: Pair) -> None:
    pair.log.file_size = 1 << 30
    sent = bytearray()
    while not pair.transfers._unsent:
        chunk = bytes([len(sent) // 900 % 256]) * 900
        sent += chunk
        pair.log.content += chunk
        pair.transfers.try_send(pair.socket)
    pair.log.content += b"z" * 50
    assert pair.transfers.try_send(pair.socket)  # not before the rest
    taken = pair.taken()
    assert len(taken) < len(sent)
    while pair.transfers.send(pair.socket):
        taken += pair.taken()
    assert taken + pair.taken() == sent + b"z" * 50


def test_nothing_is_sent_while_the_thread_sends(pair: Pair) -> None:
    pair.log.content += b"a"
    left: list[bool] = []
    with pair.transfers._sending:
        thread = threading.Thread(target=lambda: left.append(pair.transfers.try_send(pair.socket)))
        thread.start()
        thread.join()
    assert left == [True]
    assert pair.taken() == b""


def test_deleted_bytes_cannot_be_sent(pair: Pair) -> None:
    pair.log.content += b"a" * 10
    pair.log.min_offset += 5
    with pytest.raises(NotReachedError, match="retention has deleted the log at 1"):
        pair.transfers.try_send(pair.socket)
    assert not pair.transfers._sending.locked()
