"""The frames of a Java master in controller mode, and a session that sends them as it does."""

import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack

from tests.replication.logs import log_content
from tests.replication.masters import MASTER, FakeMaster, master_in

from firetrail.replication.learner.auto_switch_frames import (
    EPOCH,
    HANDSHAKE,
    MASTER_HANDSHAKE,
    SLAVE_HANDSHAKE,
    SLAVE_REPORT,
    TRANSFER,
    TRANSFER_HEADER,
)
from firetrail.replication.log.epochs import Epoch
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import StoreConfig


def handshake(end: int, epochs: Sequence[Epoch]) -> bytes:
    last = epochs[-1].number if epochs else -1
    entries = b"".join(EPOCH.pack(*epoch) for epoch in epochs)
    return MASTER_HANDSHAKE.pack(HANDSHAKE, len(entries), end, last) + entries


def transfer(offset: int, content: bytes, epoch: Epoch, confirmed: int) -> bytes:
    header = TRANSFER_HEADER.pack(TRANSFER, len(content), offset, *epoch, confirmed)
    return header + content


@dataclass
class AutoSwitchMaster:
    """A master over one connection, as ``AutoSwitchHAConnection`` of RocketMQ 5.3.3 behaves."""

    log: bytes
    epochs: Sequence[Epoch]
    confirmed: int = 1 << 62
    min_offset: int = 0
    batch_size: int = 300
    file_size: int = 2048
    reports: list[int] = field(default_factory=list)
    _received: bytes = b""
    _next: int = -1
    _epoch: Epoch | None = None

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Take bytes of a slave; yield frames to send, each of which is lost if not taken."""
        self._received += data
        while len(self._received) >= SLAVE_REPORT.size:
            state = int.from_bytes(self._received[:4], "big")
            if state == HANDSHAKE:
                hello = self._received[: SLAVE_HANDSHAKE.size]
                self._received = self._received[SLAVE_HANDSHAKE.size :]
                assert hello == pack(">ihhq", 1, 0, 1, 1 << 40), "not a learner"
                yield handshake(len(self.log), self.epochs)
            else:
                assert state == TRANSFER
                _, offset = SLAVE_REPORT.unpack_from(self._received)
                self._received = self._received[SLAVE_REPORT.size :]
                self.reports.append(offset)
                yield from self._transfers(offset)

    def _transfers(self, requested: int) -> Iterator[bytes]:
        if self._next < 0:
            self._next = requested or self.min_offset
            self._epoch = [each for each in self.epochs if each.start_offset <= self._next][-1]
        while self._next < len(self.log):
            assert self._epoch is not None
            file_end = self._next - self._next % self.file_size + self.file_size
            end = min(self._next + self.batch_size, file_end, len(self.log))
            later = [each for each in self.epochs if each.number > self._epoch.number]
            if later and end > later[0].start_offset:
                end = later[0].start_offset
                self._epoch = later[0]  # Java names the next epoch with the last bytes of one
            offset, self._next = self._next, end
            yield transfer(offset, self.log[offset:end], self._epoch, self.confirmed)

    def heartbeat(self) -> bytes:
        return transfer(self._next, b"", self._epoch or self.epochs[0], self.confirmed)

    def poll(self) -> Iterator[bytes]:
        """Yield what is due without a report: new bytes of the log, and a heartbeat."""
        if self.reports:
            yield from self._transfers(self._next)
            yield self.heartbeat()


class AutoSwitchPort:
    """The HA port of a master in controller mode, for one slave at a time.

    Attributes:
        confirmed: The offset that the master calls confirmed.
        epochs: The epochs of its log.
        reports: What slaves have reported.
    """

    def __init__(self, folder: Path, store: BrokerStore) -> None:
        self.confirmed = 1 << 62
        self.epochs: Sequence[Epoch] = (Epoch(1, 0),)
        self.reports: list[int] = []
        self._folder = folder
        self._store = store
        self._stopping = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._listener.close()

    def _log(self) -> bytes:
        end = self._store.log.max_offset
        return log_content(self._folder)[:end]

    def _serve(self) -> None:
        while not self._stopping:
            with suppress(OSError):
                connection, _ = self._listener.accept()
                with connection:
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        connection.settimeout(0.02)
        file_size = self._store.config.commit_log_file_size
        master = AutoSwitchMaster(self._log(), self.epochs, file_size=file_size)
        master.reports = self.reports
        while not self._stopping:
            try:
                data = connection.recv(4096)
                if not data:
                    return
                frames = master.receive(data)
            except TimeoutError:
                master.log = self._log()
                frames = master.poll()
            master.confirmed = self.confirmed
            for frame in frames:
                connection.sendall(frame)


@asynccontextmanager
async def controlled_master_in(
    folder: Path, config: StoreConfig = MASTER
) -> AsyncIterator[tuple[FakeMaster, AutoSwitchPort]]:
    """Run a master on a folder that says to be in controller mode."""
    async with master_in(folder, config) as master:
        port = AutoSwitchPort(folder, master.store)
        master.settings |= {"enableControllerMode": "true", "haListenPort": str(port.port)}
        try:
            yield master, port
        finally:
            port.close()
