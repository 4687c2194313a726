"""A master and a replica in one simulated world: two disks and one wire.

Both stores, the HA port of the master and the HA client of the replica are the real ones. Files,
threads, the clock and the sockets between the two are simulated, so a seed repeats a run.
"""

from __future__ import annotations

import copy
import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.crash.oracle import History, QueueKey, Stored, Violation, stored
from tests.crash.world.disk import Disk, Image, Snapshot, write_image
from tests.crash.world.network import Network
from tests.crash.world.simulation import Moment, Process, tiny_config
from tests.crash.world.threads import World, WorldClock, WorldThreads

from firetrail import FiretrailError, FlushMode, Message, PutResult, PutStatus, Store, StoreConfig
from firetrail.errors import NotReachedError
from firetrail.replication.ha.ha_client import HAClient
from firetrail.replication.ha.ha_frames import FROM_THE_START, REPORT, ReportReader, encode_report
from firetrail.replication.ha.ha_port import HAPort
from firetrail.replication.ha.ha_service import HAService
from firetrail.replication.ha.ha_source import HALimits, HASource
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole

ADDRESS = "10.0.0.1:10912"
RECONNECT_S = 0.2
PATIENCE_S = 45.0
"""Simulated seconds after which a replica that should follow counts as stuck."""


@dataclass(frozen=True, slots=True)
class PairConfig:
    """The settings of both sides."""

    master: StoreConfig
    replica: StoreConfig
    limits: HALimits = field(default_factory=lambda: HALimits(700, heartbeat_s=1.0))

    @property
    def replica_syncs(self) -> bool:
        """Whether the replica reports only what it has synced."""
        return self.replica.flush is FlushMode.SYNC


