"""``firetrail namesrv``: a name server without a broker."""

from __future__ import annotations

import argparse
from dataclasses import replace

from firetrail.cli import logs, serving, tls_options
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import add_plain_parser
from firetrail.cli.reloading import FileReload
from firetrail.cli.service import Reload, Service
from firetrail.namesrv import NameServer, NameServerConfig

DESCRIPTION = """\
Start a name server: brokers register with it, and clients ask it which broker has which topic.

It listens on this machine only, unless another address is given. SIGTERM and Ctrl-C stop it."""
EXAMPLES = """\
  firetrail namesrv
  firetrail namesrv --host 0.0.0.0 --insecure"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = add_plain_parser(subparsers, "namesrv", "start a name server", DESCRIPTION, EXAMPLES)
    serving.add_conf(parser, "namesrv.conf")
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="address to listen on (default: bindAddress in FILE, or 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=serving.port,
        help="port of the name server, 0 for a free one (default: listenPort in FILE, or 9876)",
    )
    serving.add_insecure(parser)
    tls_options.add_arguments(parser)
    serving.add_json(parser)
    logs.add_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the name server until it is stopped."""
    logs.set_up(args)
    config, remarks = NameServerConfig.from_entries(serving.read_conf(args.conf))
    serving.report(remarks)
    if args.host is not None:
        config = replace(config, bind_address=args.host)
    if args.port is not None:
        config = replace(config, listen_port=args.port)
    config = logs.with_level(args, config)
    config.log_level.apply()
    tls = tls_options.server_tls(tls_options.tls_config(args, file=config.tls_config_file))
    server = NameServer(config, tls=tls, insecure=args.insecure)
    reload = FileReload(args.conf, tls, server.take_changes)
    serving.run(_serve(server, config, args.json, reload))
    return ExitCode.OK


async def _serve(
    server: NameServer, config: NameServerConfig, as_json: bool, reload: Reload
) -> None:
    service = Service(reload)
    port = await server.start()
    try:
        found = {"name server": f"{config.bind_address}:{port}"}
        hints = {"name server": "brokers and clients connect here"}
        serving.announce(found, as_json, hints)
        await service.until_stopped(f"brokers and clients connect to {found['name server']}")
    finally:
        await server.stop()
