"""A group of brokers and etcd in processes of their own, whose master is tormented under load.

The result is checked without any knowledge of who was the master when. Every acknowledged message
is in the final log of every member, at the offset that its producer was told, and a message that
was sent after another one was acknowledged has a larger offset. Two masters that both acknowledge
cannot produce such a history. What clients sent and read is checked as the history of one log per
queue (:mod:`tests.torture.records.history`).
"""

import asyncio
import itertools
import signal
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

from tests.crash.files_check import UNIT, check_files, readable
from tests.ports import free_ports
from tests.torture.group.networks import (
    ETCD,
    Namespaces,
    Network,
    Place,
    Proxies,
    can_partition,
    run_in_namespace,
)
from tests.torture.process import SLOTS, BrokerProcess
from tests.torture.records.history import (
    CheckerMissing,
    as_json,
    check_history,
    check_linearizable,
    checker,
)
from tests.torture.records.recorder import TOPIC, Ack, Recorder

from firetrail.errors import NotReachedError
from firetrail.replication.group.etcd import EtcdCoordinator
from firetrail.replication.group.etcd_gateway import EtcdAccess
from firetrail.store.inspect.view import StoreView
from firetrail.system import SYSTEM

MEMBERS = (1, 2, 3)
PREFIX = "/firetrail/DefaultCluster/broker-a"
LEASE_S = 3
LAG_S = 2
CALM_S = 300.0
"""Patience with a group to which nothing happens any more."""
KINDS = ("kill", "stop", "etcd", "replicas", "alone", "clock")
"""What happens to the master: it is killed, stopped for longer than its lease, cut off from etcd,
cut off from the replicas, cut off from both, or its wall clock is set."""
NAMESPACE_KINDS = ("deaf", "mute", "storm", "tail")
"""What happens in network namespaces as well: the master hears nobody, nobody hears the master, all
kinds of things happen to all members at the same time, or two masters are killed whose last
messages the third member does not have."""
GROUP_KINDS = ("engine", "everybody", "successor")
"""What happens to more than the master: nobody reaches etcd, all members are killed, or the master
and its successor are killed."""
JUMPS_S = (-3600.0, -5.0, 5.0, 86_400.0)
STORM = 4
"""How many things happen to each member in a storm."""
CHECKED = "operations checked by porcupine"
UNCHECKED = "operations not checked by porcupine"


class Member(BrokerProcess):
    """A member of the group."""

    serving_line = b"broker"

    def __init__(self, folder: Path, number: int, place: Place, ports: Sequence[int]) -> None:
        port, ha_port = ports
        folder.mkdir()
        founder = number == MEMBERS[0]
        super().__init__(
            folder,
            {
                "brokerRole": "SYNC_MASTER" if founder else "SLAVE",
                "brokerId": 0 if founder else number,
                "brokerIP1": place.host,
                "listenPort": port,
                "haListenPort": ha_port,
                "ha_allowed_peers": place.peers,
                "haSendHeartbeatInterval": 200,
                "haMaxTimeSlaveNotCatchup": LAG_S * 1000,
                "slaveTimeout": 1000,
                "etcd_endpoints": place.etcd,
                "ha_member": number,
                "ha_lease_s": LEASE_S,
                "sync_interval_ms": 300,
                "fileReservedTime": 200_000,  # twenty-two years: no file expires by a wrong clock
            },
        )
        self.clock = self.with_faults()
        self.number = number
        self.address = f"{place.bind}:{port}"
        self._place = place

    def _command(self) -> list[str]:
        arguments = ["broker", str(self.store), "-c", str(self.conf), "--host", self._place.bind]
        arguments.append("--insecure")  # each node has an address of its own
        return [*self._place.prefix, *super()._command()[:3], *arguments]


