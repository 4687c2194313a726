"""``firetrail namesrv``: a name server without a broker."""

import argparse
from dataclasses import replace

from firetrail.cli.common import add_plain_parser
from firetrail.cli.servers import log_output, server_command, tls_options
from firetrail.cli.servers.reload import FileReload
from firetrail.cli.servers.service import Reload, Service
from firetrail.cli.subcommand import ExitCode, Subparsers
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
    server_command.add_conf(parser, "namesrv.conf")
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="address to listen on (default: bindAddress in FILE, or 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=server_command.port,
        help="port of the name server, 0 for a free one (default: listenPort in FILE, or 9876)",
    )
    server_command.add_insecure(parser)
    tls_options.add_arguments(parser)
    server_command.add_json(parser)
    log_output.add_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the name server until it is stopped."""
    log_output.set_up(args)
    config, remarks = NameServerConfig.from_entries(server_command.read_conf(args.conf))
    server_command.report(remarks)
    if args.host is not None:
        config = replace(config, bind_address=args.host)
    if args.port is not None:
        config = replace(config, listen_port=args.port)
    config = log_output.with_level(args, config)
    config.log_level.apply()
    tls = tls_options.server_tls(tls_options.tls_config(args, file=config.tls_config_file))
    server = NameServer(config, tls=tls, insecure=args.insecure)
    reload = FileReload(args.conf, tls, server.take_changes)
    server_command.run(_serve(server, config, args.json, reload))
    return ExitCode.OK


async def _serve(
    server: NameServer, config: NameServerConfig, as_json: bool, reload: Reload
) -> None:
    service = Service(reload)
    port = await server.start()
    try:
        found = {"name server": f"{config.bind_address}:{port}"}
        hints = {"name server": "brokers and clients connect here"}
        server_command.announce(found, as_json, hints)
        await service.until_stopped(f"brokers and clients connect to {found['name server']}")
    finally:
        await server.stop()