def pair_config(mode: str, replica_mode: str, **changes: Any) -> PairConfig:
    """Return the settings of a master that waits for one replica, unless they are changed."""
    return PairConfig(
        tiny_config(mode, **{"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2} | changes),
        tiny_config(replica_mode, role=BrokerRole.SLAVE, **changes),
    )


class Node(Process):
    """One of the two processes; they share a world."""

    def __init__(self, disk: Disk, config: StoreConfig, history: History, world: World) -> None:
        super().__init__(disk, config, history, seed=0)
        self.world = world
        self.files = self.files_class(disk, world)
        self.confirmed = 0
        """How many messages, from the first on, were acknowledged: they are on both sides."""

    def open(self) -> Store:
        self.broker_store = BrokerStore.open(
            self.disk.root, self.config, system=self.files.system()
        )
        self._store = self.broker_store.embedded
        return self._store

    @property
    def is_open(self) -> bool:
        return self._store is not None and not self._store._engine.is_stopped

    def close(self) -> None:
        self.store.close()

    def put_without_waiting(self, message: Message) -> None:
        """Put a message that waits neither for the disk nor for the replica."""
        message.wait_for_flush = False
        result = self.store.try_put(message)
        assert result.ok
        self.history.add([stored(message, result)])

    def _note(self, new: list[Stored], result: PutResult) -> None:
        super()._note(new, result)
        if result.status is PutStatus.PUT_OK:
            self.confirmed = self.history.position_of(result.physical_offset + result.size)

    def visible(self) -> dict[QueueKey, int]:
        """Return the end of every queue as consumers see it; empty if nothing is promised."""
        return self._visible() if self.is_open else {}


@dataclass(frozen=True, slots=True)
class PairMoment:
    """Both disks at one moment, and what had been promised by then."""

    label: str
    master: Moment
    replica: Snapshot
    reported: int
    """The largest offset that the replica has reported."""
    confirmed: int
    seen_on_master: dict[QueueKey, int]
    seen_on_replica: dict[QueueKey, int]
    replica_min: int

    def replica_history(self, final: History) -> History:
        """Return everything that the master has put, with the beginning of the replica's log."""
        history = copy.copy(final)
        history.log_min = self.replica_min
        return history

    def least_on_replica(self, final: History) -> int:
        """Return how many messages the replica must have: those reported, acknowledged or seen."""
        seen = [
            number
            for number, message in enumerate(final.messages, 1)
            if message.is_in_queue
            and message.queue_offset
            < max(
                self.seen_on_master.get(message.queue, 0),
                self.seen_on_replica.get(message.queue, 0),
            )
        ]
        return max([final.position_of(self.reported), self.confirmed, *seen])


class Pair:
    """A master and the replica that follows it."""

    def __init__(
        self,
        below: Path,
        config: PairConfig,
        seed: int,
        *,
        preemption: float = 0.2,
        history: History | None = None,
        now: float = 0.0,
    ) -> None:
        """Prepare both in the folders ``master`` and ``replica``, which may have a content."""
        self.config = config
        self.world = World(seed, preemption, now)
        self.network = Network(self.world, random.Random(seed))
        self.network.on_report = self._note_report
        self.history = history or History()
        for name in ("master", "replica"):
            (below / name).mkdir(parents=True, exist_ok=True)
        self.master = Node(Disk(below / "master"), config.master, self.history, self.world)
        self.replica = Node(Disk(below / "replica"), config.replica, self.history, self.world)
        self.moments: list[PairMoment] = []
        self.reports: list[int] = []
        self.errors: list[FiretrailError] = []
        """What ended connections, except for the loss of a connection."""
        self.replica_min = 0
        """The replica has deleted its log before this offset."""
        self.faults = 0
        """How often bytes were damaged on the wire, or the replica's disk was full."""
        self._reader = ReportReader()
        self._reader_of = 0
        self._client: HAClient | None = None
        self._is_following = False

    # -- start and end ------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[Pair]:
        """Open both stores, and kill both at the end unless :meth:`close` was called."""
        with self.world.replaces_threading(), self.network.replaces_socket():
            try:
                self.master.open()
                self.replica.open()
                self.serve()
                self.follow()
                yield self
            finally:
                self.world.abandon()
                self.master._release()
                self.replica._release()
            for failure in self.world.failures:
                raise Violation("I8: a thread died") from failure

    def serve(self) -> None:
        """Open the HA port of the master."""
        store = self.master.broker_store
        source = HASource(
            store.log,
            store.replica_acks,
            self.config.limits,
            WorldClock(self.world),
            WorldThreads(self.world),
        )
        self.service = HAService(source, cast(HAPort, self.network.port))
        self.service.start()

    def follow(self) -> None:
        """Let the replica follow, and connect again after each loss of the connection."""
        self._is_following = True
        self._follower = self.world.spawn(self._follow, "follower")

    def _follow(self) -> None:
        while self._is_following:
            log = self.replica.broker_store.log_copy()
            begin = log.max_offset
            if log.is_empty:
                begin = max(begin, self.master.broker_store.log.min_offset)
            self._client = HAClient(
                log, ADDRESS, begin, WorldClock(self.world), heartbeat_s=1.0, silence_s=20.0
            )
            try:
                self._client.follow()
            except NotReachedError:
                pass  # the wire was cut, or the master refuses
            except FiretrailError as error:
                self.errors.append(error)
            if self._is_following:
                self.world.pause(RECONNECT_S)

    def stop_following(self) -> None:
        """End the connection and wait for its thread."""
        self._is_following = False
        if self._client is not None:
            self._client.stop()
        self.world.block(lambda: self._follower.done)

    def close(self) -> None:
        """Stop both sides cleanly; the replica should have everything.

        Messages that replicas have not confirmed are dispatched by the next start.
        """
        for node in (self.master, self.replica):
            if not node.store.wait_dispatched():
                raise Violation(f"R7: what the replica has confirmed is not shown in {node}")
        self.stop_following()
        self.service.stop()
        self.master.close()
        self.replica.close()

    # -- faults -------------------------------------------------------------------------------

    def expire_replica(self) -> None:
        """Delete all old files of the replica's log."""
        self.replica.store.delete_expired(forced=True)
        self.replica_min = self.replica.broker_store.log.min_offset

    def damage_wire(self) -> None:
        """Flip a bit in something that the master sends from now on."""
        self.faults += 1
        self.network.flip_after = self.network.source.randrange(1500)

    @contextmanager
    def stranger(self) -> Iterator[None]:
        """Let somebody be connected who confirms what was never sent."""
        with self.network.create_connection(("10.0.0.1", 10912), 3.0, is_tapped=False) as stranger:
            stranger.settimeout(1.0)
            stranger.sendall(
                encode_report(max(self.master.broker_store.log.min_offset, FROM_THE_START))
            )
            with suppress(OSError):
                stranger.recv(1)
                stranger.sendall(encode_report(self.master.broker_store.log.max_offset + 3000))
            self.world.pause(0.01)
            yield

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let the replica's disk have no space."""
        self.faults += 1
        self.replica.files.hooks.append(_no_space)
        try:
            yield
        finally:
            self.replica.files.hooks.remove(_no_space)

    # -- what is known of it ------------------------------------------------------------------

    def record(self) -> None:
        """Keep snapshots of both disks before each operation on either of them from now on."""
        self.master.files.hooks.append(lambda kind, path: self._keep(f"{kind} master/{path}"))
        self.replica.files.hooks.append(lambda kind, path: self._keep(f"{kind} replica/{path}"))

    def _keep(self, label: str) -> None:
        label = f"{len(self.moments)}: {label}"
        master, replica = self.master, self.replica
        promised = Moment(master.disk.snapshot(label), copy.copy(self.history), master.visible())
        self.moments.append(
            PairMoment(
                label,
                promised,
                replica.disk.snapshot(label),
                max(self.reports, default=0),
                master.confirmed,
                self._seen(master),
                replica.visible(),
                self.replica_min,
            )
        )

    @staticmethod
    def _seen(node: Node) -> dict[QueueKey, int]:
        """Return the ends of the queues in any flush mode."""
        if not node.is_open:
            return {}
        queues = node.broker_store.queues
        return {queue: queues.max_offset(*queue) for queue in queues.pairs()}

    def _note_report(self, data: bytes) -> None:
        """Note what the replica sends; reports may arrive in parts."""
        if self._reader_of != self.network.connections:
            self._reader_of = self.network.connections
            self._reader = ReportReader()
        assert len(data) % REPORT.size == 0
        reports = self._reader.feed(data)
        self.reports += (offset for offset in reports if offset >= 0)  # others introduce it

    @property
    def is_caught_up(self) -> bool:
        """Whether the replica has reported the end of the master's log."""
        end = self.master.broker_store.log.max_offset
        connections = self.service.connections
        return any(connection.session.acked >= end for connection in connections)

    def catch_up(self) -> None:
        """Wait until the replica has everything; a replica that does not get it is stuck."""
        self.master.flush()
        if not self.world.block(lambda: self.is_caught_up, PATIENCE_S):
            raise Violation(
                f"R5: the replica has the log up to {self.replica.store.log_range[1]}, the master "
                f"up to {self.master.store.log_range[1]}; {self.errors[-2:]} {self.world.failures}"
            )


def _no_space(kind: str, name: str) -> None:
    if kind in ("allocate", "create", "write"):
        raise OSError(errno.ENOSPC, "No space left on device", name)


def log_bytes(root: Path, begin: int, end: int) -> bytes:
    """Return the bytes of a log between two offsets, read from its files."""
    content = b""
    for path in sorted((root / "commitlog").iterdir()):
        base, data = int(path.name), path.read_bytes()
        content += data[max(begin - base, 0) : max(end - base, 0)]
    return content


def check_same_log(pair: Pair) -> None:
    """Raise a Violation unless both logs are equal where both have files."""
    (low, end), (other, replica_end) = (
        node.store.log_range for node in (pair.master, pair.replica)
    )
    begin = max(low, other)
    if end != replica_end:
        raise Violation(f"R1: the replica's log ends at {replica_end}, the master's at {end}")
    if log_bytes(pair.master.disk.root, begin, end) != log_bytes(
        pair.replica.disk.root, begin, end
    ):
        raise Violation(f"R1: the logs differ between {begin} and {end}")


def write_images(below: Path, master: Image, replica: Image) -> None:
    """Write the disks of both sides after a crash."""
    write_image(master, below / "master")
    write_image(replica, below / "replica")
