"""``firetrail replica STORE --of HOST:PORT``: a slave of a running broker."""

import argparse
import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from firetrail.broker.broker import Broker
from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.ports import advertised_host, client_access_of
from firetrail.broker.replica.master_settings import (
    FIRST_SLAVE_ID,
    AdoptedSettings,
    OwnSettings,
    adopted_settings,
    find_master,
    holder_of_id,
)
from firetrail.broker.replica.replica_service import ReplicaService
from firetrail.broker.replica.saved_role import saved_role
from firetrail.cli.common import add_plain_parser
from firetrail.cli.output import human_size, say
from firetrail.cli.replication.role_client import broker_address
from firetrail.cli.servers import log_output, server_command
from firetrail.cli.servers.service import Service
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import NoSuchError, NotReachedError, ReplicationError
from firetrail.format.files.java_properties import Entry
from firetrail.format.values.integers import parse_whole
from firetrail.pace.reminders import Reminders
from firetrail.remoting.connections.access import Access
from firetrail.remoting.messages.bodies import MASTER_ID
from firetrail.remoting.messages.replica_bodies import is_slave_role
from firetrail.replication.replica.follower_status import FollowerState, FollowerStatus
from firetrail.system import SYSTEM

DESCRIPTION = """\
Follow a running RocketMQ or Firetrail broker: copy its log, topics, groups and offsets into a
folder, and keep them up to date. 'firetrail replica STORE --of …' is the short form.

The replica has the names and file sizes of its master, and serves reads. Spark and all commands
that read a store can read the folder at any time. SIGTERM and Ctrl-C stop the replica cleanly; the
same command continues where it stopped. If the master is down, the replica serves what it has and
tries again; a new folder waits for the master.

With -c, settings that are not adopted from the master come from a file, for example access control,
TLS, credentials and limits.

Exit code 0: it was stopped; 1: it was stopped, and could no longer follow its master (the state is
stuck or diverged); 2: it did not start."""
EXAMPLES = """\
  firetrail replica copy --of 10.0.0.5:10911
  firetrail replica copy --namesrv 10.0.0.4:9876 --broker broker-a
  firetrail replica copy --of 10.0.0.5:10911 -c replica.conf --host 10.0.0.6
  firetrail replica copy --of 127.0.0.1:10911 --port 0 --json"""
RETRY_S, RETRY_MAX_S = 0.5, 30.0
"""The first and the longest pause before a master that does not answer is asked again."""
POLL_S = 0.5
"""Pause between two checks of the progress."""
SHOW_S = 2.0
"""Pause between two lines of progress."""
_BROKEN = (FollowerState.STUCK, FollowerState.DIVERGED)


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = add_plain_parser(actions, "follow", "follow a running broker", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "store", metavar="STORE", type=Path, help="folder of the copy; created if missing"
    )
    parser.add_argument(
        "--of", metavar="HOST:PORT", type=broker_address, help="address of the master's broker"
    )
    parser.add_argument(
        "--namesrv",
        metavar="ADDRESSES",
        help="HOST:PORT of the name servers, separated by ';': the replica registers with them, so "
        "that consumers find it (default: namesrvAddr in FILE, or none)",
    )
    parser.add_argument(
        "--broker", metavar="NAME", help="name of the broker to follow, if --of is not given"
    )
    parser.add_argument(
        "--id",
        metavar="N",
        type=slave_id,
        default=FIRST_SLAVE_ID,
        help="brokerId of the replica, different for each replica of a master "
        "(default: %(default)s)",
    )
    server_command.add_conf(parser, "broker.conf")
    server_command.add_listening(
        parser, "bind in FILE, or 127.0.0.1", "listenPort in FILE, or 10911"
    )
    server_command.add_insecure(parser)
    server_command.add_ignore_users(parser)
    server_command.add_json(
        parser, "print the addresses and each change of the state as JSON lines"
    )
    log_output.add_arguments(parser)
    parser.set_defaults(run=run, parser=parser)


