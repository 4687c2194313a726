"""Java slaves, 4.9.7 and 5.3.3, of a Firetrail master: they copy everything, and serve alone."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from interop import ours
from interop.messages import STORE_V4, STORE_V6_HOST, mixed, specials, stored_by
from interop.replicas import (
    HA_CONF,
    NAME,
    QUEUES,
    SIZES,
    TOPIC,
    check_java_sees_the_same,
    check_same,
    log_end,
    offsets_copied,
    read_by_java,
    send_all_kinds,
    send_some,
)
from interop.servers import LINES, SYNC_MASTER, Role, Servers, our_name_server

from firetrail.client import Admin, SendStatus
from firetrail.remoting.bodies import RegisterBrokerBody
from firetrail.remoting.client import RemotingClient
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.command import RemotingCommand
from firetrail.remoting.headers import RegisterBrokerHeader

LIMIT_S = 400.0
"""Java's 5.x copies topics and offsets for the first time 61 seconds after its start."""
GROUP = "Reading"
READ = 5
"""Messages of each queue that the group has read before the master ends."""
FRAME_MAX = 4 << 20
"""The buffer of a Java slave."""
pytestmark = pytest.mark.time_limit(LIMIT_S)


class JavaSlave(NamedTuple):
    """A running slave."""

    address: str
    root: Path
    life: ExitStack
    """Ends the slave when it is closed."""


@contextmanager
def slaves(namesrv: str, folder: Path) -> Iterator[dict[str, JavaSlave]]:
    """Run a slave of each line, with the ids 1 and 2."""
    with ExitStack() as stack, ThreadPoolExecutor() as starting:
        started = {}
        for broker_id, line in enumerate(LINES, 1):
            (folder / line).mkdir()
            java = Servers(line, folder / line, settings=HA_CONF)
            role = Role("SLAVE", broker_id)
            life = stack.enter_context(ExitStack())
            broker = java.broker(
                namesrv, NAME, signal.SIGKILL, role=role, settings="slaveReadEnable=true\n"
            )
            started[line] = (
                starting.submit(life.enter_context, broker),
                java.folder / role.folder(NAME),
                life,
            )
        yield {
            line: JavaSlave(address.result(), root, life)
            for line, (address, root, life) in started.items()
        }


# -- of a Firetrail master --------------------------------------------------------------------


def write_specials(root: Path) -> None:
    """Write every record variant that both lines know with Firetrail."""
    for seed, host in ((1, STORE_V6_HOST), (2, STORE_V4)):
        ours.write(root, stored_by(host, mixed(seed, 80, specials())), sizes=SIZES)


async def until_copied(namesrv: str, master: str, running: Iterable[JavaSlave]) -> int:
    """Wait until the slaves have everything; return the end of the log."""
    while True:
        end = await log_end(namesrv, master)
        if {await log_end(namesrv, slave.address) for slave in running} == {end}:
            return end
        await asyncio.sleep(0.1)


def check_serves_alone(line: str, namesrv: str, ends: dict[int, int]) -> None:
    """Check that a stock consumer continues at the group's offsets, and gets all the rest."""
    rest = {(queue, n) for queue, end in ends.items() for n in range(READ, end)}
    assert read_by_java(line, namesrv, GROUP, len(rest)) == rest


