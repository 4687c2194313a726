"""A master hands over to its replica, and the power of both goes at any operation on either disk.

Both brokers run in one simulated world, on a disk each. Requests go directly to their handlers. The
log is not sent over a wire here (:mod:`tests.crash.power_loss.pair_survey` does that): both begin
with the same log. After each crash both brokers start again, and settle a hand-over that was
interrupted.
"""

import asyncio
import random
import shutil
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from tests.crash.oracle import History, Violation
from tests.crash.world.broker_process import BROKER, NoHAPort, NoServer, Requests, broker_config
from tests.crash.world.disk import Disk, Snapshot, random_image, write_image
from tests.crash.world.loop import WorldLoop
from tests.crash.world.simulation import Process, scratch
from tests.crash.world.threads import World

from firetrail import FiretrailError, StoreConfig
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.roles.promotion import Promotion
from firetrail.format.values.hosts import Host
from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.replica.follower import Follower
from firetrail.store.settings.store_config import BrokerRole

NAMES = ("old", "new")
HOSTS = {"old": Host("10.0.0.1", 10911), "new": Host("10.0.0.2", 10911)}
SETTLED_S = 120.0
"""Simulated seconds after which a hand-over that is not settled counts as stuck."""
MASTERS = (BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER)


class RoleNode(Process):
    """One of the two brokers."""

    def __init__(self, name: str, disk: Disk, config: StoreConfig, world: World) -> None:
        is_slave = name == "new"
        role = BrokerRole.SLAVE if is_slave else BrokerRole.ASYNC_MASTER
        super().__init__(disk, config.replace(role=role, store_host=HOSTS[name]), History(), 0)
        self.world = world
        self.files = self.files_class(disk, world)
        settings: BrokerConfig = BROKER
        if is_slave:
            settings = BROKER.replace(broker_id=1, master_address=str(HOSTS["old"]))
        self.broker = Broker(disk.root, settings, self.config, system=self.files.system())
        self.broker._server = cast(RemotingServer, NoServer())
        self.talk = Requests(self.broker)

    @property
    def is_master(self) -> bool:
        return self.broker.role in MASTERS

    @property
    def is_idle(self) -> bool:
        """Whether no change of role is under way or left to be settled by this broker."""
        saved = self.broker.roles.saved
        promotion: Promotion = self.broker._replicas.promotion
        return not promotion.step and (saved is None or saved.taking_over is None)


@dataclass(frozen=True, slots=True)
class RoleMoment:
    """Both disks at one moment, and what producers had been told by then."""

    label: str
    disks: dict[str, Snapshot]
    acked: dict[int, bytes]
    """The acknowledged messages that were flushed, by their physical offset."""
    epoch: int
    """The number of the last epoch in which one of them was acknowledged."""


