"""Groups of brokers of one name, for tests of their roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.broker.brokers import SMALL, Field, Talk
from tests.client.clusters import until

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import BrokerRole, StoreConfig

QUICK: dict[str, Any] = {"ha_heartbeat_ms": 50, "sync_interval_ms": 20}
SLAVE = SMALL.replace(role=BrokerRole.SLAVE)
REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE


class Group:
    """A name server, and brokers of one name, each with its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name_server = NameServer(NameServerConfig(listen_port=0))
        self.namesrv = ""
        self.client = RemotingClient()
        self._stack = AsyncExitStack()
        self.brokers: list[Talk] = []
        """All that were started, in this order."""

    async def start(self, folder: str, config: StoreConfig = SMALL, **settings: Any) -> Talk:
        """Start a broker; a slave has id 1."""
        broker_id = int(config.role is BrokerRole.SLAVE)
        values = {"broker_id": broker_id, "namesrv": self.namesrv, **QUICK, **settings}
        broker = Broker(
            self.folder / folder,
            BrokerConfig(**values),
            config.replace(store_host=config.store_host._replace(port=0)),
        )
        await broker.start()
        self._stack.push_async_callback(broker.stop)
        self.brokers.append(Talk(broker, self.client))
        return self.brokers[-1]

    async def __aenter__(self) -> Group:
        self.namesrv = f"127.0.0.1:{await self.name_server.start()}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        await self.client.close()
        await self.name_server.stop()

    @property
    def master(self) -> str | None:
        found = self.name_server.routes.master_of("broker-a")
        return found[0] if found is not None else None


@asynccontextmanager
async def pair(folder: Path, **settings: Any) -> AsyncIterator[tuple[Group, Talk, Talk]]:
    """A master and a slave that follows it."""
    async with Group(folder) as group:
        old = await group.start("old", **settings)
        await old.send("T1", b"first")
        new = await group.start("new", SLAVE, **settings)
        await caught_up(new, old)
        yield group, old, new


async def caught_up(slave: Talk, master: Talk) -> None:
    def holds() -> bool:
        replica = slave.broker.replica
        assert replica is not None
        return replica.is_caught_up and (
            slave.broker.store.log_range[1] == master.broker.store.log_range[1]
        )

    await until(holds)


async def status(talk: Talk) -> ReplicaStatus:
    answer = await talk.ask(RequestCode.GET_REPLICA_STATUS)
    return ReplicaStatus.decode(answer.content)


async def promote(talk: Talk, **fields: Field) -> ReplicaStatus:
    """Promote a replica, and wait for the end of the change."""
    answer = await talk.ask(RequestCode.PROMOTE_REPLICA, fields)
    assert answer.code == 0, answer.remark
    await until(lambda: not talk.broker._replicas.promotion.step)
    return await status(talk)


async def emergency(group: Group, old: Talk, new: Talk) -> None:
    """Stop the master and promote the replica."""
    await old.broker.stop()
    found = await promote(new, force="true")
    assert (found.role, found.step_error) == ("ASYNC_MASTER", "")


def refusal(answer: RemotingCommand, code: int = ResponseCode.NO_PERMISSION) -> str:
    """Return why a request was refused."""
    assert answer.code == code
    return answer.remark or ""


async def send(talk: Talk, body: bytes) -> int:
    """Send a message; return its queue offset."""
    answer = await talk.send("T1", body)
    assert answer.code == 0, answer.remark
    return int(answer.fields["queueOffset"])