def slave_id(text: str) -> int:
    """Parse an argument that is the id of a slave."""
    try:
        return parse_whole(text, FIRST_SLAVE_ID)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the id of a replica is a whole number, 1 or larger; {MASTER_ID} is the "
            "master's"
        ) from None


def run(args: argparse.Namespace) -> ExitCode:
    """Run the replica until it is stopped."""
    if args.of is None and (args.namesrv is None or args.broker is None):
        args.parser.error("give the master: --of HOST:PORT, or --namesrv ADDRESSES --broker NAME")
    _check_role(args.store, args.port)
    log_output.set_up(args)
    return server_command.run(_follow(args))


async def _follow(args: argparse.Namespace) -> ExitCode:
    own = _own_settings(args)
    access = client_access_of(load_entries(own).broker)
    service = Service()
    search = await _search(args, service.stop, access)
    if search is None:
        return ExitCode.OK  # it was stopped before the master answered
    master, adopted = search
    # Without --of, name servers tell who the master is.
    config, store = adopted.of_replica(args.of or "", args.id, own)
    if args.namesrv is not None:
        config = config.replace(namesrv=args.namesrv)
    if args.host is not None:
        config = config.replace(bind=args.host)
    if args.port is not None:
        store = store.replace(store_host=store.store_host._replace(port=args.port))
    store = store.replace(store_host=advertised_host(config.bind, store.store_host, own))
    holder = await holder_of_id(config.namesrv, config.name, args.id, access)
    if holder not in (None, str(store.store_host)):
        say(
            f"warning: broker {config.name} with id {args.id} is registered at {holder}; if it is "
            "another replica, give this one another --id: clients find only one of the two"
        )
    broker = Broker(
        args.store,
        config,
        store,
        conf=args.conf,
        insecure=args.insecure,
        ignore_users=args.ignore_users,
    )
    await broker.start()
    try:
        assert broker.replica is not None
        broker.replica.when_known(lambda: adopted.save(SYSTEM, args.store))
        found = {"broker": broker.address, "store": str(args.store), "master": master}
        server_command.announce(found, args.json, {"broker": "serves reads"})
        watching = asyncio.create_task(_Watch(broker, args.json).run())
        await service.until_stopped(f"follows {master}")
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        replica = broker.replica  # None if it was promoted
        is_broken = replica is not None and replica.follower.status.state in _BROKEN
        return ExitCode.PROBLEMS if is_broken else ExitCode.OK
    finally:
        await broker.stop()


def _own_settings(args: argparse.Namespace) -> Mapping[str, Entry]:
    """Return the entries of the file that count, and report the others.

    Raises:
        ConfigError: A value is not allowed.
    """
    own = OwnSettings.of(server_command.read_conf(args.conf))
    loaded = load_entries(own.entries)
    refused = (f"{each.found} has no effect on a replica" for each in loaded.refused)
    server_command.report([*own.remarks, *loaded.remarks, *refused])
    return own.entries


