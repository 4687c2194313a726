"""Planned changes of the master of a group, in processes of their own and under load.

The master is changed with ``firetrail replica promote``, or all members are stopped with SIGTERM
and started again, one after the other. Clients of all kinds keep a ledger meanwhile. In the end it
is compared with the logs of all members, which are read without code of the store: nothing that was
acknowledged is missing, and no delayed, timed or transactional message was delivered twice. No
offset goes back, and no send is refused for longer than a second.
"""

import asyncio
import itertools
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

from tests.crash.files_check import Raw, check_files, readable
from tests.crash.oracle import Violation
from tests.ports import free_ports
from tests.replication.etcd_server import etcd_server
from tests.torture.process import SLOTS, BrokerProcess

from firetrail.client import Message, Producer, SendStatus
from firetrail.errors import FiretrailError, NotReachedError
from firetrail.format.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.headers import ConsumerOffsetHeader, EndTransactionHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.group.etcd import EtcdCoordinator
from firetrail.replication.group.etcd_gateway import EtcdAccess
from firetrail.replication.group.group_view import GroupView
from firetrail.system import SYSTEM

MEMBERS = (1, 2, 3)
PREFIX = "/firetrail/DefaultCluster/broker-a"
PLAIN, DELAYED, TIMED, TRANSACTED = "Plain", "Delayed", "Timed", "Transacted"
ROUTED = "Routed"
"""What a producer sends that asks the name server for the master."""
PROPERTIES = {PLAIN: "", DELAYED: "DELAY\x011\x02", TIMED: "TIMER_DELAY_MS\x011500\x02"}
CLIENTS = (PLAIN, PLAIN, DELAYED, DELAYED, TIMED)
"""What each producer sends."""
GROUP = "readers"
REQUEST_S = 3.0
"""How long clients wait for an answer, as stock clients do."""
PAUSE_S = 0.01
CALM_S = 300.0
"""Patience with a group to which nothing happens."""
LATE_S = 5.0
"""After this time all delayed and timed messages are delivered."""
REFUSED_S = 1.0
"""The longest time for which a producer may be refused."""


class Member(BrokerProcess):
    """A member of the group, with the settings of a production broker but for small files."""

    serving_line = b"broker"

    def __init__(self, folder: Path, number: int, servers: Mapping[str, object]) -> None:
        folder.mkdir()
        port, ha_port = free_ports(2)
        founder = number == MEMBERS[0]
        conf = {
            "brokerRole": "SYNC_MASTER" if founder else "SLAVE",
            "brokerId": 0 if founder else number,
            "listenPort": port,
            "haListenPort": ha_port,
            "ha_allowed_peers": "127.0.0.1",
            "ha_member": number,
            **servers,
        }
        super().__init__(folder, conf)
        self.number = number
        self.address = f"127.0.0.1:{port}"

    def _command(self) -> list[str]:
        arguments = ["broker", str(self.store), "-c", str(self.conf), "--host", "127.0.0.1"]
        return [sys.executable, "-m", "firetrail", *arguments]


