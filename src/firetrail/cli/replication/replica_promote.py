"""``firetrail replica promote``: make a replica the master."""

import argparse
import asyncio
import json

from firetrail.broker.replica.role_requests import ask_status
from firetrail.cli import common
from firetrail.cli.output import human_size, say
from firetrail.cli.replication.role_client import NOT_FIRETRAIL, broker_client
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import FiretrailError, RequestError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.remoting.messages.replica_headers import PromoteHeader
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.replication.replica.master_check import check_is_broker
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM

DESCRIPTION = """\
Make the replica at ADDRESS the master, without a restart.

The present master hands over: it refuses messages until the replica has its whole log and all
tables, and then becomes a slave of the replica. Sends fail during the hand-over, usually for less
than three seconds; Java programs have to send these messages again. Nothing is lost. If a step
fails, the present master continues. If one of the two brokers dies during the hand-over, it is
finished or undone when both run again.

With --force the present master does not hand over. Use this if the master is lost. Messages that
the replica has not received are then lost. --force is refused if the replica has diverged, or if
its master, Firetrail's or Java's, accepts messages; --override promotes it nevertheless. If the
former master comes back, it refuses messages, and must be rewound ('firetrail replica rewind')
before it can follow. With --force, a former master can also be made the master again.

The new role survives restarts, until brokerRole or brokerId in broker.conf is changed.

In a group with automatic failover, the master gives its lease to the replica, which must be in the
in-sync set. Sends wait during the hand-over, and are then passed on, so producers see a pause of
about a second. --force and --role are refused: if the master is lost, the group elects another one.

Exit codes:
  0  the replica is the master, or was it already
  2  it is not: the request was refused, or the change failed and the present master continues
  7  the change is not finished, its outcome is not known, or the role is being changed by another
     command: see 'firetrail replica status'"""
EXAMPLES = """\
  firetrail replica promote 10.0.0.3:10911
  firetrail replica promote 10.0.0.3:10911 --force --role SYNC_MASTER"""
CHANGE_WAIT_S = 180.0
"""The time that the command waits for the end of the change; the broker gives up earlier."""
POLL_S = 0.1
_ROLES = [BrokerRole.ASYNC_MASTER.value, BrokerRole.SYNC_MASTER.value]


class _UnfinishedError(FiretrailError):
    """The change is not finished, or its outcome is not known."""


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        actions, "promote", "make a replica the master", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("address", metavar="ADDRESS", help="HOST:PORT of the replica's broker")
    parser.add_argument(
        "--force", action="store_true", help="the master is lost: do not wait for it to hand over"
    )
    parser.add_argument(
        "--override",
        action="store_true",
        help="with --force: promote even a diverged replica, or one whose master accepts messages",
    )
    parser.add_argument(
        "--role",
        choices=_ROLES,
        help="brokerRole of the new master (default: that of the present or last one, or "
        f"{_ROLES[0]} if it is not known)",
    )
    common.add_json(parser, "print the status of the new master, without its replicas, as JSON")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Promote the replica, and print its new status."""
    if args.override and not args.force:
        args.parser.error("--override is possible with --force only")
    try:
        before, after = asyncio.run(_promote(args))
    except _UnfinishedError as error:
        say(str(error))
        return ExitCode.UNFINISHED
    if args.json:
        print(json.dumps(after.to_json()))
        return ExitCode.OK
    print(_who_is_master(after))
    if not before.is_slave and before.epoch == after.epoch:
        print("it was the master already")
    follower = before.follower
    lag = follower.master_max_offset - before.max_offset if follower is not None else 0
    if args.force and follower is not None and lag > 0:
        print(
            f"its master had {human_size(lag)} more, up to {follower.master_max_offset}, "
            "when it last answered"
        )
    if args.force and follower is not None and follower.missing:
        print(
            f"it lacks old messages: the log of its master began {human_size(follower.missing)} "
            f"earlier, at {follower.master_min_offset}, when it last answered"
        )
    if _has_no_name_server(after):
        print(
            "clients do not find it, because it has no name server to register with: restart it "
            "with namesrvAddr in its broker.conf"
        )
    return ExitCode.OK


def _who_is_master(status: ReplicaStatus) -> str:
    said = f"{status.address} is the master ({status.role}) of {status.broker_name}"
    if status.epoch_start_offset < 0:
        return said
    return f"{said} since offset {status.epoch_start_offset} of its log, with epoch {status.epoch}"


def _has_no_name_server(status: ReplicaStatus) -> bool:
    return status.name_servers == []  # None: it does not tell


async def _promote(args: argparse.Namespace) -> tuple[ReplicaStatus, ReplicaStatus]:
    async with broker_client() as client:
        before = await _ask(client, args.address)
        if _has_no_name_server(before):
            say(
                f"warning: {args.address} has no name server to register with, and its master has "
                "told none, so clients will not find the new master; to change this, restart it "
                "with --namesrv"
            )
        header = PromoteHeader(args.force, args.role, args.override)
        accepted = await _request(client, args.address, header)
        if not accepted.step and not accepted.is_slave:
            return before, accepted  # it is the master already
        return before, await _wait(client, args)


async def _request(client: RemotingClient, address: str, header: PromoteHeader) -> ReplicaStatus:
    try:
        return await ask_status(client, address, RequestCode.PROMOTE_REPLICA, header)
    except RequestError as error:
        if error.code != ResponseCode.SYSTEM_BUSY:
            raise
        raise _UnfinishedError(
            f"{error}; 'firetrail replica status {address}' shows its progress"
        ) from None


async def _ask(client: RemotingClient, address: str) -> ReplicaStatus:
    try:
        return await ask_status(client, address)
    except RequestError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        await check_is_broker(client, address)
        raise FiretrailError(f"{address}: {NOT_FIRETRAIL}") from None


async def _wait(client: RemotingClient, args: argparse.Namespace) -> ReplicaStatus:
    deadline = SYSTEM.clock.monotonic() + CHANGE_WAIT_S
    shown = ""
    while SYSTEM.clock.monotonic() < deadline:
        try:
            status = await ask_status(client, args.address)
        except TimeoutError:  # it may be busy with the change
            await asyncio.sleep(POLL_S)
            continue
        except OSError as error:
            raise _UnfinishedError(
                f"{error}; 'firetrail replica status {args.address}' shows the outcome when the "
                "broker runs again"
            ) from None
        if not status.step:
            return _outcome(status)
        if status.step != shown and not args.json:
            shown = status.step
            say(f"{args.address}: {shown}")
        await asyncio.sleep(POLL_S)
    step = f", and is {shown}" if shown else ""
    raise _UnfinishedError(
        f"{args.address} has not finished the change within {CHANGE_WAIT_S:g} s{step}; 'firetrail "
        f"replica status {args.address}' shows its progress"
    )


def _outcome(status: ReplicaStatus) -> ReplicaStatus:
    """Return the status of a broker that is the master after the change; raise if it is not."""
    if status.hand_over is not None:
        raise _UnfinishedError(f"{status.address} is not the master yet: {status.hand_over.remark}")
    if status.step_error:
        raise FiretrailError(f"{status.address} was not promoted: {status.step_error}")
    if status.is_slave:
        raise FiretrailError(
            f"{status.address} was not promoted: it was restarted meanwhile, and is a slave"
        )
    return status
