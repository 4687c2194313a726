"""A name server with access control: users of its own, and brokers that belong to a user."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.access.actors import ROOT, acl, info, signed, user_store
from tests.client.clusters import until
from tests.helpers import PATIENCE_S

from firetrail.access.user_store import USERS_FILE
from firetrail.errors import ConfigError
from firetrail.namesrv import NameServer, NameServerConfig
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)
from firetrail.remoting.messages.headers import RegisterBrokerHeader
from firetrail.remoting.messages.registration_body import encode_registration
from firetrail.remoting.messages.route_headers import BrokerHeartbeatHeader
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

BODY = encode_registration(
    RegisterBrokerBody(TopicConfigTable({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 1000))),
    compressed=False,
)
HERE, THERE = "10.0.0.1:10911", "10.0.0.2:10911"


class SecuredTalk:
    """A name server with access control, and a client whose requests are signed by users."""

    def __init__(self, server: NameServer, port: int, client: RemotingClient) -> None:
        self.server = server
        self._address = f"127.0.0.1:{port}"
        self._client = client

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        return await self._client.request(self._address, command, PATIENCE_S)

    async def about(
        self,
        code: int,
        by: str,
        address: str = HERE,
        *,
        name: str = "a",
        broker_id: int = 0,
        cluster: str = "C",
    ) -> int:
        """Send a request about a broker; return the code of the answer."""
        header = RegisterBrokerHeader(name, address, cluster, broker_id).encode()
        if code == RequestCode.BROKER_HEARTBEAT:
            header = BrokerHeartbeatHeader(cluster, address, name, broker_id).encode()
        body = BODY if code == RequestCode.REGISTER_BROKER else b""
        if code == RequestCode.QUERY_DATA_VERSION:
            body = DataVersion(1, 1000).encode()
        return (await self.ask(signed(code, header, body, by=by))).code

    async def register(
        self,
        by: str,
        address: str = HERE,
        *,
        name: str = "a",
        broker_id: int = 0,
        cluster: str = "C",
    ) -> int:
        return await self.about(
            RequestCode.REGISTER_BROKER,
            by,
            address,
            name=name,
            broker_id=broker_id,
            cluster=cluster,
        )

    @property
    def master(self) -> str | None:
        """The address of the master of the name ``a``."""
        found = self.server.routes.master_of("a")
        return found[0] if found else None


@asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[SecuredTalk]:
    config = NameServerConfig(
        listen_port=0,
        authentication=True,
        authorization=True,
        users_folder=str(folder),
        init_user=ROOT,
        scan_interval_ms=10,
    )
    server, client = NameServer(config), RemotingClient()
    port = await server.start()
    try:
        yield SecuredTalk(server, port, client)
    finally:
        await client.close()
        await server.stop()


OTHERS = (
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.QUERY_DATA_VERSION,
    RequestCode.BROKER_HEARTBEAT,
)


async def test_a_broker_belongs_to_the_user_who_registered_it(tmp_path: Path) -> None:
    await user_store(tmp_path, one=["Cluster:C Update"], two=["Cluster:* Update"])
    async with secured(tmp_path) as talk:
        assert await talk.register("one") == 0
        assert await talk.register("two", THERE) == 16
        for code in OTHERS:
            assert await talk.about(code, "two") == 16
        assert await talk.register("two", HERE, name="b") == 16, "the address belongs to a"
        assert talk.master == HERE
        assert await talk.register("two", THERE, broker_id=1) == 0, "a slave of its own"
        assert await talk.about(RequestCode.UNREGISTER_BROKER, "one") == 0
        assert await talk.register("two", HERE) == 0, "the name is free again"


async def test_the_cluster_of_the_registered_broker_counts(tmp_path: Path) -> None:
    """Not the one that the request names."""
    await user_store(tmp_path, one=["Cluster:C Update"], two=["Cluster:D Update"])
    async with secured(tmp_path) as talk:
        assert await talk.register("one") == 0
        for code in OTHERS:
            assert await talk.about(code, "two", cluster="D") == 16
        assert talk.master == HERE


async def test_a_super_user_may_take_over(tmp_path: Path) -> None:
    await user_store(tmp_path, one=["Cluster:C Update"])
    async with secured(tmp_path) as talk:
        assert await talk.register("one") == 0
        assert await talk.register("root", THERE) == 0
        assert talk.master == THERE


async def test_changed_users_count_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await user_store(tmp_path)
    async with secured(tmp_path) as talk:
        assert await talk.register("one") == 16
        await store.create(info("one"))
        await store.merge_acl(acl("one", "Cluster:C Update"))
        _set_time(tmp_path, 1)
        while await talk.register("one") != 0:  # it may read the file after each of the changes
            await asyncio.sleep(0.01)
        assert said(caplog, "users were read again")
        (tmp_path / "config" / USERS_FILE).chmod(0o644)
        _set_time(tmp_path, 2)
        await until(lambda: said(caplog, "the users stay as they are"))
        assert await talk.register("one") == 0


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


def _set_time(folder: Path, seconds: int) -> None:
    """Give the file another time of its last change, however quick the test is."""
    os.utime(folder / "config" / USERS_FILE, (seconds, seconds))


def test_a_folder_with_users_is_not_served_openly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="remove users_folder"):
        NameServerConfig(users_folder=str(tmp_path))