class Clients:
    """Clients that send to a member until it does not answer or refuses, as stock clients do."""

    def __init__(self, addresses: Sequence[str], namesrv: str, seed: int) -> None:
        self.acknowledged: dict[str, dict[bytes, int]] = defaultdict(dict)
        """By topic: the messages, with their physical offsets."""
        self.committed: set[bytes] = set()
        self.rolled_back: set[bytes] = set()
        self.figures = Counter[str]()
        self.happens = "nothing"
        """The present change, for the figures."""
        self._addresses = addresses
        self._namesrv = namesrv
        self._random = Random(f"hand-over {seed}")
        self._client = RemotingClient()
        self._numbers = itertools.count()
        self._newest = 0  # the queue offset after the newest acknowledged message of queue 0
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loops = [self._produce(topic) for topic in CLIENTS]
        loops += [self._produce_routed(), self._transact(), self._commit()]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._client.close()

    async def _produce(self, topic: str) -> None:
        sender = Sender(self, self._client, self._addresses)
        while not self._stop.is_set():
            await sender.send(topic, PROPERTIES[topic])
            await asyncio.sleep(PAUSE_S)

    async def _produce_routed(self) -> None:
        """Send with the client of Firetrail, which asks the name server for the master."""
        async with Producer(self._namesrv) as producer:
            while not self._stop.is_set():
                body, asked_at = self.new_body(ROUTED), time.monotonic()
                result = await producer.send(Message(ROUTED, body))
                self.note_pause("the client", time.monotonic() - asked_at)
                if result.status is SendStatus.OK:
                    place = int(result.offset_message_id[-16:], 16)
                    self.acknowledged[ROUTED][body] = place
                else:
                    self.figures[f"the client got {result.status.value}"] += 1
                await asyncio.sleep(PAUSE_S)

    def note_pause(self, what: str, seconds: float) -> None:
        for name in (f"longest ms of {what}", f"longest ms of {what} during {self.happens}"):
            self.figures[name] = max(self.figures[name], int(1000 * seconds))

    def new_body(self, topic: str) -> bytes:
        return b"%s %d" % (topic.encode(), next(self._numbers))

    def note(self, topic: str, body: bytes, fields: Mapping[str, str]) -> None:
        self.acknowledged[topic][body] = int(fields["msgId"][-16:], 16)
        if topic == PLAIN:
            self._newest = max(self._newest, int(fields["queueOffset"]) + 1)

    async def _transact(self) -> None:
        """Begin transactions, and repeat their ends until they are acknowledged."""
        sender = Sender(self, self._client, self._addresses)
        while not self._stop.is_set():
            half = await sender.send(TRANSACTED, "TRAN_MSG\x01true\x02PGROUP\x01deciding\x02")
            if half is None:
                continue
            body, fields = half
            commits = self._random.random() < 0.7
            header = EndTransactionHeader(
                producer_group="deciding",
                tran_state_table_offset=int(fields["queueOffset"]),
                commit_log_offset=int(fields["msgId"][-16:], 16),
                commit_or_rollback=TRANSACTION_COMMIT if commits else TRANSACTION_ROLLBACK,
                msg_id=fields["msgId"],
                transaction_id=fields["transactionId"],
            )
            ended = self.committed if commits else self.rolled_back
            while await sender.ask(RequestCode.END_TRANSACTION, header.encode()) is None:
                await asyncio.sleep(PAUSE_S)
            ended.add(body)
            await asyncio.sleep(PAUSE_S)

    async def _commit(self) -> None:
        """Commit growing offsets, and read them back from members at random."""
        sender = Sender(self, self._client, self._addresses)
        while not self._stop.is_set():
            await asyncio.sleep(PAUSE_S)
            header = ConsumerOffsetHeader(GROUP, PLAIN, 0, self._newest)
            if await sender.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode()) is None:
                continue
            self.figures["commits"] += 1
            sender.at = self._random.randrange(len(self._addresses))
            query = ConsumerOffsetHeader(GROUP, PLAIN, 0)
            found = await sender.ask(RequestCode.QUERY_CONSUMER_OFFSET, query.encode())
            if found is not None and int(found["offset"]) < (header.commit_offset or 0):
                self.figures["offsets that went back"] += 1