async def _search(
    args: argparse.Namespace, stop: asyncio.Event, access: Access | None = None
) -> tuple[str, AdoptedSettings] | None:
    """Return the address of the master and the settings to adopt from it; None if the command is
    stopped.

    While the master does not answer, a store that has followed before starts with the settings that
    it adopted then, and the address is empty unless it was given. A new store waits for the master,
    because its file sizes must be the master's.
    """
    saved = AdoptedSettings.load(SYSTEM, args.store)
    reminders, pause_s = Reminders(SYSTEM.clock.monotonic), RETRY_S
    while not stop.is_set():
        try:
            master = args.of or await find_master(args.namesrv, args.broker, access)
            adopted = await adopted_settings(master, access)
            return master, adopted.with_name_servers(args.namesrv)
        except (NotReachedError, NoSuchError) as error:
            if saved is not None:
                _check_name(args, saved)
                say(f"{error}; the replica starts with what it has, and tries again")
                return args.of or "", saved.with_name_servers(args.namesrv)
            if isinstance(error, NoSuchError):
                raise
            if reminders.is_due(str(error)):
                waiting = FollowerStatus(FollowerState.WAITING, None, 0, -1, str(error), 0)
                print(_line(waiting, args.json), flush=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await stop.wait()
        pause_s = min(pause_s * 2, RETRY_MAX_S)
    return None


def _check_name(args: argparse.Namespace, saved: AdoptedSettings) -> None:
    """Raise ReplicationError if the store has followed a broker of another name than is given."""
    known = saved.settings.get("brokerName")
    if args.of is None and known not in (None, args.broker):
        raise ReplicationError(
            f"{args.store} is a replica of broker {known!r}, not of {args.broker!r}, which is not "
            f"found; follow it with --broker {known}, or give {args.broker!r} another folder"
        )


def _check_role(folder: Path, port: int | None = None) -> None:
    """Refuse to follow with a store that was promoted: it may be the master of others by now."""
    saved = saved_role(SYSTEM, folder)
    if saved is None or is_slave_role(saved.role):
        return
    adopted = AdoptedSettings.load(SYSTEM, folder) or AdoptedSettings(
        {"brokerClusterName": "…", "brokerName": "…", "namesrvAddr": "…"}
    )
    lines = adopted.settings | {"brokerId": str(saved.broker_id), "brokerRole": saved.role}
    if port:
        lines["listenPort"] = str(port)
    conf = "\n".join(f"  {key}={value}" for key, value in lines.items() if value)
    raise ReplicationError(
        f"{folder} was promoted to {saved.role} and may be the master of others. Start it as one "
        f"with 'firetrail broker {folder} -c broker.conf' and these lines in broker.conf:\n{conf}\n"
        "To make it follow the present master, run 'firetrail replica rewind "
        f"{folder} --of HOST:PORT'"
    )


class _Watch:
    """Prints the progress of a replica until it has caught up, and later why it does not follow.

    A line is printed only if it differs from the previous one.
    """

    def __init__(self, broker: Broker, as_json: bool) -> None:
        self._broker = broker
        self._as_json = as_json
        self._shown_at = SYSTEM.clock.monotonic()
        self._caught_up = False
        self._error = ""
        self._line = ""

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            if self._broker.replica is not None:
                self._look(self._broker.replica)
            else:
                self._print(_promoted_line(self._broker, self._as_json))

    def _look(self, replica: ReplicaService) -> None:
        status, now = replica.follower.status, SYSTEM.clock.monotonic()
        if status.state is FollowerState.CHECKING:
            return  # its outcome follows soon
        was_caught_up = self._caught_up
        self._caught_up = was_caught_up or replica.is_caught_up
        is_news = status.error != self._error or self._caught_up != was_caught_up
        if is_news or (not self._caught_up and now - self._shown_at >= SHOW_S):
            self._show(status, now)

    def _show(self, status: FollowerStatus, now: float) -> None:
        self._error, self._shown_at = status.error, now
        self._print(_line(status, self._as_json, self._caught_up))

    def _print(self, line: str) -> None:
        if line != self._line:
            self._line = line
            print(line, flush=True)


def _promoted_line(broker: Broker, as_json: bool) -> str:
    role, epoch = broker.role.value, broker.epochs.number
    if as_json:
        return json.dumps({"state": "master", "role": role, "epoch": epoch})
    return f"promoted: this broker is now the master ({role}), epoch {epoch}"


def _line(status: FollowerStatus, as_json: bool, caught_up: bool = False) -> str:
    if as_json:
        found = {
            "state": status.state.value,
            "log_end": status.own_max,
            "master_log_end": status.master_max if status.master_max >= 0 else None,
            "lag": status.lag if status.lag >= 0 else None,
            "caught_up": caught_up and status.lag == 0,
            "error": status.error,
        }
        return json.dumps(found)
    return f"{status.state.value}: {_described(status, caught_up)}"


def _described(status: FollowerStatus, caught_up: bool) -> str:
    if status.error:
        return status.error
    own = human_size(status.own_max)
    if status.master_max < 0:
        return f"the log of the replica ends at {own}"
    if caught_up and status.own_max == 0:
        return "caught up: the master has no messages yet"
    if caught_up:
        return f"caught up with the master at {own}"
    return f"{own} of {human_size(status.master_max)}"
