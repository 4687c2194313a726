"""Producers and consumers of a group of brokers, which record everything they do."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tests.crash.files_check import Raw, pulled
from tests.torture.records.history import Kind, Operation

from firetrail.errors import FiretrailError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.headers import PullHeader
from firetrail.remoting.wire.codes import PullFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

TOPIC, GROUP = "Failover", "readers"
QUEUES = 4
PRODUCERS, CONSUMERS = 4, 3
REQUEST_S = 2.0
PAUSE_S = 0.01
"""Of a client after each request, so that porcupine can check histories of minutes."""
STRAY = 0.1
"""The part of pulls that go to a member at random, which may be a former master."""
PULLED = 32
FINAL = 0
"""The client of the final look at the logs; the others are numbered from 1 on."""


class Ack(NamedTuple):
    """A message that a producer was told to be stored."""

    body: bytes
    offset: int
    sent_at: float
    told_at: float
    member: int


class Recorder:
    """The clients of a group.

    Attributes:
        history: What they did, in the order in which it ended.
        acks: The messages that were acknowledged, with their physical offsets.
    """

    def __init__(self, seed: int) -> None:
        self.history: list[Operation] = []
        self.acks: list[Ack] = []
        self._random = Random(f"clients {seed}")
        self._addresses: Sequence[str] = ()
        self._numbers = itertools.count()
        self._clients = itertools.count(1)
        self._client = RemotingClient()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, addresses: Sequence[str]) -> None:
        """Use the members at these addresses from now on; they are numbered from 1 on."""
        self._addresses = addresses
        loops = [self._produce] * PRODUCERS + [self._consume] * CONSUMERS
        self._tasks = [asyncio.create_task(loop()) for loop in loops]

    async def stop(self) -> None:
        """Finish the requests in progress."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        await self._client.close()

    # -- producers ----------------------------------------------------------------------------

    async def _produce(self) -> None:
        """Send messages one after the other, to whichever member takes them."""
        client, at = next(self._clients), 0
        while not self._stop.is_set():
            if not await self.send(at + 1, client):
                at = (at + 1) % len(self._addresses)
            await asyncio.sleep(PAUSE_S)

    async def send(self, member: int, client: int = FINAL) -> bool:
        number, queue = next(self._numbers), self._random.randrange(QUEUES)
        body = b"message %d" % number
        fields = {"a": "P", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue), "f": "0"}
        fields |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "i": "", "j": "0", "m": "false"}
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)
        called = time.monotonic_ns()
        answer = await self._ask(member, command)
        returned = time.monotonic_ns()
        told = answer.fields if answer and answer.code == ResponseCode.SUCCESS else None
        offset = int(told["queueOffset"]) if told else -1
        self.history.append(
            Operation(
                *(client, Kind.SEND, queue, member, called, returned),
                *(bool(told), offset, (number,)),
            )
        )
        if told:
            physical = int(told["msgId"][-16:], 16)
            self.acks.append(Ack(body, physical, called / 1e9, returned / 1e9, member))
        return bool(told)

    # -- consumers ----------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Read all queues, from whichever member serves them."""
        client, at = next(self._clients), 0
        position = [0] * QUEUES
        while not self._stop.is_set():
            queue = self._random.randrange(QUEUES)
            strays = self._random.random() < STRAY
            asked = self._random.randrange(len(self._addresses)) if strays else at
            found = await self._pull(asked + 1, client, queue, position[queue])
            if found is None and not strays:
                at = (at + 1) % len(self._addresses)
            position[queue] += found or 0
            await asyncio.sleep(PAUSE_S)

    async def _pull(self, member: int, client: int, queue: int, offset: int) -> int | None:
        """Read once; return how many messages were found, None if the member does not serve."""
        flags = PullFlag.SUBSCRIPTION
        header = PullHeader(GROUP, TOPIC, queue, offset, PULLED, flags, 0, 0, 0, "*", "TAG")
        called = time.monotonic_ns()
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
        answer = await self._ask(member, command)
        if answer is None:
            return None
        empty = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
        if answer.code != ResponseCode.SUCCESS and answer.code not in empty:
            return None
        assert isinstance(answer.body, bytes | memoryview)
        records = pulled(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []
        ids = tuple(number_of(record) for record in records)
        wrong = [each for each, place in enumerate(records, offset) if place.queue_offset != each]
        assert not wrong, f"a pull at {offset} was answered with {records}"
        times = called, time.monotonic_ns()
        kind = Kind.READ if ids else Kind.END
        end = int(answer.fields["maxOffset" if ids else "nextBeginOffset"])
        self.history.append(Operation(client, kind, queue, member, *times, True, offset, ids, end))
        return len(ids)

    async def _ask(self, member: int, command: RemotingCommand) -> RemotingCommand | None:
        try:
            return await self._client.request(self._addresses[member - 1], command, REQUEST_S)
        except (OSError, FiretrailError):
            return None

    def look(self, member: int, log: Sequence[Raw]) -> None:
        now = time.monotonic_ns()
        for queue in range(QUEUES):
            found = [raw for raw in log if raw.topic == TOPIC and raw.queue_id == queue]
            assert [raw.queue_offset for raw in found] == [*range(len(found))], "I3: a gap"
            ids = tuple(map(number_of, found))
            looked = (FINAL, Kind.FINAL, queue, member, now, now, True, 0, ids, len(ids))
            self.history.append(Operation(*looked))

    def figures(self) -> Counter[str]:
        """Return how much there is in the history."""
        masters = [ack.member for ack in sorted(self.acks, key=lambda ack: ack.told_at)]
        kinds = Counter(op.kind for op in self.history if op.ok)
        return Counter(
            {
                "failovers": sum(one != other for one, other in itertools.pairwise(masters)),
                "acknowledged": len(self.acks),
                "sends without an OK": sum(not op.ok for op in self.history),
                "reads": kinds[Kind.READ],
                "reads of the end": kinds[Kind.END],
            }
        )


def number_of(record: Raw) -> int:
    return int(record.body.split()[1])