class Sender:
    """One client: it knows one member at a time."""

    def __init__(self, clients: Clients, client: RemotingClient, addresses: Sequence[str]) -> None:
        self._clients = clients
        self._client = client
        self._addresses = addresses
        self._refused_at: float | None = None
        self.at = 0

    async def send(self, topic: str, properties: str) -> tuple[bytes, Mapping[str, str]] | None:
        body = self._clients.new_body(topic)
        unique = f"UNIQ_KEY\x01{body.decode().replace(' ', '-')}\x02"
        fields = {"a": "deciding", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0"}
        fields |= {"g": str(time.time_ns() // 1_000_000), "h": "4" if "TRAN" in properties else "0"}
        fields |= {"i": properties + unique, "j": "0", "m": "false"}
        found = await self.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        if found is None:
            return None
        self._clients.note(topic, body, found)
        return body, found

    async def ask(
        self, code: RequestCode, fields: Mapping[str, str], body: bytes = b""
    ) -> Mapping[str, str] | None:
        """Return the fields of the answer; None if the request was refused or not answered."""
        figures, asked_at = self._clients.figures, time.monotonic()
        try:
            command = RemotingCommand(code, fields, body)
            address = self._addresses[self.at]
            answer = await self._client.request(address, command, REQUEST_S)
            failure = "" if answer.code == ResponseCode.SUCCESS else f"code {answer.code}"
        except (OSError, FiretrailError) as error:
            failure = type(error).__name__
        now = time.monotonic()
        self._clients.note_pause("a request", now - asked_at)
        if failure:
            figures[f"failed: {failure}"] += 1
            self._refused_at = self._refused_at if self._refused_at is not None else asked_at
            self.at = (self.at + 1) % len(self._addresses)
            return None
        if self._refused_at is not None:
            self._clients.note_pause("refusals", now - self._refused_at)
            self._refused_at = None
        return answer.fields


class Group:
    """The members, and the planned changes of their master."""

    def __init__(self, folder: Path, seed: int, etcd: str, namesrv: str) -> None:
        self._random = Random(f"changes {seed}")
        self._engine = EtcdCoordinator(EtcdAccess((etcd,)), PREFIX, 5, SYSTEM.clock)
        servers = {"etcd_endpoints": etcd, "namesrvAddr": namesrv}
        self.members = [Member(folder / str(n), n, servers) for n in MEMBERS]
        self.clients = Clients([member.address for member in self.members], namesrv, seed)

    async def start(self) -> None:
        for member in self.members:
            await member.start()
        await self.in_sync()
        self.clients.start()

    async def view(self) -> GroupView:
        """Return the entries of the group in etcd."""
        while True:
            with suppress(NotReachedError):
                return await asyncio.to_thread(self._engine.watch, 0, 0.0)

    async def in_sync(self) -> None:
        """Wait until all members are in the in-sync set, and one holds the lease."""
        async with asyncio.timeout(CALM_S):
            while True:
                view = await self.view()
                if view.holder and view.in_sync and view.in_sync.members == {*MEMBERS}:
                    return
                await asyncio.sleep(0.1)

    async def master(self) -> Member:
        holder = (await self.view()).holder
        assert holder is not None
        return self.members[holder.member - 1]

    async def change(self, number: int) -> None:
        """Promote a member, or stop and start all members one after the other."""
        if number % 2:
            for member in self._random.sample(self.members, len(self.members)):
                await self._restart(member)
            self.clients.figures["rolling restarts"] += 1
            return
        master = await self._quiet()
        others = [member for member in self.members if member is not master]
        self.clients.happens = "a promotion"
        await self._promote(self._random.choice(others))
        self.clients.figures["promotions"] += 1

    async def _quiet(self) -> Member:
        """Return the master, once all members are in sync."""
        await self.in_sync()
        self.clients.happens = "nothing"
        await asyncio.sleep(self._random.uniform(0.5, 2.5))
        return await self.master()

    async def _restart(self, member: Member) -> None:
        is_master = await self._quiet() is member
        self.clients.happens = f"a restart of {'the master' if is_master else 'a replica'}"
        assert await member.stop() == 0, member.said[-2000:]
        await member.start()

    async def _promote(self, member: Member) -> None:
        command = [sys.executable, "-m", "firetrail", "replica", "promote", member.address]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        said = await process.communicate()
        if process.returncode != 0:
            raise Violation(f"member {member.number} was not promoted: {said}")

    async def finish(self) -> None:
        """Stop the clients and the members, and compare the ledger with all logs."""
        await self.clients.stop()
        await asyncio.sleep(LATE_S)
        await self.in_sync()
        master = await self.master()
        async with asyncio.timeout(CALM_S):
            while len({_end(member) for member in self.members}) > 1:
                await asyncio.sleep(0.1)
        for member in sorted(self.members, key=lambda each: each is master):
            assert await member.stop() == 0, member.said[-2000:]
        for member in self.members:
            check_files(member.store, SLOTS)
            check_log(self.clients, readable(member.store / "commitlog"))

    async def close(self) -> None:
        for member in self.members:
            await member.close()


def _end(member: Member) -> int:
    last = readable(member.store / "commitlog")[-1]
    return last.offset + last.size


def check_log(clients: Clients, log: Sequence[Raw]) -> None:
    """Compare a log with what clients were told."""
    places = {record.offset: record.body for record in log}
    copies = Counter((record.topic, record.body) for record in log)
    for topic, messages in clients.acknowledged.items():
        gone = [body for body, offset in messages.items() if places.get(offset) != body]
        if gone:
            raise Violation(f"{len(gone)} acknowledged messages of {topic} are lost: {gone[:3]}")
    for topic in (PLAIN, DELAYED, TIMED, TRANSACTED, ROUTED):
        found = {body: count for (at, body), count in copies.items() if at == topic}
        twice = [body for body, count in found.items() if count > 1]
        if twice:
            raise Violation(f"{len(twice)} messages of {topic} are repeated: {twice[:3]}")
        due = clients.committed if topic == TRANSACTED else clients.acknowledged[topic]
        if late := set(due) - found.keys():
            raise Violation(f"{len(late)} messages of {topic} were not delivered: {sorted(late)}")
    if early := clients.rolled_back & {body for at, body in copies if at == TRANSACTED}:
        raise Violation(f"{len(early)} transactions were rolled back and delivered")


def check_pauses(figures: Counter[str]) -> None:
    """Check that no client was refused for long, which depends on the machine as well."""
    if figures["longest ms of refusals"] > 1000 * REFUSED_S:
        raise Violation(f"a client was refused for too long: {figures}")


@contextmanager
def name_server() -> Iterator[str]:
    """Run a name server in a process of its own; its ``host:port``."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "firetrail", "namesrv", "--port", str(port)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def hand_over(folder: Path, seed: int, changes: int) -> Counter[str]:
    """Promote members and restart all, ``changes`` times in all; return the figures."""
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(etcd_server(folder))
        group = Group(folder, seed, etcd, stack.enter_context(name_server()))
        stack.push_async_callback(group.close)
        figures = group.clients.figures
        try:
            await group.start()
            for number in range(changes):
                await group.change(number)
            await group.finish()
            for topic, messages in group.clients.acknowledged.items():
                figures[f"acknowledged: {topic}"] = len(messages)
            if back := figures["offsets that went back"]:
                raise Violation(f"{back} offsets went back")
        except Exception as error:
            error.add_note(f"seed {seed}: {figures}")
            for member in group.members:
                error.add_note(f"member {member.number} said:\n{member.said[-3000:]}")
            raise
        return figures
