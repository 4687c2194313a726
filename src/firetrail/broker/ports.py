"""The ports of a broker besides its main port, and the addresses that it announces."""

import logging
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import ConfigError
from firetrail.format.values.hosts import PORT_MAX, Host
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.replication.ha.ha_port import HAPort
from firetrail.system import System
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig

ADVERTISED = ("brokerIP1", "store_host")
"""The keys that set the advertised address."""
VIP_BELOW = 2
"""The VIP port, which clients with ``vipChannelEnabled`` use, is this far below the main port."""

_log = logging.getLogger(__name__)


def tls_of(config: BrokerConfig, system: System) -> ServerTls | None:
    """Return the TLS of the ports of a broker; None if its settings do not enable it.

    Args:
        config: The settings of the broker.
        system: Files and clock.

    Raises:
        ConfigError: A file cannot be used.
    """
    settings, remarks = TlsConfig.combined(
        config.tls_config_file, certificate=config.tls_certificate, key=config.tls_key
    )
    for remark in remarks:
        _log.warning("%s", remark)
    return ServerTls.of_config(settings, system)


def client_access_of(config: BrokerConfig) -> Access | None:
    """Return the access of a broker's own requests; None if its settings do not mention any.

    Args:
        config: The settings of the broker.

    Raises:
        ConfigError: The file with the settings of TLS cannot be used.
    """
    tls, _ = TlsConfig.combined(config.tls_config_file)
    uses_tls, inner = tls.is_client or config.use_tls, config.inner_credentials
    if not uses_tls and inner is None:
        return None
    environment = Access.from_environment()
    return Access(
        inner if inner is not None else environment.credentials,
        tls.of_client if uses_tls else environment.tls,
    )


def advertised_host(bind: str, host: Host, keys: Collection[str]) -> Host:
    """Return the advertised address: by default the one that the broker listens on.

    Args:
        bind: The address or the host name to listen on.
        host: The address in the settings. It stays as it is if the broker listens on all addresses,
            or on those of a name.
        keys: The keys that are set; ``brokerIP1`` wins.
    """
    if any(key in keys for key in ADVERTISED):
        return host
    try:
        address = ip_address(bind)
    except ValueError:
        return host
    return host if address.is_unspecified else host._replace(ip=str(address))


class OpenHAPort(NamedTuple):
    """The HA port, and the settings with its address, where replicas look for it."""

    port: HAPort
    config: BrokerConfig


def open_ha_port(system: System, config: BrokerConfig, asked: Host) -> OpenHAPort:
    """Bind the HA port.

    Args:
        system: Clock and threads.
        config: The settings of the broker.
        asked: The address of the broker in its settings; the port may be 0.

    Raises:
        ConfigError: No port follows the main port.
        OSError: The port cannot be bound; AddressInUseError if it is in use.
    """
    following = asked.port + 1 if asked.port else 0
    if following > PORT_MAX:
        raise ConfigError("haListenPort", config.ha_listen_port, "listenPort has no next port")
    port = HAPort(system)
    port.open(config.bind, config.ha_listen_port or following)
    return OpenHAPort(
        port, config.replace(ha_listen_port=port.port, ha_host=config.ha_host or asked.ip)
    )


async def listen_for_vips(server: RemotingServer, config: BrokerConfig, port: int) -> None:
    """Listen on the VIP port as well, which clients with ``vipChannelEnabled`` connect to.

    Args:
        server: The server of the broker.
        config: Its settings.
        port: The main port in the settings; 0 for any.
    """
    if not config.vip_channel or port <= VIP_BELOW:
        return
    try:
        await server.start(config.bind, port - VIP_BELOW)
    except OSError as error:
        vip_port = port - VIP_BELOW
        own = [each for each in config.name_servers if split_address(each)[1] == vip_port]
        _log.warning(
            "clients with vipChannelEnabled cannot connect, all others can: %s.%s Choose another "
            "listenPort, or, if there are no such clients, set vip_channel=false",
            error,
            f" The name server {own[0]} has the port two below listenPort." if own else "",
        )


def reachable(listens: Sequence[str], advertised: str) -> str:
    """Return the address to connect to: the advertised one only if all addresses are listened on.

    The advertised address (``brokerIP1``) may be one of another machine, such as a gateway.
    """
    host, _ = split_address(listens[0])
    return advertised if ip_address(host).is_unspecified else listens[0]
