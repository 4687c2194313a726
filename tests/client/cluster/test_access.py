"""Clients with TLS, and message ids that name other servers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.access.actors import ROOT, SECRET, SECURE
from tests.broker.brokers import SMALL
from tests.client.clusters import running_cluster
from tests.tls.authority import Authority

from firetrail.auth.policies import PolicyType
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    Access,
    Admin,
    ClientTls,
    ConsumeFromWhere,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TlsError,
)
from firetrail.errors import NoSuchError, NotReachedError, RequestError
from firetrail.format.values.hosts import Host
from firetrail.format.values.ids import encode_message_id
from firetrail.namesrv import NameServer, NameServerConfig
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig

FIRST = ConsumeFromWhere.FIRST_OFFSET


def settings(authority: Authority, folder: Path) -> BrokerConfig:
    """Return settings that enforce TLS, for ports and for the broker's own requests."""
    certificate, key = authority.issue()
    file = folder / "tls.properties"
    file.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={certificate}\ntls.server.keyPath={key}\n"
        f"tls.client.trustCertPath={authority.trust}\n"
    )
    return BrokerConfig(tls_config_file=str(file), use_tls=True)


@pytest.fixture
async def secure(authority: Authority, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a name server that, like its broker, accepts only TLS."""
    async with running_cluster(settings(authority, tmp_path)) as address:
        yield address


@pytest.fixture
def access(authority: Authority) -> Access:
    return Access(tls=ClientTls(ca=authority.trust))


async def test_every_client_speaks_tls(secure: str, access: Access) -> None:
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async with Admin(secure, access=access) as admin, Producer(secure, access=access) as producer:
        await admin.create_topic("T", 1)
        await producer.send(Message("T", b"hello"))
        async with PullConsumer(secure, access=access) as consumer:
            (queue,) = await consumer.queues("T")
            assert [m.body async for m in consumer.read(queue)] == [b"hello"]
        async with SimpleConsumer(secure, "S", {"T": "*"}, start=FIRST, access=access) as simple:
            (message,) = await simple.receive()
            await simple.ack(message)
        async with PushConsumer(
            secure,
            "P",
            lambda message: received.put_nowait(message.body),
            {"T": "*"},
            start=FIRST,
            access=access,
        ):
            assert await received.get() == b"hello"


async def test_the_first_message_of_a_topic_needs_the_route_of_another() -> None:
    root, shop = Access(ROOT), Access(Credentials("shop", SECRET))
    async with (
        running_cluster(SECURE) as address,
        Admin(address, access=root) as admin,
        Producer(address, access=shop) as producer,
    ):
        await admin.create_user("shop", SECRET)
        await admin.set_acl("shop", ["Topic:orders*"], ["Pub"])
        with pytest.raises(RequestError, match=r"create it, or allow the user Get on Topic:TBW102"):
            await producer.send(Message("orders-new", b"hello"))
        await admin.set_acl("shop", ["Topic:TBW102"], ["Get"])
        await producer.send(Message("orders-new", b"hello"))


async def test_the_environment_counts_without_an_argument(
    secure: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotReachedError, match="the connection was lost"):
        async with Admin(secure) as admin:
            await admin.topics()
    monkeypatch.setenv("FIRETRAIL_TLS", "on")
    with pytest.raises(TlsError, match="certificate verify failed"):
        await Admin(secure).open()
    monkeypatch.setenv("FIRETRAIL_TLS_CA", authority.trust)
    async with Admin(secure) as admin:
        assert "broker-a" in await admin.masters()


async def test_a_broker_registers_with_tls(
    authority: Authority, access: Access, tmp_path: Path
) -> None:
    certificate, key = authority.issue()
    tls = ServerTls(TlsConfig(mode="enforcing", certificate=certificate, key=key))
    name_server = NameServer(NameServerConfig(listen_port=0), tls=tls)
    address = f"127.0.0.1:{await name_server.start()}"
    config = settings(authority, tmp_path).replace(namesrv=address)
    broker = Broker(tmp_path / "store", config, SMALL.replace(store_host=Host("127.0.0.1", 0)))
    await broker.start()
    try:
        async with Admin(address, access=access) as admin:
            assert await admin.masters() == {"broker-a": broker.address}
    finally:
        await broker.stop()
        await name_server.stop()


async def test_a_message_id_leads_only_to_brokers_that_are_listed(namesrv: str) -> None:
    """The host in an id is input; a client that connects to it would sign a request for it."""
    connected = asyncio.Event()
    server = await asyncio.start_server(lambda *_: connected.set(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    forged = encode_message_id(Host("127.0.0.1", port), 0)
    async with Admin(namesrv) as admin:
        for call in (admin.view, admin.resume_transaction):
            with pytest.raises(NoSuchError, match=f"127.0.0.1:{port}: the name server lists no br"):
                await call(forged)
    assert not connected.is_set()
    server.close()
    await server.wait_closed()


async def test_an_entry_that_does_not_exist_cannot_be_deleted() -> None:
    async with running_cluster(SECURE) as address, Admin(address, access=Access(ROOT)) as admin:
        await admin.create_user("shop", SECRET)
        await admin.set_acl("shop", ["Topic:orders*"], ["Pub"])
        with pytest.raises(NoSuchError, match=r"shop has no entry for Topic:orders; it has .*\*$"):
            await admin.delete_acl("shop", resource="Topic:orders")
        with pytest.raises(NoSuchError, match="no entries in the policy Default"):
            await admin.delete_acl("shop", policy_type=PolicyType.DEFAULT)
        await admin.delete_acl("User:shop", resource="topic:orders*")
        with pytest.raises(NoSuchError, match="shop has no entries"):
            await admin.delete_acl("shop")
