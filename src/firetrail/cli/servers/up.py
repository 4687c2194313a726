"""``firetrail up``: a name server and a broker in one process."""

import argparse
import socket
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from firetrail.broker import unsupported
from firetrail.broker.broker import Broker
from firetrail.broker.broker_conf_file import LoadedBroker, load_entries
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.ports import advertised_host
from firetrail.cli.common import add_plain_parser
from firetrail.cli.output import say
from firetrail.cli.servers import grpc_service, log_output, server_command, tls_options
from firetrail.cli.servers.reload import FileReload
from firetrail.cli.servers.secure_folder import STORE, SecureFolder
from firetrail.cli.servers.service import Reload, Service
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import ConfigError, UnsupportedError
from firetrail.format.files.java_properties import Entry
from firetrail.namesrv import NameServerConfig
from firetrail.proxy.grpc_extra import INSTALL, is_missing
from firetrail.remoting.servers.exposure import LOCALHOST, is_loopback
from firetrail.store.root.sizes import log_file_size
from firetrail.store.settings.store_config import SETTINGS, StoreConfig
from firetrail.system import SYSTEM
from firetrail.tls.server_tls import ServerTls

DESCRIPTION = """\
Start a broker and a name server for RocketMQ clients in any language.

They listen on this machine only, unless another address is given. With --secure, clients need TLS
and the credentials of a user; the command prints how they connect. Topics are created when a client
first sends to them. SIGTERM and Ctrl-C stop both cleanly: every acknowledged message is on disk."""
EXAMPLES = """\
  firetrail up                          a temporary store, deleted at the end
  firetrail up data                     the store in the folder data; created if missing
  firetrail up data -c broker.conf
  firetrail up --secure shop            with TLS and access control, all files in the folder shop
  firetrail up --port 0 --namesrv-port 0 --json"""


ALL_ADDRESSES = {"0.0.0.0", "::"}
LOCAL_HOSTS = (LOCALHOST, "127.0.0.1", "::1")
"""Names of this machine in the certificate of ``--secure``."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = add_plain_parser(
        subparsers, "up", "start a broker and a name server", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "store",
        metavar="STORE",
        type=Path,
        nargs="?",
        help="folder of the store (default: a temporary one)",
    )
    add_broker_arguments(parser)
    parser.add_argument(
        "--namesrv-port",
        metavar="N",
        type=server_command.port,
        default=9876,
        help="port of the name server, 0 for a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--secure",
        metavar="FOLDER",
        type=Path,
        help="require TLS and signed requests: certificates, the password of the first user and "
        "the store are in this folder, and are created if missing",
    )
    default = f"{grpc_service.DEFAULT_PORT} or grpcServerPort in FILE; a free port if --port is 0"
    grpc_service.add_arguments(parser, default)
    return parser


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that start a broker."""
    server_command.add_conf(parser, "broker.conf")
    server_command.add_listening(
        parser, "bind in FILE, or 127.0.0.1", "listenPort in FILE, or 10911"
    )
    server_command.add_insecure(parser)
    server_command.add_ignore_users(parser)
    parser.add_argument(
        unsupported.FLAG,
        metavar="NAME",
        action="append",
        choices=unsupported.NAMES,
        default=[],
        help="start although this feature is configured but not supported: a key of broker.conf "
        "such as duplicationEnable, or rocksdb or dledger; may be repeated",
    )
    server_command.add_json(parser)
    log_output.add_arguments(parser)


def settings(args: argparse.Namespace) -> LoadedBroker:
    """Set up logging, and combine the settings in the file with the arguments.

    Keys of the file that have no effect are reported on standard error.
    """
    log_output.set_up(args)
    entries = server_command.read_conf(args.conf)
    loaded = load_entries(_for_existing_log(args.store, entries))
    server_command.report(loaded.remarks)
    unsupported.check(loaded.refused, args.ignore_unsupported)
    broker, store = log_output.with_level(args, loaded.broker), loaded.store
    broker.log_level.apply()
    if args.host is not None:
        broker = broker.replace(bind=args.host)
    if args.port is not None:
        store = store.replace(store_host=store.store_host._replace(port=args.port))
    store = store.replace(store_host=advertised_host(broker.bind, store.store_host, entries))
    _warn_of_loopback(broker.bind, store.store_host.ip)
    return LoadedBroker(broker, store, loaded.remarks)


def broker_tls(args: argparse.Namespace, config: BrokerConfig) -> ServerTls | None:
    """Return the TLS of the ports, from the arguments and from the settings of the broker."""
    return tls_options.server_tls(
        tls_options.tls_config(args, config.tls_certificate, config.tls_key, config.tls_config_file)
    )