class RolePair:
    """Both brokers in one world."""

    def __init__(self, below: Path, config: StoreConfig, seed: int, now: float = 0.0) -> None:
        """Prepare both in the folders ``old`` and ``new``, which must exist."""
        self.world = World(seed, 0.1, now)
        self.nodes = {
            name: RoleNode(name, Disk(below / name), config, self.world) for name in NAMES
        }
        self.moments: list[RoleMoment] = []
        self.acked: dict[int, bytes] = {}
        self.epoch = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start both; kill both at the end unless :meth:`close` was called."""
        with ExitStack() as stack:
            stack.enter_context(self.world.replaces_threading())
            stack.enter_context(patch("firetrail.broker.ports.HAPort", NoHAPort))
            stack.enter_context(patch.object(RemotingClient, "request", self._request))
            stack.enter_context(patch.object(Follower, "start", lambda follower: None))
            stack.enter_context(patch.object(Promotion, "_check_follows", lambda promotion: None))
            self.loop = WorldLoop(self.world)
            try:
                for node in self.nodes.values():
                    self.run(node.broker.start())
                yield
            finally:
                self.world.abandon()
                for node in self.nodes.values():
                    node._release()
                self.loop.leave()
            for failure in self.world.failures:
                raise Violation("I8: a thread died") from failure

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def _request(
        self, address: str, command: RemotingCommand, timeout_s: float = 0.0
    ) -> RemotingCommand:
        """Ask one of the two; it replaces the method of every client."""
        for name, node in self.nodes.items():
            if address == str(HOSTS[name]) and node.broker._handlers:
                body = bytes(command.content)
                return await node.talk._request(command.code, body, 0, command.fields)
        raise ConnectionRefusedError(f"{address}: cannot be reached")

    def close(self) -> None:
        for node in self.nodes.values():
            self.run(node.broker.stop())

    # -- the life -----------------------------------------------------------------------------

    def record(self) -> None:
        """Keep snapshots of both disks before each operation on either of them from now on."""
        for name, node in self.nodes.items():
            node.files.hooks.append(partial(self._keep, name))

    def _keep(self, name: str, kind: str, path: str) -> None:
        label = f"{len(self.moments)}: {kind} {name}/{path}"
        disks = {name: node.disk.snapshot(label) for name, node in self.nodes.items()}
        self.moments.append(RoleMoment(label, disks, dict(self.acked), self.epoch))

    async def send(self, name: str, body: bytes) -> None:
        """Send a message, which must be acknowledged, and flush it."""
        node = self.nodes[name]
        answer = await node.talk.send("A", body)
        if answer.code != 0:
            raise Violation(f"{name} is the master and refuses a message: {answer.remark}")
        await asyncio.to_thread(node.broker.store.flush)
        self.acked[decode_message_id(answer.fields["msgId"]).physical_offset] = body
        self.epoch = node.broker.epochs.number

    async def promote(self, name: str) -> None:
        """Promote a broker, and wait for the end of the change."""
        answer = await self.nodes[name].talk.ask(RequestCode.PROMOTE_REPLICA)
        assert answer.code == 0, answer.remark
        await self.settled()
        assert self.nodes[name].is_master, self.nodes[name].broker._replicas.promotion.error

    async def settled(self) -> None:
        """Wait until no role changes any more."""
        async with asyncio.timeout(SETTLED_S):
            while not all(node.is_idle for node in self.nodes.values()):
                await asyncio.sleep(0.1)

    def check(self, moment: RoleMoment) -> str:
        """Check what both have made of a crash; return the name of the master."""
        try:
            self.run(self.settled())
        except TimeoutError:
            report = [node.broker._replicas.promotion.status for node in self.nodes.values()]
            raise Violation(f"the hand-over is not settled: {report}") from None
        masters = [name for name, node in self.nodes.items() if node.is_master]
        if len(masters) != 1:
            raise Violation(f"there are {len(masters)} masters: {masters}")
        (name,) = masters
        broker = self.nodes[name].broker
        for offset, body in moment.acked.items():
            record = broker.store.at(offset)
            if record is None or record.body != body:
                raise Violation(f"I1: {body!r} was acknowledged, and {name} lacks it")
        least = max(moment.epoch, int(name == "new"))
        if broker.epochs.number < least:
            raise Violation(f"{name} is the master, and its epoch {broker.epochs.number} is old")
        if broker.topics.get("A") is None:
            raise Violation(f"{name} has no topic A")
        if broker.slave_mark.notes.is_slave:
            raise Violation(f"{name} is the master of a store that is marked as a slave's")
        self.run(self.send(name, b"afterwards"))
        return name


def _begin(below: Path, config: StoreConfig) -> None:
    """Give both brokers the same log and tables."""
    for name in NAMES:
        (below / name).mkdir(parents=True)
    pair = RolePair(below, config, 0)

    async def fill() -> None:
        for number in range(3):
            await pair.send("old", b"before %d" % number)

    with pair.running():
        pair.run(fill())
        pair.close()
    shutil.rmtree(below / "new")
    shutil.copytree(below / "old", below / "new")


async def _hand_over(pair: RolePair) -> None:
    """Let the replica take over as planned, and send a message to the new master."""
    await pair.promote("new")
    await pair.send("new", b"later")


class RoleChecker:
    """Starts both brokers on images of their disks."""

    def __init__(self, below: Path, config: StoreConfig, source: random.Random) -> None:
        self._below = below
        self._config = config
        self._source = source
        self.outcomes = dict.fromkeys(NAMES, 0)
        """How often each became the master."""

    def check(self, moment: RoleMoment, *, again: bool) -> None:
        """Check what is left of a crash; with ``again``, also after a second crash."""
        images = sum(self.outcomes.values())
        root = self._below / f"image-{images}"
        hows = []
        for name in NAMES:
            how, image = random_image(moment.disks[name], self._source)
            write_image(image, root / name)
            hows.append(how)
        pair = RolePair(root, self._config, images, now=1_000.0)
        pair.acked, pair.epoch = dict(moment.acked), moment.epoch
        if again:
            pair.record()
        try:
            with pair.running():
                self.outcomes[pair.check(moment)] += 1
                pair.close()
        except (AssertionError, FiretrailError) as error:
            error.add_note(f"before {moment.label}, {hows}")
            raise
        shutil.rmtree(root)
        if again:
            self.check(self._source.choice(pair.moments), again=False)


def role_survey(
    mode: str, source: random.Random, images: int, again_share: float = 0.2
) -> RoleChecker:
    """Let the power of both go at some operations; raise the first Violation that is found."""
    config = broker_config(mode)
    with scratch() as below:
        _begin(below / "live", config)
        pair = RolePair(below / "live", config, source.randrange(1000), now=100.0)
        with pair.running():
            pair.record()
            pair.run(_hand_over(pair))
            pair.close()
        checker = RoleChecker(below, config, source)
        for moment in source.sample(pair.moments, min(images, len(pair.moments))):
            checker.check(moment, again=source.random() < again_share)
        return checker
