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
from interop.history import History, java_boundaries
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
from interop.servers import LINES, MASTER, SYNC_MASTER, Role, Servers, our_name_server
from interop.test_parity import check_to_the_second, queries
from interop.views import described, without_crc
from tests.helpers import PATIENCE_S

from firetrail.client import Admin, MessageQueue, SendStatus
from firetrail.client.messages.received_message import decode_all
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import RegisterBrokerBody
from firetrail.remoting.messages.headers import (
    QueryMessageHeader,
    RegisterBrokerHeader,
    SearchOffsetHeader,
)
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

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


def write_specials(root: Path) -> History:
    """Write every record variant that both lines know with Firetrail."""
    history = History()
    for seed, host in ((1, STORE_V6_HOST), (2, STORE_V4)):
        lines = stored_by(host, mixed(seed, 80, specials()))
        history.add(lines, ours.write(root, lines, sizes=SIZES), "firetrail")
    return history


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


async def check_queries(line: str, slave: str, history: History) -> None:
    """Check what a slave finds by key and by time, with the calls of ``test_parity.py``.

    They ask for what was stored before the master was started, which has stored more. Java is exact
    to a second, so the end of the queries is a second later.
    """
    client = RemotingClient()
    by_key, last = history.by_key(), history.records[-1]["store_time"]
    calls = [call._replace(end=min(call.end, last + 1000)) for call in queries(history)]
    moments = [moment for moment in history.moments() if moment[-1] <= last]
    assert len(calls) > 100 and len(moments) > 100
    try:
        for call in calls:
            header = QueryMessageHeader(call.topic, call.key, call.limit, call.begin, call.end)
            command = RemotingCommand(RequestCode.QUERY_MESSAGE, header.encode())
            answer = await client.request(slave, command, PATIENCE_S)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
            anywhere = MessageQueue(call.topic, NAME, 0)
            found = [described(each.record) for each in decode_all(anywhere, answer.content)]
            exact = [
                record
                for record in by_key[call.topic, call.key]
                if call.begin <= record["store_time"] <= call.end
            ]
            check_to_the_second(call, exact, without_crc(found))
        for moment in moments:
            offsets = []
            for boundary in java_boundaries(line):
                fields = SearchOffsetHeader(*moment, boundary or None).encode()
                command = RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
                offsets.append(int((await client.ask(slave, command)).fields["offset"]))
            history.check_java_time(moment, offsets, line, SIZES)
    finally:
        await client.close()


@pytest.mark.parametrize("role", [MASTER, SYNC_MASTER], ids=lambda role: role.name)
async def test_java_slaves_copy_everything_and_serve_alone(tmp_path: Path, role: Role) -> None:
    """A producer gets OK from a SYNC_MASTER only when both slaves have its message.

    What a slave copies beside the log, and so its consumers, do not depend on the role: they are
    left out for an ASYNC_MASTER where they would cost another minute.
    """
    consumed = LINES if role is SYNC_MASTER else ("v4",)
    (tmp_path / "own").mkdir()
    firetrail = Servers("v5", tmp_path / "own", settings=HA_CONF)
    root = firetrail.folder / NAME
    history = write_specials(root)
    settings = "inSyncReplicas=3\nslaveTimeout=60000\n"
    with our_name_server() as namesrv, ExitStack() as masters_life:
        broker = firetrail.our_broker(
            namesrv,
            NAME,
            stop=signal.SIGKILL,
            role=role,
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
                for line in consumed:
                    await offsets_copied(running[line].address, GROUP, READ)
                physical = await until_copied(namesrv, master, running.values())
                ends = {queue.queue_id: await admin.offsets.end(queue) for queue in queues}
            seen = firetrail.mqadmin("haStatus", "-n", namesrv, "-b", master)
            masters_life.close()
            slave_lines = [text.split() for text in seen.splitlines() if text.startswith("127.")]
            assert {tuple(words[1:3]) for words in slave_lines} == {(str(physical), "0")}
            assert [words[4] for words in slave_lines] == ["OK", "OK"]
            for line, slave in running.items():  # clients read from the smallest id
                await check_queries(line, slave.address, history)
                if line in consumed:
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
    """It never takes a larger one, so no master may send it (``replication/ha/ha_frames.py``)."""
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
