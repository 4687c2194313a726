"""Pairs of masters and replicas: traffic, following at the level of the store, and the oracle.

The oracle reads files without any code of the store: after the traffic, the log of a replica must
be that of its master byte for byte, and its queues must point to the same records.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from struct import Struct

from interop.peer import Java, Json, Sizes
from interop.servers import BROKER_CONF, jars
from interop.views import java_queues
from tests.helpers import PATIENCE_S
from tests.replication import followers

from firetrail.client import Admin, Message, MessageQueue, Outcome, Producer, SendResult
from firetrail.errors import NoAnswerError, RequestError
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.headers import ConsumerOffsetHeader, CreateTopicHeader
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.replica.follower import Follower, FollowerSettings
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import MasterAddress
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import SYSTEM

SIZES = Sizes(log=5 << 20, queue=60_000, slots=1000, entries=10_000)
"""A file of the log holds one message of the largest size that brokers take by default."""
HEARTBEAT_S = 0.5
HA_CONF = (
    f"{BROKER_CONF}mappedFileSizeCommitLog={SIZES.log}\nhaSendHeartbeatInterval=500\n"
    f"transactionOpBatchInterval=100\nmessageDelayLevel={DEFAULT_DELAY_LEVELS}\n"
)
"""The delay levels are those of the Java peer: units of delayed messages contain the time of
delivery, so a replica must have the levels of its master."""
NAME, TOPIC = "broker-a", "Live"
QUEUES = 4
BIG = (4 << 20) - 1000
UNIT = Struct(">qiq")
READER = Path(__file__).parent / "java" / "clients" / "ReadingGroup.java"


def replica_config(**settings: object) -> StoreConfig:
    """Return the settings of a replica's store, with the file sizes of :data:`HA_CONF`."""
    return SIZES.config(role=BrokerRole.SLAVE, **settings)


@contextmanager
def following(
    folder: Path, address: str, config: StoreConfig | None = None, begin: int | None = None
) -> Iterator[BrokerStore]:
    """Follow the Java master whose HA port is ``address``; yield the store of the replica.

    ``begin`` is the offset at which an empty replica begins. Following must not fail.
    """
    settings = config or replica_config()
    with followers.following(folder, address, settings, begin=begin, is_java=True) as store:
        yield store
        store.embedded.wait_dispatched()


@asynccontextmanager
async def follower_of(
    folder: Path, broker: str, config: StoreConfig | None = None, *, dispatches: bool = True
) -> AsyncIterator[tuple[BrokerStore, Follower]]:
    """Follow a master with all checks; ``broker`` is its address for requests.

    Without ``dispatches`` the replica ends with records that consumers may not see yet.
    """
    client = RemotingClient()
    settings = FollowerSettings(HEARTBEAT_S, check_s=0.5, retry_s=0.2, retry_max_s=0.2)
    with BrokerStore.open(folder, config or replica_config(), system=SYSTEM) as store:
        epochs = EpochFile(SYSTEM, folder)
        follower = Follower(store.log_copy(), epochs, client, SYSTEM, settings)
        follower.start()
        follower.follow(MasterAddress(broker))
        try:
            yield store, follower
        finally:
            await follower.stop()
            await client.close()
        if dispatches:
            store.embedded.wait_dispatched()


async def reached(follower: Follower, state: FollowerState) -> str:
    """Wait until a follower is in a state; return its error."""
    while follower.status.state is not state:
        await asyncio.sleep(0.02)
    return follower.status.error


# -- traffic ----------------------------------------------------------------------------------


