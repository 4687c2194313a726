"""``firetrail namesrv``: a name server alone in its process."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from firetrail.cli import logs, serving
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.namesrv import NameServer, NameServerConfig

DESCRIPTION = """\
Serve routes: brokers register, clients ask where the queues of a topic are.

It listens on this machine only, unless an address is given. It stops on SIGTERM and Ctrl-C."""
EXAMPLES = """\
  firetrail namesrv
  firetrail namesrv --host 0.0.0.0 -c namesrv.conf"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = subparsers.add_parser(
        "namesrv",
        help="serve routes to clients of RocketMQ",
        description=DESCRIPTION,
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-c", "--conf", metavar="FILE", type=Path, help="RocketMQ's namesrv.conf")
    parser.add_argument("--host", help="address to listen on (default: bindAddress, or 127.0.0.1)")
    parser.add_argument(
        "--port",
        metavar="N",
        type=serving.port,
        help="0 for a free one (default: listenPort, or 9876)",
    )
    serving.add_json(parser)
    logs.add_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Serve until told to stop."""
    logs.set_up(args)
    config, remarks = NameServerConfig.from_entries(serving.read_conf(args.conf))
    serving.report(remarks)
    if args.host is not None:
        config = replace(config, bind_address=args.host)
    if args.port is not None:
        config = replace(config, listen_port=args.port)
    serving.run(_serve(config, args.json))
    return ExitCode.OK


async def _serve(config: NameServerConfig, as_json: bool) -> None:
    told = serving.told_to_stop()
    server = NameServer(config)
    port = await server.start()
    try:
        found = {"name server": f"{config.bind_address}:{port}"}
        serving.tell(found, as_json, {"name server": "brokers and clients connect here"})
        await told.wait()
    finally:
        await server.stop()
