"""``firetrail cluster replace``: a member of a cluster on this machine copies everything again."""

import argparse
import asyncio
import os
import signal
import socket
from contextlib import closing, suppress
from pathlib import Path

from firetrail.broker.replica.replacement import Replacement
from firetrail.cli import common
from firetrail.cli.clusters.held_member import held
from firetrail.cli.clusters.local_cluster import LocalCluster, LocalMember
from firetrail.cli.replication.member_states import MemberState, ask_members
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import FiretrailError
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.system import SYSTEM

DESCRIPTION = """\
Replace a damaged member of a cluster that 'firetrail cluster up' runs: stop it, wait until the
group no longer counts on it, move its store aside, and let it copy everything from the
master. The other members continue meanwhile.

If the command is interrupted, run it again. The member is started all the same.

For a member on a machine of its own, use 'firetrail replica replace' there."""
EXAMPLES = "  firetrail cluster replace shop 2"
STOP_S = 60.0
"""The time that the process of the member may take to stop."""
FOLLOW_S = 60.0
"""The time to wait until the member follows."""
POLL_MS = 200
CONNECT_S = 1.0
_FOLLOWS = (MemberState.IN_SYNC, MemberState.CATCHING_UP)


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        actions, "replace", "let a damaged member copy everything again", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the cluster")
    parser.add_argument("member", metavar="MEMBER", type=common.positive, help="its number")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Replace the member."""
    cluster = LocalCluster(args.folder)
    member = cluster.member(args.member)
    cluster.check_answers(asyncio.run(ask_members({member.number: member.address})))
    with closing(Replacement(SYSTEM, member.settings.broker, member.store)) as replacement:
        replacement.check()
        print(f"member {member.number} is stopped, and leaves the in-sync set", flush=True)
        with held(member):  # it is not started again
            _stop(member)
            kept = replacement.run()
    if kept is not None:
        print(f"its store is kept in {kept}", flush=True)
    if not _follows(member):
        print(
            f"it does not follow yet; 'firetrail cluster status {args.folder}' shows why, if "
            "'firetrail cluster up' runs"
        )
        return ExitCode.NOT_FOLLOWING
    print(f"member {member.number} copies everything from the master")
    return ExitCode.OK


def _stop(member: LocalMember) -> None:
    """Stop the process of a member, and wait until it has ended.

    While it changes its role its store is closed, but its port is open.
    """
    clock = SYSTEM.clock
    over_at, asked = clock.monotonic() + STOP_S, -1
    while (process := member.process) is not None or _is_open(member.address):
        if clock.monotonic() > over_at:
            raise FiretrailError(
                f"member {member.number} has not stopped within {STOP_S:g} s of SIGTERM; end its "
                f"process, which listens at {member.address}, and run the command again"
            )
        if process is not None and process != asked:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            asked = process
        clock.sleep_ms(POLL_MS)


def _is_open(address: str) -> bool:
    """Return whether a port accepts connections."""
    try:
        with socket.create_connection(split_address(address), CONNECT_S):
            return True
    except OSError:
        return False


def _follows(member: LocalMember) -> bool:
    over_at = SYSTEM.clock.monotonic() + FOLLOW_S
    while SYSTEM.clock.monotonic() < over_at:
        found = asyncio.run(ask_members({member.number: member.address})).members
        if any(each.number == member.number and each.state in _FOLLOWS for each in found):
            return True
        SYSTEM.clock.sleep_ms(POLL_MS)
    return False