class Group:
    """The members, and what is done to them."""

    def __init__(self, folder: Path, seed: int, network: Network) -> None:
        self._folder = folder
        self._network = network
        self.random = Random(f"failover {seed}")
        self.members: list[Member] = []
        self.clients = Recorder(seed)
        access = EtcdAccess((network.etcd,))
        self._engine = EtcdCoordinator(access, PREFIX, LEASE_S, SYSTEM.clock)

    async def in_sync(self) -> None:
        """Wait until all members are in the in-sync set, so that each of them could win."""
        async with asyncio.timeout(CALM_S):
            while True:
                with suppress(NotReachedError):
                    found = (await asyncio.to_thread(self._engine.watch, 0, 0.0)).in_sync
                    if found is not None and found.members == {*MEMBERS}:
                        return
                await asyncio.sleep(0.1)

    async def start(self) -> None:
        for number in MEMBERS:
            ports = free_ports(2)
            place = await self._network.place(number, ports)
            member = Member(self._folder / str(number), number, place, ports)
            self.members.append(member)
            await member.start()
        self.clients.start([member.address for member in self.members])

    async def close(self) -> None:
        await self.clients.close()
        for member in self.members:
            member.signal(signal.SIGCONT)
            await member.close()

    async def acknowledged(self, count: int) -> None:
        """Wait until ``count`` more messages were acknowledged."""
        wanted = len(self.clients.acks) + count
        async with asyncio.timeout(CALM_S):
            while len(self.clients.acks) < wanted:
                await asyncio.sleep(0.02)

    async def master(self) -> Member:
        """Wait until a member holds the lease; return it.

        The member that acknowledges a message may have passed it on.
        """
        async with asyncio.timeout(CALM_S):
            while True:
                with suppress(NotReachedError):
                    view = await asyncio.to_thread(self._engine.watch, 0, 0.0)
                    if view.holder is not None:
                        return self.members[view.holder.member - 1]
                await asyncio.sleep(0.01)

    # -- torments -----------------------------------------------------------------------------

    async def suffer(self, kinds: Sequence[str]) -> Counter[str]:
        """Torment the master in all of these ways; return the longest times without one."""
        figures = Counter[str]()
        try:
            await self.acknowledged(20)
            for kind in self.random.sample(kinds, len(kinds)):
                await self.in_sync()
                gap_s = await self.torment(kind)
                name = f"longest ms without acknowledgement ({kind})"
                figures[name] = max(figures[name], int(gap_s * 1000))
        finally:
            await self.clients.stop()
        return figures

    async def torment(self, kind: str) -> float:
        """Do something to the master, and undo it; return the seconds without acknowledgement."""
        began = len(self.clients.acks)
        await self._ways()[kind](await self.master(), LEASE_S * self.random.uniform(1.2, 2.5))
        await self.acknowledged(20)
        told = [ack.told_at for ack in self.clients.acks[max(began - 1, 0) :]]
        return max(b - a for a, b in itertools.pairwise(told))

    def _ways(self) -> dict[str, Callable[[Member, float], Awaitable[None]]]:
        return {
            "kill": self._kill,
            "stop": self._stop,
            "etcd": lambda member, pause_s: self._cut(member, pause_s, [ETCD]),
            "replicas": lambda member, pause_s: self._cut(member, pause_s, MEMBERS),
            "alone": lambda member, pause_s: self._cut(member, pause_s, [ETCD, *MEMBERS]),
            "clock": self._set_clock,
            "deaf": lambda member, pause_s: self._cut(member, pause_s, [ETCD, *MEMBERS], "in"),
            "mute": lambda member, pause_s: self._cut(member, pause_s, [ETCD, *MEMBERS], "out"),
            "engine": self._cut_engine,
            "everybody": self._kill_everybody,
            "successor": self._kill_successor,
            "storm": self._storm,
            "tail": self._leave_tail,
        }

    async def _kill(self, member: Member, pause_s: float) -> None:
        await member.kill()
        await asyncio.sleep(pause_s)
        await member.start()

    async def _stop(self, member: Member, pause_s: float) -> None:
        member.signal(signal.SIGSTOP)
        await asyncio.sleep(pause_s)
        member.signal(signal.SIGCONT)

    async def _cut(
        self, member: Member, pause_s: float, others: Sequence[int], way: str = "both"
    ) -> None:
        reached = [other for other in others if other != member.number]
        await self._network.cut(member.number, reached, way=way)
        await asyncio.sleep(pause_s)
        await self._network.heal(member.number)

    async def _set_clock(self, member: Member, pause_s: float) -> None:
        member.clock.set_clock(self.random.choice(JUMPS_S))
        await asyncio.sleep(pause_s)
        member.clock.set_clock(0)

    async def _cut_engine(self, master: Member, pause_s: float) -> None:
        await asyncio.gather(*(self._cut(member, pause_s, [ETCD]) for member in self.members))

    async def _kill_everybody(self, master: Member, pause_s: float) -> None:
        for member in self.random.sample(self.members, len(self.members)):
            await member.kill()
        for member in self.random.sample(self.members, len(self.members)):
            await member.start()

    async def _kill_successor(self, master: Member, pause_s: float) -> None:
        await master.kill()
        while (successor := await self.master()) is master:
            await asyncio.sleep(0.01)
        await self.acknowledged(1)
        await successor.kill()
        for member in self.random.sample([master, successor], 2):
            await asyncio.sleep(self.random.uniform(0, pause_s / 2))
            await member.start()

    async def _leave_tail(self, master: Member, pause_s: float) -> None:
        """Kill two masters in a row whose last messages one replica does not have.

        Consumers must not read these messages from the second one, which the replica succeeds.
        """
        lacking, having = self.random.sample([each for each in self.members if each != master], 2)
        await self._network.cut(lacking.number, [master.number, having.number])
        await asyncio.sleep(LAG_S / 2)  # it is still in the in-sync set
        await master.kill()
        await asyncio.sleep(pause_s)
        await having.kill()
        await self._network.heal(lacking.number)
        await asyncio.sleep(2 * LEASE_S)
        for member in self.random.sample([master, having], 2):
            await member.start()

    async def _storm(self, master: Member, pause_s: float) -> None:
        """Let several things happen to each member, independently of the others."""
        kinds = ["kill", "stop", "etcd", "replicas", "alone", "deaf", "mute"]

        async def suffer(member: Member, kinds: list[tuple[str, float, float]]) -> None:
            for kind, calm_s, pause_s in kinds:
                await asyncio.sleep(calm_s)
                await self._ways()[kind](member, pause_s)

        def drawn() -> list[tuple[str, float, float]]:
            pick = self.random
            longest = 2 * LEASE_S
            return [
                (pick.choice(kinds), pick.uniform(0, longest), pick.uniform(0.1, longest))
                for _ in range(STORM)
            ]

        await asyncio.gather(*(suffer(member, drawn()) for member in self.members))

    # -- the oracle ---------------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until all members have the same log; stop them and check everything."""
        async with asyncio.timeout(CALM_S):
            await self._logs_are_equal()
        acks = self.clients.acks
        for member in self.members:
            assert await member.stop() == 0, member.said[-2000:]
            check_files(member.store, SLOTS)
            log = readable(member.store / "commitlog")  # without code of the store
            self.clients.look(member.number, log)
            bodies = {record.offset: record.body for record in log}
            lost = [ack for ack in acks if bodies.get(ack.offset) != ack.body]
            assert not lost, f"member {member.number} lacks {len(lost)} acknowledged: {lost[:3]}"
        check_order(acks)
        check_history(self.clients.history)

    def explain(self, error: Exception, seed: int) -> None:
        """Add to an error what is needed to understand it, and keep the history."""
        path = Path(tempfile.gettempdir()) / f"firetrail-history-{seed}.json"
        path.write_text(as_json(self.clients.history))
        error.add_note(f"seed {seed}; the history is in {path}")
        for member in self.members:
            error.add_note(f"member {member.number} said:\n{member.said[-2000:]}")

    async def _logs_are_equal(self) -> None:
        """Wait until all members have a message and show everything, and nothing is being sent.

        A replica that is stopped earlier does not know yet that its last messages are confirmed.
        """
        while True:
            while not any([await self.clients.send(number) for number in MEMBERS]):
                await asyncio.sleep(0.1)
            for _ in range(100):
                ends = [_end(member.store) for member in self.members]
                is_equal = len(set(ends)) == 1 and ends[0] > self.clients.acks[-1].offset
                if is_equal and all(_is_shown(member.store) for member in self.members):
                    return
                await asyncio.sleep(0.05)