async def create_topic(broker: str, topic: str = TOPIC) -> None:
    """Create a topic at a broker that need not be registered yet, and registers for it.

    Java's 5.x would register ten seconds after its start.
    """
    header = CreateTopicHeader(topic, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG")
    client = RemotingClient()
    try:
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await client.ask(broker, RemotingCommand(code, header.encode()), PATIENCE_S)
    finally:
        await client.close()


async def routed(namesrv: str, topic: str = TOPIC) -> None:
    """Wait until clients can find a topic."""
    async with Admin(namesrv) as admin:
        while topic not in await admin.topics() or not await admin.queues(topic):
            await asyncio.sleep(0.05)


async def send_some(
    namesrv: str, count: int, name: str = "some", size: int = 300
) -> list[SendResult]:
    """Send ordinary messages of random sizes to all queues."""
    rng = Random(name)
    queues = [MessageQueue(TOPIC, NAME, number) for number in range(QUEUES)]
    async with Producer(namesrv, "sending", timeout_s=20) as producer:
        sends = []
        for number in range(count):
            body = b"%s %d:" % (name.encode(), number) + rng.randbytes(rng.randrange(size))
            message = Message(TOPIC, body, tags=f"Tag{number % 3}", keys=[f"{name}{number}"])
            sends.append(producer.send(message, queue=queues[number % QUEUES]))
        return await asyncio.gather(*sends)


def _decided(outcome: Outcome, message: Message) -> Outcome:
    return outcome


async def send_all_kinds(namesrv: str, big: int = 3) -> list[SendResult]:
    """Send batches, transactions, delayed messages and ``big`` bodies of the largest size."""
    rng = Random(7)
    results = []
    async with Producer(namesrv, "kinds", timeout_s=20) as producer:
        for size in (1, 3, 40):
            batch = [Message(TOPIC, b"b%d" % number, keys=["b"]) for number in range(size)]
            results.append(await producer.send_batch(batch))
        for outcome in (Outcome.COMMIT, Outcome.ROLLBACK, Outcome.COMMIT):
            message = Message(TOPIC, outcome.name.encode(), keys=["half"])
            results.append(await producer.send_in_transaction(message, partial(_decided, outcome)))
        results.append(await producer.send(Message(TOPIC, b"late", delay_level=1)))
        for _ in range(big):
            results.append(await producer.send(Message(TOPIC, rng.randbytes(BIG))))
        await producer.send_one_way(Message(TOPIC, b"one way"))
    return results


async def log_end(namesrv: str, broker: str) -> int:
    """Return the end of a broker's log."""
    async with Admin(namesrv) as admin:
        while True:
            with suppress(RequestError, NoAnswerError):  # 4.9.7 fails in its first second
                return int((await admin.runtime_info(broker))["commitLogMaxOffset"])
            await asyncio.sleep(0.1)


async def caught_up(namesrv: str, broker: str, store: BrokerStore, quiet_s: float = 1.5) -> int:
    """Wait until the log of a replica ends where its master's does, and neither grows."""
    loop = asyncio.get_running_loop()
    end, since = -1, loop.time()
    while loop.time() - since < quiet_s:
        now = await log_end(namesrv, broker)
        if now != end or store.log.max_offset != now:
            end, since = now, loop.time()
        await asyncio.sleep(0.1)
    return end


async def offsets_copied(slave: str, group: str, offset: int) -> None:
    """Wait until a slave knows that a group has read the last queue up to ``offset``."""
    client = RemotingClient()
    header = ConsumerOffsetHeader(group, TOPIC, QUEUES - 1)
    found = None
    try:
        while found != str(offset):
            await asyncio.sleep(0.2)
            command = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
            found = (await client.request(slave, command, PATIENCE_S)).fields.get("offset")
    finally:
        await client.close()


def read_by_java(line: str, namesrv: str, group: str, count: int) -> set[tuple[int, int]]:
    """Let a stock consumer receive messages; return their queues and offsets."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars(line), str(READER)]
    done = subprocess.run(
        [*command, namesrv, TOPIC, group, str(count)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert not done.returncode, (done.stdout[-500:], done.stderr[-2000:])
    lines = [text.split("\t") for text in done.stdout.splitlines() if text.count("\t") == 2]
    return {(int(queue), int(offset)) for queue, offset, _ in lines}


# -- the oracle -------------------------------------------------------------------------------


def log_files(root: Path) -> dict[int, bytes]:
    """Return the files of a log by their physical offsets."""
    files = (root / "commitlog").iterdir()
    return {int(path.name): path.read_bytes() for path in sorted(files) if path.name.isdigit()}


def log_bytes(root: Path, begin: int, end: int) -> bytes:
    """Return a part of a log."""
    content = b""
    for base, data in log_files(root).items():
        content += data[max(begin - base, 0) : max(end - base, 0)]
    assert len(content) == end - begin
    return content


def units(root: Path, begin: int, end: int) -> dict[str, list[tuple[int, int, int]]]:
    """Return the units of each queue that point to records from ``begin`` to ``end``."""
    found = {}
    for folder in sorted((root / "consumequeue").glob("*/*")):
        content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        whole = content[: len(content) // UNIT.size * UNIT.size]
        own = [unit for unit in UNIT.iter_unpack(whole) if unit[1] and begin <= unit[0] < end]
        if own:
            found[folder.relative_to(root / "consumequeue").as_posix()] = own
    return found


def check_same(master: Path, replica: Path, begin: int, end: int) -> None:
    """Check that a replica has the log from ``begin`` to ``end``, and the queues, of its master."""
    theirs, own = log_bytes(master, begin, end), log_bytes(replica, begin, end)
    if theirs != own:  # the assertion of pytest would print megabytes
        at = next(at for at, pair in enumerate(zip(theirs, own, strict=True)) if pair[0] != pair[1])
        raise AssertionError(f"the logs differ at {begin + at}")
    assert units(replica, begin, end) == units(master, begin, end)


def check_java_sees_the_same(line: str, master: Path, replica: Path, end: int) -> None:
    """Check that the Java store reads the same from both folders; it may change them."""
    seen = []
    for surveyed in Java(line).survey([master, replica], "read --log", "read", sizes=SIZES):
        assert not surveyed.failure, surveyed.failure
        log, queues, *_ = surveyed.answers
        seen.append((_before(log, end), _queues_before(queues, end)))
    assert seen[0][0] and seen[0][1]
    assert seen[0] == seen[1]


def _before(records: list[Json], end: int) -> list[Json]:
    return [record for record in records if record["physical_offset"] < end]


def _queues_before(answer: list[Json], end: int) -> dict[tuple[str, int], list[Json]]:
    return {name: _before(view.messages, end) for name, view in java_queues(answer).items()}
