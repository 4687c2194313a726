"""``firetrail up``: a name server and a broker in one process."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path

from firetrail.broker.broker import Broker
from firetrail.broker.config import LoadedBroker, load_entries
from firetrail.broker.takeover import unsupported
from firetrail.cli import logs, serving
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.output import say
from firetrail.errors import ConfigError
from firetrail.format.java_properties import Entry
from firetrail.namesrv import NameServerConfig
from firetrail.store.config import SETTINGS, StoreConfig
from firetrail.store.lifecycle.sizes import log_file_size
from firetrail.system import SYSTEM

DESCRIPTION = """\
Start a broker with a name server, for clients of RocketMQ in any language.

It listens on this machine only and takes messages at once; topics come into being when they are
used. It stops on SIGTERM and Ctrl-C, and loses nothing."""
EXAMPLES = """\
  firetrail up                          a store that is gone afterwards
  firetrail up data                     the store in the folder data, or a new one there
  firetrail up data -c broker.conf
  firetrail up --port 0 --namesrv-port 0 --json"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = subparsers.add_parser(
        "up",
        help="start a broker and a name server",
        description=DESCRIPTION,
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        type=serving.port,
        default=9876,
        help="port of the name server, 0 for a free one (default: %(default)s)",
    )
    return parser


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command that starts a broker takes."""
    parser.add_argument("-c", "--conf", metavar="FILE", type=Path, help="RocketMQ's broker.conf")
    parser.add_argument("--host", help="address to listen on (default: bind, or 127.0.0.1)")
    parser.add_argument(
        "--port",
        metavar="N",
        type=serving.port,
        help="port of the broker, 0 for a free one (default: listenPort, or 10911)",
    )
    parser.add_argument(
        unsupported.FLAG,
        metavar="NAME",
        action="append",
        choices=unsupported.NAMES,
        default=[],
        help="start although this is asked for and not supported: a key of broker.conf as "
        "brokerRole or aclEnable, rocksdb or dledger (repeatable)",
    )
    serving.add_json(parser)
    logs.add_arguments(parser)


def settings(args: argparse.Namespace) -> LoadedBroker:
    """The settings in the file and the arguments; what of the file has no effect is reported.

    From here on the log goes where the arguments say.
    """
    logs.set_up(args)
    loaded = load_entries(_for_existing_log(args.store, serving.read_conf(args.conf)))
    serving.report(loaded.remarks)
    unsupported.check(loaded.refused, args.ignore_unsupported)
    broker, store = loaded.broker, loaded.store
    if args.host is not None:
        broker = broker.replace(bind=args.host)
    if args.port is not None:
        store = store.replace(store_host=store.store_host._replace(port=args.port))
    _warn_of_loopback(broker.bind, store.store_host.ip)
    return LoadedBroker(broker, store, loaded.remarks)


def _for_existing_log(store: Path | None, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Replace the size of log files in the settings by that of existing ones, which stays.

    Otherwise a remark, and the limit of messages, would be about files that nobody creates.
    """
    size = log_file_size(SYSTEM, store) if store is not None else 0
    try:
        StoreConfig().for_files(commit_log_file_size=size)
    except ConfigError:  # no log, or a truncated file: the start of the store says which
        return entries
    names = SETTINGS["commit_log_file_size"].names_in_file
    return {
        key: entry._replace(text=str(size)) if key in names else entry
        for key, entry in entries.items()
    }


def _warn_of_loopback(bind: str, told: str) -> None:
    """Say so if the broker listens for other machines, and sends their clients to themselves."""
    try:
        listens_beyond = not ip_address(bind).is_loopback
    except ValueError:  # a name
        listens_beyond = bind != "localhost"
    if listens_beyond and ip_address(told).is_loopback:
        say(f"it listens on {bind}, but clients are told to connect to {told}: set brokerIP1")


def run(args: argparse.Namespace) -> ExitCode:
    """Serve until told to stop."""
    loaded = settings(args)
    with ExitStack() as resources:
        folder = args.store or Path(
            resources.enter_context(tempfile.TemporaryDirectory(prefix="firetrail-"))
        )
        broker = Broker(
            folder,
            loaded.broker,
            loaded.store,
            name_server=NameServerConfig(
                bind_address=loaded.broker.bind, listen_port=args.namesrv_port
            ),
            conf=args.conf,
            ignore_unsupported=args.ignore_unsupported,
        )
        serving.run(serve(broker, folder, args.json))
    return ExitCode.OK


def _listed(addresses: Sequence[str]) -> str:
    return " and ".join(addresses)


async def serve(broker: Broker, folder: Path, as_json: bool) -> None:
    """Start the broker, say how to reach it, and stop it when the process is told to."""
    told = serving.told_to_stop()
    await broker.start()
    try:
        found = {"name server": broker.namesrv} if broker.namesrv else {}
        found |= {"broker": broker.address, "store": str(folder)}
        hints = {
            "name server": f"clients connect here; it listens on {_listed(broker.namesrv_listens)}",
            "broker": f"clients are sent here; it listens on {_listed(broker.listens)}",
        }
        serving.tell(found, as_json, hints)
        await told.wait()
    finally:
        await broker.stop()
