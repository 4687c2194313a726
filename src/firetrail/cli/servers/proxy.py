"""``firetrail proxy``: the gRPC service in front of the brokers of a cluster."""

import argparse
import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from firetrail.access.file_access import FileAccess
from firetrail.access.guard import AccessPolicy, Guard
from firetrail.access.user_limits import user_limits
from firetrail.access.user_store import USERS_FILE
from firetrail.cli import running_cluster
from firetrail.cli.common import add_plain_parser
from firetrail.cli.servers import grpc_service, log_output, server_command, tls_options
from firetrail.cli.servers.reload import FileReload
from firetrail.cli.servers.service import Service
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import ConfigError, UnsupportedError
from firetrail.format.names import CONFIG
from firetrail.proxy.grpc_extra import INSTALL, is_missing
from firetrail.proxy.proxy_config import SETTINGS, ProxyConfig
from firetrail.settings.file_changes import ConfEntries, FileChanges, changes_between
from firetrail.system import SYSTEM

DESCRIPTION = """\
Serve gRPC clients of RocketMQ 5 in front of brokers of RocketMQ or Firetrail.

Brokers that 'firetrail up' starts serve these clients themselves. The proxy listens on this machine
only, unless another address is given. It signs its own requests with the credentials in
FIRETRAIL_ACCESS_KEY and FIRETRAIL_SECRET_KEY_FILE. SIGTERM and Ctrl-C stop it; calls in progress
are answered first."""
EXAMPLES = """\
  firetrail proxy --namesrv 127.0.0.1:9876
  firetrail proxy --namesrv 'a:9876;b:9876' --host 0.0.0.0 --insecure
  firetrail proxy --users /etc/firetrail -c proxy.conf"""

REMEDY = "stop the program that listens there, or choose another port with --port"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = add_plain_parser(
        subparsers, "proxy", "serve gRPC clients in front of brokers", DESCRIPTION, EXAMPLES
    )
    running_cluster.add_namesrv(parser)
    parser.add_argument(
        "-c",
        "--conf",
        metavar="FILE",
        type=Path,
        help="file with limits for clients and settings of the audit log, as in broker.conf",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=server_command.port,
        default=grpc_service.DEFAULT_PORT,
        help="port to listen on, 0 for a free one (default: %(default)s)",
    )
    server_command.add_insecure(parser)
    parser.add_argument(
        "--users",
        metavar="DIR",
        type=Path,
        help="check calls with the users and policies in DIR/config/firetrailUsers.json (default: "
        "every call is allowed)",
    )
    tls_options.add_arguments(parser, without="a self-signed one")
    server_command.add_json(parser)
    log_output.add_arguments(parser)
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the proxy until it is stopped."""
    log_output.set_up(args)
    config, remarks = ProxyConfig.from_entries(server_command.read_conf(args.conf))
    server_command.report(remarks)
    config = log_output.with_level(args, config)
    config.log_level.apply()
    try:
        server_command.run(_serve(args, config))
    except ModuleNotFoundError as error:
        if not is_missing(error):
            raise
        raise UnsupportedError(f"the proxy needs more packages: run {INSTALL}") from None
    return ExitCode.OK


async def _serve(args: argparse.Namespace, config: ProxyConfig) -> None:
    from firetrail.proxy.proxy import Proxy
    from firetrail.proxy.transport.grpc_limits import grpc_limits
    from firetrail.proxy.upstream.remote_brokers import ClusterBrokers

    tls = tls_options.server_tls(tls_options.tls_config(args))
    service = Service(FileReload(args.conf, tls, _take_changes))
    async with AsyncExitStack() as resources:
        brokers = ClusterBrokers(args.namesrv)
        await brokers.open()
        resources.push_async_callback(brokers.close)
        guard = await _guard(args.users, config, resources) if args.users is not None else None
        proxy = Proxy(brokers, tls=tls, limits=grpc_limits(config), guard=guard)
        await proxy.start(args.host, args.port, remedy=REMEDY, insecure=args.insecure)
        resources.push_async_callback(proxy.stop)
        found = {"grpc": proxy.address, "name server": args.namesrv}
        hints = {
            "grpc": "clients of RocketMQ 5 connect here",
            "name server": "where it finds brokers",
        }
        server_command.announce(found, args.json, hints)
        await service.until_stopped(f"gRPC clients connect to {proxy.address}")


def _take_changes(before: ConfEntries, now: ConfEntries) -> FileChanges:
    """Put the live settings that differ into effect."""
    ProxyConfig.from_entries(now)
    changes = changes_between(before, now, SETTINGS)
    if "log_level" in changes.live:
        changes.live["log_level"].apply()
    return changes


async def _guard(folder: Path, config: ProxyConfig, resources: AsyncExitStack) -> Guard:
    """Return the guard with the users in a folder, and follow changes of them."""
    file = folder / CONFIG / USERS_FILE
    if not file.exists():
        raise ConfigError("--users", str(folder), f"there is no file {file}; copy that of a broker")
    limits = user_limits(config, SYSTEM.clock.monotonic)
    access = FileAccess(folder, AccessPolicy(), config, SYSTEM, limits)
    await asyncio.to_thread(access.open)
    resources.push_async_callback(asyncio.to_thread, access.close)
    following = asyncio.create_task(access.follow())
    resources.callback(following.cancel)
    return access.guard
