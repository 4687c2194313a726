"""``firetrail broker``: a broker alone, for name servers elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from firetrail.broker.broker import Broker
from firetrail.cli import serving, up
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.output import say

DESCRIPTION = """\
Start a broker that registers with name servers of RocketMQ or Firetrail.

It stops on SIGTERM and Ctrl-C, and loses nothing."""
EXAMPLES = """\
  firetrail broker data --namesrv 127.0.0.1:9876
  firetrail broker data -c broker.conf --host 0.0.0.0"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = subparsers.add_parser(
        "broker",
        help="start a broker without a name server",
        description=DESCRIPTION,
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("store", metavar="STORE", type=Path, help="folder of the store")
    up.add_broker_arguments(parser)
    parser.add_argument(
        "--namesrv", metavar="ADDRESSES", help="name servers, separated by ';' (or namesrvAddr)"
    )
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Serve until told to stop."""
    loaded = up.settings(args)
    config = loaded.broker
    if args.namesrv is not None:
        config = config.replace(namesrv=args.namesrv)
    if not config.name_servers:
        say("no name server is given, so no client finds the broker: --namesrv, or namesrvAddr")
    broker = Broker(
        args.store,
        config,
        loaded.store,
        conf=args.conf,
        ignore_unsupported=args.ignore_unsupported,
    )
    serving.run(up.serve(broker, args.store, args.json))
    return ExitCode.OK
