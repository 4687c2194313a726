"""A group of brokers in one process, with a fake etcd, whose members can be cut off from it.

Leases are long, so that a busy machine does not end one. Tests let time pass on the clock of a
member, and end leases in etcd.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.broker.brokers import SMALL, Talk
from tests.client.clusters import until
from tests.replication.fake_etcd import Endpoint, FakeEtcd, fake_etcd

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import StoreClosedError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.group.group_status import GroupStatus
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import Clock, System

LEASE_S = 30
LAG_S = 15
FIRST = b"0"
"""The first message of a group."""
QUICK: dict[str, Any] = {
    "ha_lease_s": LEASE_S,
    "ha_lag_ms": LAG_S * 1000,
    "ha_heartbeat_ms": 100,
    "sync_interval_ms": 100,
    "vip_channel": False,
}


def status_of(broker: Broker) -> GroupStatus:
    status = broker.group
    assert status is not None
    return status


class PushedClock(Clock):
    """The clock of the machine, ahead by ``pushed_s`` except for the wall time."""

    pushed_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.pushed_s

    def since_boot(self) -> float:
        return super().since_boot() + self.pushed_s


class BrokerGroup:
    """Members by number; number 1 founds the group."""

    def __init__(self, folder: Path, etcd: FakeEtcd, store: StoreConfig) -> None:
        self.etcd = etcd
        self.members: dict[int, Broker] = {}
        self.clocks: dict[int, PushedClock] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self.client = RemotingClient()
        self._folder = folder
        self._store = store

    async def start(
        self, number: int, *, role: BrokerRole | None = None, **settings: Any
    ) -> Broker:
        """Start a member; ``role`` is its role as a master, if it is the founder."""
        endpoint = self.endpoints.setdefault(number, self.etcd.endpoint())
        endpoint.cut = False
        founds = number == 1
        config = BrokerConfig(
            broker_id=0 if founds else number,
            ha_member=number,
            etcd_endpoints=endpoint.url,
            **{**QUICK, **settings},
        )
        store = self._store.replace(
            role=(role or self._store.role) if founds else BrokerRole.SLAVE,
            store_host=self._store.store_host._replace(port=0),
        )
        clock = self.clocks.setdefault(number, PushedClock())
        broker = Broker(self._folder / str(number), config, store, system=System(clock=clock))
        await broker.start()
        self.members[number] = broker
        return broker

    async def stop(self, number: int) -> None:
        await self.members.pop(number).stop()

    def cut_off(self, number: int) -> None:
        """Cut a member off from etcd for so long that it must not acknowledge any more."""
        self.endpoints[number].cut = True
        self.clocks[number].pushed_s += LEASE_S

    def end_lease(self) -> None:
        """Let the lease of the master expire in etcd."""
        with self.etcd.changed:
            for lease in [int(entry.get("lease", 0)) for entry in self.etcd.keys.values()]:
                if lease:
                    self.etcd.end_lease(lease)

    def keys(self) -> set[str]:
        """Return the keys of the group in etcd, without their common beginning."""
        with self.etcd.changed:
            names = [b64decode(key).decode() for key in self.etcd.keys]
        return {name.split("/", 4)[4] for name in names}

    def edit_in_sync(self, members: list[int]) -> None:
        """Change the in-sync set in etcd, as an operator does with etcdctl."""
        with self.etcd.changed:
            ((key, entry),) = [
                (key, entry)
                for key, entry in self.etcd.keys.items()
                if b64decode(key).endswith(b"/in-sync")
            ]
            value = json.loads(b64decode(entry["value"])) | {"members": members}
            content = b64encode(json.dumps(value).encode()).decode()
            self.etcd.answer(
                "kv/txn", {"success": [{"request_put": {"key": key, "value": content}}]}
            )

    async def master(self, *, other_than: int = 0) -> int:
        """Wait until a member is the master and may acknowledge; return its number."""

        def masters() -> list[int]:
            return [
                number
                for number, broker in self.members.items()
                if number != other_than
                and broker.role is not BrokerRole.SLAVE
                and not broker.store.refusal
            ]

        await until(lambda: bool(masters()))
        return masters()[0]

    async def in_sync(self, *members: int) -> None:
        await until(lambda: all(status_of(b).in_sync == {*members} for b in self.members.values()))

    async def connected(self, master: int) -> None:
        """Wait until all other members of the in-sync set are connected to a master."""
        await until(lambda: not self.members[master].broker_store.replica_acks.missing)

    async def send(self, number: int, body: bytes) -> RemotingCommand:
        talk = Talk(self.members[number], self.client)
        return await talk.send("T1", body, code=310)

    async def knows_confirmed(self, number: int, master: int = 1) -> int:
        """Wait until a member knows that all of the master's log is confirmed; return the end."""
        end = self.members[master].store.log_range[1]
        await until(lambda: self.members[number].broker_store.log.confirmed_end == end)
        return end

    async def has(self, number: int, *bodies: bytes) -> None:
        """Wait until a member has these messages, after the first one, and no others."""

        def found() -> list[bytes]:
            store = self.members[number].store
            try:
                return sorted(r.body for q in store.queues("T1") for r in store.read("T1", q))
            except StoreClosedError:  # its role is being changed
                return []

        await until(lambda: found() == sorted([FIRST, *bodies]))


@asynccontextmanager
async def broker_group(
    folder: Path,
    members: int = 3,
    store: StoreConfig | None = None,
    role: BrokerRole = BrokerRole.SYNC_MASTER,
) -> AsyncIterator[BrokerGroup]:
    """Run a group whose first master is member 1, and wait until all members are in sync."""
    settings = (store or SMALL).replace(role=role)
    with fake_etcd() as etcd:
        group = BrokerGroup(folder, etcd, settings)
        try:
            for number in range(1, members + 1):
                await group.start(number)
            assert await group.master() == 1
            await group.in_sync(*range(1, members + 1))
            await group.connected(1)
            assert (await group.send(1, FIRST)).code == ResponseCode.SUCCESS
            yield group
        finally:
            await group.client.close()
            # The master is stopped last, so that it does not hand over.
            for number in sorted(group.members, key=lambda n: group.members[n].replica is None):
                await group.stop(number)