async def test_java_slaves_copy_everything_and_serve_alone(tmp_path: Path) -> None:
    """The producer gets OK only when both slaves have its message."""
    (tmp_path / "own").mkdir()
    firetrail = Servers("v5", tmp_path / "own", settings=HA_CONF)
    root = firetrail.folder / NAME
    write_specials(root)
    settings = "inSyncReplicas=3\nslaveTimeout=60000\n"
    with our_name_server() as namesrv, ExitStack() as masters_life:
        broker = firetrail.our_broker(
            namesrv,
            NAME,
            stop=signal.SIGKILL,
            role=SYNC_MASTER,
            settings=settings,
        )
        master = masters_life.enter_context(broker)
        with slaves(namesrv, tmp_path) as running:
            async with Admin(namesrv) as admin:
                await admin.create_topic(TOPIC, QUEUES)
                await admin.create_group(GROUP)
                await until_copied(namesrv, master, running.values())
                results = await send_some(namesrv, 300) + await send_all_kinds(namesrv)
                assert {result.status for result in results} == {SendStatus.OK}
                queues = await admin.queues(TOPIC)
                for queue in queues:
                    await admin.offsets.commit(GROUP, queue, READ)
                for slave in running.values():
                    await offsets_copied(slave.address, GROUP, READ)
                physical = await until_copied(namesrv, master, running.values())
                ends = {queue.queue_id: await admin.offsets.end(queue) for queue in queues}
            seen = firetrail.mqadmin("haStatus", "-n", namesrv, "-b", master)
            masters_life.close()
            slave_lines = [text.split() for text in seen.splitlines() if text.startswith("127.")]
            assert {tuple(words[1:3]) for words in slave_lines} == {(str(physical), "0")}
            assert [words[4] for words in slave_lines] == ["OK", "OK"]
            for line, slave in running.items():  # clients read from the smallest id
                check_serves_alone(line, namesrv, ends)
                slave.life.close()
    for line, slave in running.items():
        check_same(root, slave.root, 0, physical)
        check_java_sees_the_same(line, root, slave.root, physical)


# -- of a master that sends what the test wants -----------------------------------------------


async def register_master(client: RemotingClient, namesrv: str, port: int) -> None:
    """Tell a name server of a master, whose HA port is ``port``; nothing else of it exists."""
    header = RegisterBrokerHeader(
        NAME, f"127.0.0.1:{port - 1}", "DefaultCluster", 0, f"127.0.0.1:{port}"
    )
    body = RegisterBrokerBody().encode()
    command = RemotingCommand(RequestCode.REGISTER_BROKER, header.encode(), body)
    await client.ask(namesrv, command)


class SlaveConnection:
    """The master's end of a connection."""

    def __init__(self, listener: socket.socket) -> None:
        self._socket, _ = listener.accept()
        self._socket.settimeout(LIMIT_S)
        self.acked = self._report()

    def _report(self) -> int:
        data = b""
        while len(data) < 8:
            data += self._socket.recv(8 - len(data))
        return int(struct.unpack(">q", data)[0])

    def close(self) -> None:
        self._socket.close()

    def send(self, size: int) -> None:
        """Send a frame with this number of bytes, which are zeros."""
        self._socket.sendall(struct.pack(">qi", self.acked, size) + bytes(size))

    def is_taken(self, size: int, seconds: float) -> bool:
        """Return whether the slave reports that it has the last frame, of this size."""
        end = self.acked + size
        deadline = time.monotonic() + seconds
        while self.acked < end and time.monotonic() < deadline:
            self.acked = self._report()  # there is one with every heartbeat
        return self.acked == end


def take_frames(connection: SlaveConnection) -> list[bool]:
    """Return whether a slave takes a frame that fills its buffer, and one that is larger."""
    taken = []
    for size in (FRAME_MAX - 12, FRAME_MAX - 11):
        filler = -connection.acked % SIZES.log  # the frame must be in one file
        if filler:
            connection.send(filler)
            assert connection.is_taken(filler, LIMIT_S)
        connection.send(size)
        taken.append(connection.is_taken(size, LIMIT_S if size + 12 <= FRAME_MAX else 2))
    return taken


async def test_a_java_slave_takes_frames_of_up_to_4_mib(tmp_path: Path) -> None:
    """It never takes a larger one, so no master may send it: ``firetrail.replication.frames``."""
    client = RemotingClient()
    with our_name_server() as namesrv, socket.create_server(("127.0.0.1", 0)) as listener:
        await register_master(client, namesrv, listener.getsockname()[1])
        with slaves(namesrv, tmp_path) as running, ExitStack() as stack:
            connected = [await asyncio.to_thread(SlaveConnection, listener) for _ in running]
            for slave in connected:
                stack.callback(slave.close)
            taken = await asyncio.gather(*(asyncio.to_thread(take_frames, s) for s in connected))
        assert taken == [[True, False], [True, False]]
        await client.close()