def _for_existing_log(store: Path | None, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Replace the configured size of log files by that of the existing ones, which is kept.

    The configured size would otherwise decide remarks and the limit of messages, although no file
    of that size is ever created.
    """
    size = log_file_size(SYSTEM, store) if store is not None else 0
    try:
        StoreConfig().for_files(commit_log_file_size=size)
    except ConfigError:  # no log, or a truncated file: opening the store reports which
        return entries
    names = SETTINGS["commit_log_file_size"].names_in_file
    return {
        key: entry._replace(text=str(size)) if key in names else entry
        for key, entry in entries.items()
    }


def _warn_of_loopback(bind: str, advertised: str) -> None:
    """Warn if the broker accepts remote clients but advertises a loopback address to them."""
    if not is_loopback(bind) and is_loopback(advertised):
        say(
            f"the broker listens on {bind} but advertises {advertised}, which clients on other "
            "machines cannot reach: set brokerIP1"
        )


def _check_ports(loaded: LoadedBroker, name_server: int, grpc: int) -> None:
    """Raise ConfigError if two of the ports are the same; 0 means any free port."""
    broker = loaded.store.store_host.port
    replicas = loaded.broker.ha_listen_port or (broker and broker + 1)
    users: dict[int, str] = {}
    for user, port in (
        ("the broker (--port, listenPort)", broker),
        ("its replicas (haListenPort, by default the port of the broker + 1)", replicas),
        ("the name server (--namesrv-port)", name_server),
        ("gRPC clients (--grpc-port, grpcServerPort)", grpc),
    ):
        if port > 0 and port in users:
            what = f"{users[port]} and {user} need a port each; choose another one for one of them"
            raise ConfigError("port", port, what)
        users[port] = user


def _name_server(broker: BrokerConfig, port: int) -> NameServerConfig:
    return NameServerConfig(bind_address=broker.bind, listen_port=port, **broker.limits())


def _secured(args: argparse.Namespace, loaded: LoadedBroker) -> SecureFolder:
    """Return the folder of ``--secure``, with everything that it needs.

    Raises:
        ConfigError: A file with a secret cannot be used.
        UnsupportedError: A package is missing.
    """
    given = (args.tls_cert, args.tls_key, args.tls_mode, args.tls_trust, args.tls_config)
    if any(given):
        raise ConfigError("--secure", str(args.secure), "cannot be combined with options of TLS")
    hosts = {*LOCAL_HOSTS, socket.gethostname(), loaded.broker.bind, loaded.store.store_host.ip}
    try:
        return SecureFolder(args.secure, hosts - ALL_ADDRESSES, args.store)
    except ModuleNotFoundError as error:
        if not is_missing(error):
            raise
        raise UnsupportedError(f"--secure needs more packages: run {INSTALL}") from None


def run(args: argparse.Namespace) -> ExitCode:
    """Run the broker and the name server until they are stopped."""
    if args.secure is not None and args.store is None:
        args.store = args.secure / STORE
    loaded = settings(args)
    secure = _secured(args, loaded) if args.secure is not None else None
    if secure is not None:
        config = loaded.broker.replace(
            authentication=True, authorization=True, init_user=secure.admin
        )
        loaded = LoadedBroker(config, loaded.store, loaded.remarks)
    is_any = loaded.store.store_host.port == 0
    grpc_port = grpc_service.port_of(
        args, loaded.broker, 0 if is_any else grpc_service.DEFAULT_PORT
    )
    _check_ports(loaded, args.namesrv_port, grpc_port.number if grpc_port.is_required else 0)
    with ExitStack() as resources:
        folder = args.store or Path(
            resources.enter_context(tempfile.TemporaryDirectory(prefix="firetrail-"))
        )
        broker = Broker(
            folder,
            loaded.broker,
            loaded.store,
            name_server=_name_server(loaded.broker, args.namesrv_port),
            conf=args.conf,
            ignore_unsupported=args.ignore_unsupported,
            tls=ServerTls(secure.tls) if secure is not None else broker_tls(args, loaded.broker),
            insecure=args.insecure,
            ignore_users=args.ignore_users,
        )
        reload = FileReload(args.conf, broker.tls, broker.take_changes)
        server_command.run(serve(broker, folder, args.json, grpc_port, secure, reload=reload))
    return ExitCode.OK


def _listed(addresses: Sequence[str]) -> str:
    return " and ".join(addresses)


async def serve(
    broker: Broker,
    folder: Path,
    as_json: bool,
    grpc_port: grpc_service.GrpcPort,
    secure: SecureFolder | None = None,
    *,
    reload: Reload,
) -> None:
    """Start the broker, print its addresses, and stop it at SIGTERM or Ctrl-C."""
    service = Service(reload)
    async with AsyncExitStack() as resources:
        proxy = grpc_service.prepared(broker, grpc_port)
        await broker.start()
        resources.push_async_callback(broker.stop)
        found = {"name server": broker.namesrv} if broker.namesrv else {}
        found |= {"broker": broker.address, "store": str(folder)}
        if proxy is not None and await grpc_service.start(proxy, broker, grpc_port):
            resources.push_async_callback(proxy.stop)
            found["grpc"] = proxy.address
        hints = {
            "name server": f"clients connect here; it listens on {_listed(broker.namesrv_listens)}",
            "broker": f"advertised to clients; it listens on {_listed(broker.listens)}",
            "grpc": "clients of RocketMQ 5 connect here",
        }
        guide = secure.guide(broker.namesrv, found.get("grpc", "")) if secure is not None else []
        if secure is not None and as_json:
            found["secure"] = str(secure.path)
        server_command.announce(found, as_json, hints)
        if not as_json:
            print("".join(f"{line}\n" for line in guide), end="", flush=True)
        await service.until_stopped(f"clients connect to {broker.namesrv or broker.address}")
