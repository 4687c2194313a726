"""The ports that a broker listens on, and the address that it tells clients to connect to."""

import socket
from pathlib import Path

import pytest
from tests.access.actors import ROOT, SECURE
from tests.broker.brokers import SMALL
from tests.helpers import PATIENCE_S
from tests.ports import free_port
from tests.tls.authority import Authority

from firetrail.broker.broker import Broker
from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.ports import advertised_host
from firetrail.errors import AddressInUseError, ConfigError
from firetrail.format.files.java_properties import Entry
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.tls.client_tls import ClientTls
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig

HOST = "127.0.0.1"


def vip_ports() -> tuple[int, int]:
    """Return two free ports, the first two below the second."""
    high = free_port()
    return high - 2, high


async def answers(port: int) -> bool:
    client = RemotingClient()
    try:
        asked = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
        return (await client.request(f"{HOST}:{port}", asked)).code == 0
    except OSError:
        return False
    finally:
        await client.close()


async def listening(folder: Path, ports: tuple[int, int], config: BrokerConfig) -> list[bool]:
    """Run a broker on the second port; return which of the ports answer."""
    store = SMALL.replace(store_host=SMALL.store_host._replace(port=ports[1]))
    broker = Broker(folder, config, store)
    await broker.start()
    try:
        return [await answers(port) for port in ports]
    finally:
        await broker.stop()


@pytest.mark.parametrize("vip", [True, False])
async def test_the_vip_port_is_two_below_the_main_port(tmp_path: Path, vip: bool) -> None:
    assert await listening(tmp_path, vip_ports(), BrokerConfig(vip_channel=vip)) == [vip, True]


async def test_the_vip_port_requires_tls_and_signatures_as_the_main_port_does(
    tmp_path: Path,
) -> None:
    ports = vip_ports()
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    store = SMALL.replace(store_host=SMALL.store_host._replace(port=ports[1]))
    tls = ServerTls(TlsConfig(mode="enforcing", certificate=certificate, key=key))
    broker = Broker(tmp_path / "store", SECURE, store, tls=tls)
    own = ClientTls(ca=authority.trust)
    await broker.start()
    try:
        assert [await verdict(port, Access(ROOT, own)) for port in ports] == [0, 0]
        assert [await verdict(port, Access(tls=own)) for port in ports] == [16, 16]
        assert [await verdict(port, Access(ROOT)) for port in ports] == ["closed", "closed"]
    finally:
        await broker.stop()


async def verdict(port: int, access: Access) -> int | str:
    client = RemotingClient(access=access)
    try:
        asked = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
        return (await client.request(f"{HOST}:{port}", asked, PATIENCE_S)).code
    except ConnectionError:
        return "closed"
    finally:
        await client.close()


@pytest.mark.parametrize("bad", ["::::", "host", "a:1;b", "a:0"])
def test_the_addresses_of_name_servers_are_checked(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"^namesrv = .*: must be host:port, several separated"):
        BrokerConfig(namesrv=bad)
    assert BrokerConfig(namesrv="a:1;[::1]:9876").namesrv == "a:1;[::1]:9876"


async def test_a_port_in_use_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        store = SMALL.replace(store_host=SMALL.store_host._replace(port=port))
        what = f":{port}: the port is in use; stop the program that listens there, or "
        with pytest.raises(AddressInUseError, match=what):
            await Broker(tmp_path, BrokerConfig(bind=HOST), store).start()


async def test_a_vip_port_in_use_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    low, high = vip_ports()
    with socket.socket() as taken:
        taken.bind((HOST, low))
        assert await listening(tmp_path, (low, high), BrokerConfig()) == [False, True]
    assert "vip_channel=false" in caplog.text and str(low) in caplog.text
    assert "name server" not in caplog.text


async def test_the_name_server_on_the_vip_port_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    low, high = vip_ports()
    config = BrokerConfig(namesrv=f"{HOST}:{low}")
    with socket.socket() as taken:
        taken.bind((HOST, low))
        assert await listening(tmp_path, (low, high), config) == [False, True]
    assert f"The name server {HOST}:{low} has the port two below listenPort" in caplog.text


@pytest.mark.parametrize(
    ("bind", "entries", "advertised"),
    [
        ("10.0.0.5", {}, "10.0.0.5:10911"),
        ("127.0.0.2", {"listenPort": "5"}, "127.0.0.2:5"),
        ("::1", {}, "[::1]:10911"),
        ("0.0.0.0", {}, "127.0.0.1:10911"),
        ("::", {}, "127.0.0.1:10911"),
        ("localhost", {}, "127.0.0.1:10911"),
        ("10.0.0.5", {"brokerIP1": "10.0.0.9"}, "10.0.0.9:10911"),
        ("127.0.0.2", {"brokerIP1": "127.0.0.1"}, "127.0.0.1:10911"),
        ("10.0.0.5", {"store_host": "10.0.0.9:1"}, "10.0.0.9:1"),
    ],
)
def test_the_address_to_listen_on_is_advertised_unless_another_is_set(
    bind: str, entries: dict[str, str], advertised: str
) -> None:
    given = {key: Entry(text, "broker.conf") for key, text in entries.items()}
    host = load_entries(given).store.store_host
    assert str(advertised_host(bind, host, given)) == advertised
