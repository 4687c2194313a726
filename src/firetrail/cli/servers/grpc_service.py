"""The gRPC service of the commands that start a broker."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.broker_config_groups import NO_PORT
from firetrail.cli.output import say
from firetrail.cli.servers import server_command, tls_options
from firetrail.errors import AddressInUseError
from firetrail.proxy.grpc_extra import INSTALL, is_missing
from firetrail.remoting.connections.remoting_client import split_address

if TYPE_CHECKING:
    from firetrail.proxy.proxy import Proxy

DEFAULT_PORT = 8081
"""The port of RocketMQ's proxy, to which clients of RocketMQ 5 connect."""
NOT_SERVED = "clients of RocketMQ 5, which use gRPC, cannot connect; all others can"
REMEDY = (
    "stop the program that listens there, choose another port with --grpc-port, or open none with "
    "--no-grpc"
)


@dataclass(frozen=True, slots=True)
class GrpcPort:
    """The port to open.

    Attributes:
        number: The port; 0 picks a free one, -1 opens none.
        is_required: Whether the user has asked for it. A port that is in use is then an error.
    """

    number: int
    is_required: bool


def add_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options of the service; the help contains the default port."""
    ports = parser.add_mutually_exclusive_group()
    ports.add_argument(
        "--grpc-port",
        metavar="N",
        type=server_command.port,
        help=f"port for gRPC clients (RocketMQ 5), 0 for a free one (default: {default})",
    )
    ports.add_argument(
        "--no-grpc", action="store_true", help="open no port for gRPC clients, whatever FILE says"
    )
    tls_options.add_arguments(parser, " in FILE", "a self-signed one for gRPC clients")


def port_of(args: argparse.Namespace, config: BrokerConfig, default: int) -> GrpcPort:
    """Return the port in the arguments, in the file, or the default of the command."""
    if args.no_grpc:
        return GrpcPort(NO_PORT, is_required=False)
    if args.grpc_port is not None:
        return GrpcPort(args.grpc_port, is_required=True)
    if config.grpc_port != NO_PORT:
        return GrpcPort(config.grpc_port, is_required=True)
    return GrpcPort(default, is_required=False)


def prepared(broker: Broker, port: GrpcPort) -> Proxy | None:
    """Return the service of a broker, before the broker starts; None if there is none."""
    if port.number == NO_PORT:
        return None
    try:
        from firetrail.proxy.proxy import Proxy
    except ModuleNotFoundError as error:
        if not is_missing(error):
            raise
        say(f"{NOT_SERVED}: run {INSTALL}")
        return None
    return Proxy.of_broker(broker)


async def start(proxy: Proxy, broker: Broker, port: GrpcPort) -> bool:
    """Start the service of a running broker; return whether clients can connect.

    Raises:
        AddressInUseError: The port that the user has asked for is in use.
        OSError: The address cannot be bound.
    """
    try:
        await proxy.start(
            broker.config.bind,
            port.number,
            advertised=split_address(broker.address)[0],
            remedy=REMEDY,
            insecure=broker.insecure,
        )
    except AddressInUseError as error:
        if port.is_required:
            raise
        say(f"{NOT_SERVED}: {error}")
        return False
    return True
