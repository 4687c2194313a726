"""The HA port of a broker: where it is, who is told, and what becomes of it in another role."""

import socket
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk, talking
from tests.helpers import PATIENCE_S
from tests.ports import free_port

from firetrail import Message
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import AddressInUseError, ConfigError
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.messages.headers import RegisterBrokerHeader
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.ha.ha_frames import HEADER, encode_report
from firetrail.store.settings.store_config import BrokerRole, StoreConfig

HOST = "127.0.0.1"


def on_port(port: int) -> StoreConfig:
    return SMALL.replace(store_host=SMALL.store_host._replace(port=port))


def is_served(address: str) -> bool:
    """Whether a replica that reports gets the log."""
    with socket.create_connection(split_address(address), PATIENCE_S) as peer:
        peer.settimeout(PATIENCE_S)
        try:
            peer.sendall(encode_report(0))
            return len(peer.recv(HEADER.size)) == HEADER.size
        except ConnectionError:
            return False


async def settings(talk: Talk) -> dict[str, str]:
    answer = await talk.ask(RequestCode.GET_BROKER_CONFIG)
    return dict(line.split("=", 1) for line in answer.content.decode().splitlines())


async def ha_address_for_a_slave(talk: Talk) -> str:
    """Return the HA address that the name server tells a slave of the broker."""
    header = RegisterBrokerHeader(
        talk.broker.config.name, "127.0.0.1:1", talk.broker.config.cluster, 1
    )
    command = RemotingCommand(RequestCode.REGISTER_BROKER, header.encode())
    answer = await talk.client.request(talk.broker.namesrv, command)
    return answer.fields["haServerAddr"]


async def test_it_is_the_port_after_the_main_port(tmp_path: Path) -> None:
    port = free_port()
    broker = Broker(tmp_path, BrokerConfig(vip_channel=False), on_port(port))
    await broker.start()
    try:
        assert broker.config.ha_address == f"{HOST}:{port + 1}"
        broker.store.put(Message("T1", b"hello"))
        assert is_served(broker.config.ha_address)
    finally:
        await broker.stop()
    with pytest.raises(ConnectionRefusedError):
        is_served(broker.config.ha_address)


async def test_the_settings_choose_port_and_advertised_host(tmp_path: Path) -> None:
    port = free_port()
    config = BrokerConfig(ha_listen_port=port, ha_host="10.1.2.3")
    async with talking(tmp_path, config) as talk:
        assert talk.broker.config.ha_address == f"10.1.2.3:{port}"
        assert await ha_address_for_a_slave(talk) == f"10.1.2.3:{port}"


async def test_replicas_and_name_servers_are_told_the_address(talk: Talk) -> None:
    address = talk.broker.config.ha_address
    assert await ha_address_for_a_slave(talk) == address != talk.broker.address
    told = await settings(talk)
    assert f"{told['brokerIP2']}:{told['haListenPort']}" == address


async def test_other_name_servers_are_told_the_address(tmp_path: Path) -> None:
    name_server = NameServer(NameServerConfig(listen_port=0))
    namesrv = f"{HOST}:{await name_server.start()}"
    broker = Broker(tmp_path, BrokerConfig(namesrv=namesrv), on_port(0))
    await broker.start()
    try:
        assert name_server.routes.master_of("broker-a") == (
            broker.address,
            broker.config.ha_address,
        )
    finally:
        await broker.stop()
        await name_server.stop()


async def test_a_port_in_use_prevents_the_start(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        broker = Broker(tmp_path, BrokerConfig(ha_listen_port=port), on_port(0))
        with pytest.raises(AddressInUseError, match=f"{port}: the HA port for replicas is in use"):
            await broker.start()
    await broker.start()
    await broker.stop()


async def test_the_last_port_has_no_next_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="haListenPort"):
        await Broker(tmp_path, BrokerConfig(vip_channel=False), on_port(65535)).start()


async def test_a_slave_serves_no_replicas_and_keeps_the_port(talk: Talk) -> None:
    await talk.send("T1")
    address = talk.broker.config.ha_address
    assert is_served(address)
    await talk.broker.become(BrokerRole.SLAVE, 1)
    assert not is_served(address)
    assert talk.broker.config.ha_address == address
    await talk.broker.become(BrokerRole.ASYNC_MASTER, 0)
    assert is_served(address)


async def test_a_change_of_role_disconnects_replicas(talk: Talk) -> None:
    await talk.send("T1")
    with socket.create_connection(split_address(talk.broker.config.ha_address)) as peer:
        peer.settimeout(PATIENCE_S)
        peer.sendall(encode_report(talk.broker.store.log_range[1]))
        assert peer.recv(HEADER.size)
        await talk.broker.become(BrokerRole.SLAVE, 1)
        assert peer.recv(1) == b""
