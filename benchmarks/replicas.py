"""A master and a replica under load, each of them Firetrail or Java, driven by Java's client.

Master, replica, name server and client share the machine. The end of a broker's log is taken from
its answer to GET_BROKER_RUNTIME_INFO.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from interop.replicas import create_topic, routed
from interop.servers import MASTER, SLAVE, SYNC_MASTER, Role, Servers, our_name_server

from benchmarks.bench import GIB, MIB, Bench
from benchmarks.contestants import TIMEOUT_S, RunError, firetrail
from benchmarks.figures import Json, Line, Unit, samples
from benchmarks.measurements import OURS
from benchmarks.reads import percentiles
from benchmarks.servers import BATCH, LINE, SIZE, THREADS, Figure, cpu_s, load
from firetrail.errors import RequestError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import KVTable
from firetrail.remoting.messages.headers import SendHeaderV2
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

NAME, TOPIC = "broker", "Lag"
HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
SETTINGS = "brokerClusterName=DefaultCluster\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n"
SYNC = "inSyncReplicas=2\ntotalReplicas=2\nslaveTimeout=30000\n"
ONE_FILE = 900 * MIB
"""The longest log for a Java replica of a Java master, which gets only the last file."""
POLL_S = 0.02
IDLE_S = 0.05
"""Pause before a message whose way to the replica is measured."""
JAVA_JAVA, JAVA_OURS, OURS_JAVA = (
    "Java 5.3.3 to Java",
    "Java 5.3.3 to Firetrail",
    "Firetrail to Java 5.3.3",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A master and a replica, each of them Firetrail or Java."""

    java_master: bool = False
    java_replica: bool = False

    def master(self, servers: Servers, namesrv: str, role: Role) -> AbstractContextManager[str]:
        """Run the master."""
        start = servers.broker if self.java_master else servers.our_broker
        settings = SYNC if role is SYNC_MASTER else ""
        return start(namesrv, NAME, role=role, settings=settings)

    def replica(self, servers: Servers, namesrv: str) -> AbstractContextManager[str]:
        """Run the replica."""
        start = servers.broker if self.java_replica else servers.our_broker
        return start(namesrv, NAME, role=SLAVE)


class Ends:
    """The ends of the logs of running brokers."""

    def __init__(self, servers: Servers, master: str, replica: str) -> None:
        self._addresses = (master, replica)
        self._pids = [servers.pids[master], servers.pids[replica]]
        self._client = RemotingClient()

    async def of_master(self) -> int:
        """Return where the master's log ends."""
        return await self._end(self._addresses[0])

    async def of_replica(self) -> int:
        """Return where the replica's log ends."""
        return await self._end(self._addresses[1])

    async def send(self, *, wait: bool = True) -> None:
        """Send a message to the master; ``wait`` as it waits for replicas."""
        properties = "" if wait else "WAIT\1false\2"
        now = int(time.time() * 1000)
        header = SendHeaderV2("replicating", TOPIC, "TBW102", 4, 0, 0, now, 0, properties)
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.encode(), bytes(SIZE))
        await self._client.ask(self._addresses[0], command, TIMEOUT_S)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _end(self, address: str) -> int:
        try:
            answer = await self._client.ask(
                address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), TIMEOUT_S
            )
        except RequestError:  # Java's has no figures in its first second
            return -1
        return int(KVTable.decode(answer.content).table["commitLogMaxOffset"])

    def cpu_s(self) -> float:
        """Return the CPU time that both brokers have used."""
        return sum(map(cpu_s, self._pids))

    async def reached(self, end: int, pause_s: float = POLL_S) -> float:
        """Wait until the replica has the log up to ``end``; return the time."""
        deadline = time.perf_counter() + TIMEOUT_S
        while await self.of_replica() < end:
            if time.perf_counter() > deadline:
                raise RunError(f"the replica did not reach {end} within {TIMEOUT_S} s")
            await asyncio.sleep(pause_s)
        return time.perf_counter()


def replicating(bench: Bench) -> Iterator[Line]:
    """Catch-up, lag and throughput of an ASYNC_MASTER, and the cost of a SYNC_MASTER."""
    figures: tuple[Figure, ...] = (
        ("replica, catch-up from an empty folder", Unit.BYTES, "catch_up", 2.0),
        ("master and replica, CPU per GiB of catch-up", Unit.SECONDS, "catch_up_cpu", 1.0),
        ("replica, from the response of a send to its log, p50", Unit.SECONDS, "p50", 1.0),
        ("replica, from the response of a send to its log, p99", Unit.SECONDS, "p99", None),
        ("replica, batches of 32 until it has them", Unit.MESSAGES, "copied", 1.0),
        ("ASYNC_MASTER, send, 64 threads", Unit.MESSAGES, "async", None),
        ("ASYNC_MASTER and replica, CPU per send", Unit.SECONDS, "async_cpu", 1.0),
        ("SYNC_MASTER, send, 64 threads", Unit.MESSAGES, "sync", 1.0),
        ("SYNC_MASTER and replica, CPU per send", Unit.SECONDS, "sync_cpu", 1.0),
        ("SYNC_MASTER, share of the rate of an ASYNC_MASTER", Unit.SHARE, "share", 1.0),
    )
    runs: dict[str, Callable[[], Json]] = {OURS: partial(_run, bench, Pair())}
    if bench.javas:
        runs[JAVA_JAVA] = partial(_run, bench, Pair(java_master=True, java_replica=True))
        runs[JAVA_OURS] = partial(_run, bench, Pair(java_master=True))
        runs[OURS_JAVA] = partial(_run, bench, Pair(java_replica=True))
    answers = bench.take_turns(runs)
    for title, unit, name, wanted in figures:
        ours = samples(unit, answers[OURS], name)
        if not bench.javas:
            yield Line(title, ours)
        for theirs in list(answers)[1:]:
            target = wanted if theirs == JAVA_JAVA else None
            yield Line(title, ours, theirs, samples(unit, answers[theirs], name), target)


