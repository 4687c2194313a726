"""``firetrail proxy``: the gRPC service in front of the brokers of a cluster."""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack

from firetrail.cli import cluster, grpc_service, logs, serving, tls_options
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import add_plain_parser
from firetrail.errors import UnsupportedError
from firetrail.proxy.extra import INSTALL, is_missing

DESCRIPTION = """\
Serve gRPC clients of RocketMQ 5 in front of brokers of RocketMQ or Firetrail.

Brokers that 'firetrail up' starts serve these clients themselves. The proxy listens on this machine
only, unless another address is given. SIGTERM and Ctrl-C stop it; calls in progress are answered
first."""
EXAMPLES = """\
  firetrail proxy --namesrv 127.0.0.1:9876
  firetrail proxy --namesrv 'a:9876;b:9876' --host 0.0.0.0 --insecure"""

REMEDY = "stop the program that listens there, or choose another port with --port"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = add_plain_parser(
        subparsers, "proxy", "serve gRPC clients in front of brokers", DESCRIPTION, EXAMPLES
    )
    cluster.add_namesrv(parser)
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=serving.port,
        default=grpc_service.DEFAULT_PORT,
        help="port to listen on, 0 for a free one (default: %(default)s)",
    )
    serving.add_insecure(parser)
    tls_options.add_arguments(parser, without="a self-signed one")
    serving.add_json(parser)
    logs.add_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the proxy until it is stopped."""
    logs.set_up(args)
    try:
        serving.run(_serve(args))
    except ModuleNotFoundError as error:
        if not is_missing(error):
            raise
        raise UnsupportedError(f"the proxy needs more packages: run {INSTALL}") from None
    return ExitCode.OK


async def _serve(args: argparse.Namespace) -> None:
    from firetrail.proxy.cluster import ClusterBrokers
    from firetrail.proxy.proxy import Proxy

    tls = tls_options.server_tls(tls_options.tls_config(args))
    stop = serving.stop_event()
    async with AsyncExitStack() as resources:
        brokers = ClusterBrokers(args.namesrv)
        await brokers.open()
        resources.push_async_callback(brokers.close)
        proxy = Proxy(brokers, tls=tls)
        await proxy.start(args.host, args.port, remedy=REMEDY, insecure=args.insecure)
        resources.push_async_callback(proxy.stop)
        found = {"grpc": proxy.address, "name server": args.namesrv}
        hints = {
            "grpc": "clients of RocketMQ 5 connect here",
            "name server": "where it finds brokers",
        }
        serving.print_addresses(found, args.json, hints)
        await stop.wait()
