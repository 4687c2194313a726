"""``firetrail broker``: a broker that uses name servers of other processes."""

import argparse
from pathlib import Path

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config_groups import NO_PORT
from firetrail.cli.common import add_plain_parser
from firetrail.cli.output import say
from firetrail.cli.servers import grpc_service, server_command, up
from firetrail.cli.servers.reload import FileReload
from firetrail.cli.subcommand import ExitCode, Subparsers

DESCRIPTION = """\
Start a broker that registers with name servers of RocketMQ or Firetrail.

It listens on this machine only, unless another address is given. SIGTERM and Ctrl-C stop it
cleanly: every acknowledged message is on disk."""
EXAMPLES = """\
  firetrail broker data --namesrv 127.0.0.1:9876
  firetrail broker data -c broker.conf --host 0.0.0.0 --insecure"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = add_plain_parser(
        subparsers, "broker", "start a broker without a name server", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("store", metavar="STORE", type=Path, help="folder of the store")
    up.add_broker_arguments(parser)
    parser.add_argument(
        "--namesrv",
        metavar="ADDRESSES",
        help="HOST:PORT of the name servers, separated by ';' (default: namesrvAddr in FILE)",
    )
    grpc_service.add_arguments(parser, "grpcServerPort in FILE, or none")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the broker until it is stopped."""
    loaded = up.settings(args)
    config = loaded.broker
    if args.namesrv is not None:
        config = config.replace(namesrv=args.namesrv)
    if not config.name_servers:
        say(
            "no name server is given, so clients cannot find the broker: set --namesrv or "
            "namesrvAddr"
        )
    broker = Broker(
        args.store,
        config,
        loaded.store,
        conf=args.conf,
        ignore_unsupported=args.ignore_unsupported,
        tls=up.broker_tls(args, config),
        insecure=args.insecure,
        ignore_users=args.ignore_users,
    )
    port = grpc_service.port_of(args, config, NO_PORT)
    reload = FileReload(args.conf, broker.tls, broker.take_changes)
    server_command.run(up.serve(broker, args.store, args.json, port, reload=reload))
    return ExitCode.OK