def check_order(acks: list[Ack]) -> None:
    """Check that messages which were sent after others were acknowledged have larger offsets."""
    told = sorted(acks, key=lambda ack: ack.told_at)
    highest, at = -1, 0
    for ack in sorted(acks, key=lambda ack: ack.sent_at):
        while told[at].told_at < ack.sent_at:
            highest = max(highest, told[at].offset)
            at += 1
        assert ack.offset > highest, f"{ack} was sent after a message at {highest} was acknowledged"


def _end(store: Path) -> int:
    with StoreView.open(store) as view:
        return view.end


def _is_shown(store: Path) -> bool:
    """Whether the queues have a unit for each message, by the files."""
    records = sum(record.topic == TOPIC for record in readable(store / "commitlog"))
    queues = (path.read_bytes() for path in (store / "consumequeue" / TOPIC).glob("*/*"))
    units = [unit for content in queues for unit in UNIT.iter_unpack(content) if unit[1]]
    return len(units) == records


async def _fail_over(
    folder: Path, seed: int, kinds: Sequence[str], network: type[Proxies] | type[Namespaces]
) -> Counter[str]:
    figures = Counter[str]()
    async with AsyncExitStack() as stack:
        group = Group(folder, seed, network(folder, stack))
        stack.push_async_callback(group.close)
        try:
            await group.start()
            figures += await group.suffer(kinds)
            await group.finish()
            await asyncio.to_thread(check_linearizable, group.clients.history)
            figures[CHECKED] = len(group.clients.history)
        except CheckerMissing:
            figures[UNCHECKED] = len(group.clients.history)
        except Exception as error:
            group.explain(error, seed)
            raise
        return figures + group.clients.figures()


def fail_over(folder: Path, seed: int, kinds: Sequence[str]) -> Counter[str]:
    """Torment the master of a group once in every way; return the figures.

    The members are in network namespaces if this process may create them.
    """
    with suppress(CheckerMissing):
        checker()  # it is built now: its modules cannot be fetched from a network namespace
    if can_partition():
        return run_in_namespace(_fail_over(folder, seed, kinds, Namespaces))
    possible = [kind for kind in kinds if kind not in NAMESPACE_KINDS]
    return asyncio.run(_fail_over(folder, seed, possible, Proxies))