def _run(bench: Bench, pair: Pair) -> Json:
    with bench.folder("replicated") as folder:
        figures = asyncio.run(_asynchronous(bench, pair, folder))
    with bench.folder("replicated") as folder:
        figures |= asyncio.run(_synchronous(bench, pair, folder))
    return figures | {"share": figures["sync"] / figures["async"]}


async def _asynchronous(bench: Bench, pair: Pair, folder: Path) -> Json:
    sent = bench.scale.served
    only_last = pair.java_master and pair.java_replica
    size = min(bench.scale.replicated, ONE_FILE) if only_last else bench.scale.replicated
    firetrail("fill", folder / NAME, size=size, settings=bench.scale.settings)
    async with running(bench, pair, MASTER, folder) as (namesrv, ends):
        figures = await catch_up(ends, bench.scale.log_size if only_last else 0)
        figures |= await lag(ends, bench.scale.lag)
        figures |= await _sent(ends, namesrv, sent, "async")
        figures["copied"] = await _copied(ends, namesrv, 4 * sent)
    return figures


async def _synchronous(bench: Bench, pair: Pair, folder: Path) -> Json:
    async with running(bench, pair, SYNC_MASTER, folder) as (namesrv, ends):
        await ends.send(wait=False)
        await ends.reached(1)
        return await _sent(ends, namesrv, bench.scale.served, "sync")


@asynccontextmanager
async def running(
    bench: Bench, pair: Pair, role: Role, folder: Path
) -> AsyncIterator[tuple[str, Ends]]:
    """Run both brokers; yield the address of their name server, and the ends of their logs."""
    folder.mkdir(exist_ok=True)
    servers = _servers(bench, folder)
    with our_name_server() as namesrv, pair.master(servers, namesrv, role) as master:
        for topic in (TOPIC, "Single", "Batch"):
            await create_topic(master, topic)
            await routed(namesrv, topic)
        with pair.replica(servers, namesrv) as replica:
            async with aclosing(Ends(servers, master, replica)) as ends:
                yield namesrv, ends


def _servers(bench: Bench, folder: Path) -> Servers:
    sizes = "".join(f"{key}={value}\n" for key, value in bench.scale.settings.items())
    return Servers(LINE, folder, HEAP, f"{SETTINGS}{sizes}")


async def catch_up(ends: Ends, file_size: int) -> Json:
    """Measure the bytes per second of a replica that begins with an empty folder.

    A Java replica of a Java master gets only the last file, of ``file_size``.
    """
    end = await ends.of_master()
    size = end % file_size if file_size else end
    began, cpu_before = time.perf_counter(), ends.cpu_s()
    while await ends.of_replica() <= 0:
        began, cpu_before = time.perf_counter(), ends.cpu_s()
        await asyncio.sleep(POLL_S / 4)
    ended = await ends.reached(end)
    cpu = ends.cpu_s() - cpu_before
    return {"catch_up": size / (ended - began), "catch_up_cpu": cpu * GIB / size}


async def lag(ends: Ends, count: int) -> Json:
    """Measure how soon an idle master's new messages are in the log of the replica."""
    times = []
    for _ in range(count):
        await asyncio.sleep(IDLE_S)
        end = await ends.of_replica()
        await ends.send()
        began = time.perf_counter()
        times.append(await ends.reached(end + 1, pause_s=0) - began)
    return dict(percentiles(times))


async def _sent(ends: Ends, namesrv: str, count: int, role: str) -> Json:
    """Measure sends of many threads, and the CPU time of both brokers until the replica has them.

    The load begins with a warm-up of a fifth of the messages.
    """
    before = ends.cpu_s()
    per_s = load(namesrv, "send", "Single", THREADS, SIZE, count, 1)["per_s"]
    await ends.reached(await ends.of_master())
    return {role: per_s, f"{role}_cpu": (ends.cpu_s() - before) / (1.2 * count)}


async def _copied(ends: Ends, namesrv: str, count: int) -> float:
    """Return the messages per second that are sent and copied."""
    per_s = load(namesrv, "send", "Batch", THREADS, SIZE, count, BATCH)["per_s"]
    ended = time.perf_counter()
    end = await ends.of_master()
    behind_s = 0.0
    if await ends.of_replica() < end:
        behind_s = await ends.reached(end) - ended
    return count / (count / float(per_s) + behind_s)


REPLICATING = {"replicating": replicating}
