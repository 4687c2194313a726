"""``firetrail cluster status``: all members of a group, their states, and what to do."""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firetrail.cli import common, running_cluster
from firetrail.cli.clusters.local_cluster import LocalCluster
from firetrail.cli.output import human_size, table
from firetrail.cli.replication.member_states import PAGE, GroupStates, MemberView, ask_members
from firetrail.cli.replication.role_client import broker_client
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import NoSuchError, NotReachedError
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.remoting.messages.bodies import BrokerData, ClusterInfo
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

DESCRIPTION = f"""\
Show all members of a group: role, state, epoch, the end of the log and how far each is behind. For
each member that does not do what it is for, say why, and what to do. All states are explained in
{PAGE}.

Exit codes:
  0  there is a master that confirms messages, and all other members are in sync
  3  there is a master that confirms messages, but another member needs attention
  6  there is no master that confirms messages
  2  no member answers"""
EXAMPLES = """\
  firetrail cluster status shop                              a cluster of 'firetrail cluster up'
  firetrail cluster status 10.0.0.5:10911 10.0.0.6:10911     the members at these addresses
  firetrail cluster status --namesrv 10.0.0.4:9876           those that are registered there
  firetrail cluster status --namesrv 10.0.0.4:9876 --broker broker-b --json"""


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        actions, "status", "show all members of a group, and what to do", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "subjects",
        metavar="FOLDER|ADDRESS",
        nargs="*",
        help="folder of a cluster on this machine, or HOST:PORT of the members (default: the "
        "brokers that name servers list)",
    )
    running_cluster.add_namesrv(parser)
    parser.add_argument(
        "--broker", metavar="NAME", help="name of the group (default: the only one there is)"
    )
    common.add_json(parser, "print a JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Print the members."""
    cluster = _local_cluster(args.subjects)
    states = asyncio.run(ask_members(_addresses(args, cluster)))
    if cluster is not None:
        cluster.check_answers(states)
        states = cluster.with_replacements(states)
    if args.json:
        print(json.dumps(_as_json(states)))
    else:
        print("\n".join(_lines(states)))
    return _exit_code(states)


def _local_cluster(subjects: Sequence[str]) -> LocalCluster | None:
    """Return the cluster whose folder was given; None if there are addresses, or nothing."""
    if len(subjects) == 1 and (Path(subjects[0]).is_dir() or ":" not in subjects[0]):
        return LocalCluster(Path(subjects[0]))
    return None


def _addresses(args: argparse.Namespace, cluster: LocalCluster | None) -> dict[int, str]:
    """Return the addresses of the members, by number or by a negative one if it is not known."""
    if cluster is not None:
        return {number: member.address for number, member in cluster.members.items()}
    subjects: list[str] = args.subjects
    if not subjects:
        subjects = running_cluster.run(args, _registered(args.namesrv, args.broker))
    for subject in subjects:
        split_address(subject)
    return {-1 - position: subject for position, subject in enumerate(subjects)}


async def _registered(namesrv: str, name: str | None) -> list[str]:
    """Return the addresses of the brokers of a group that name servers list."""
    groups = await _listed(namesrv)
    if name is None and len(groups) == 1:
        (name,) = groups
    if name is None or name not in groups:
        listed = ", ".join(sorted(groups)) or "no broker"
        raise NoSuchError(
            f"{namesrv}: {'choose a group with --broker' if name is None else f'no group {name}'}; "
            f"the name servers list {listed}"
        )
    return [*groups[name].broker_addrs.values()]


async def _listed(namesrv: str) -> dict[str, BrokerData]:
    """Return all brokers that the first name server lists that answers, by name."""
    failures: list[str] = []
    async with broker_client() as client:
        for address in namesrv.split(";"):
            try:
                command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
                answer = await client.ask(address, command)
            except OSError as error:
                failures.append(str(error))
            else:
                return ClusterInfo.decode(answer.content).broker_addr_table
    raise NotReachedError("; ".join(failures))


def _exit_code(states: GroupStates) -> ExitCode:
    if all(view.status is None for view in states.members):
        return ExitCode.USAGE
    if states.master is None:
        return ExitCode.REFUSES
    return ExitCode.OK if states.is_complete else ExitCode.NOT_FOLLOWING


def _lines(states: GroupStates) -> list[str]:
    heads = ["member>", "address", "role", "state", "epoch>", "log ends at>", "behind>"]
    lines = table(heads, [_row(view) for view in states.members])
    for view in states.members:
        if view.reason:
            lines.append(f"member {view.number} is {view.state}: {view.reason}")
        if view.advice.what_to_do:
            lines.append(f"  what to do: {view.advice.what_to_do} ({PAGE}#{view.state})")
    return lines


def _row(view: MemberView) -> list[object]:
    status = view.status
    if status is None:
        return [view.number or "?", view.address or "?", "-", view.state, "-", "-", "-"]
    lag = _lag(view)
    return [
        view.number or "?",
        view.address,
        "master" if view.is_master else "replica",
        view.state,
        status.epoch or "-",
        status.max_offset,
        "-" if lag is None else human_size(lag),
    ]


def _lag(view: MemberView) -> int | None:
    """Return the lag of a replica; None for a master, or if it is not known."""
    if view.status is None or view.status.follower is None or view.status.follower.lag < 0:
        return None
    return view.status.follower.lag


def _as_json(states: GroupStates) -> dict[str, Any]:
    known = next((view.status for view in states.members if view.status is not None), None)
    master = states.master
    return {
        "cluster": known.cluster_name if known is not None else None,
        "broker": known.broker_name if known is not None else None,
        "master": master.number if master is not None else None,
        "members": [
            {
                "member": view.number or None,
                "address": view.address or None,
                "role": view.status.role if view.status is not None else None,
                "state": view.state.value,
                "epoch": view.status.epoch if view.status is not None else None,
                "log_end": view.status.max_offset if view.status is not None else None,
                "lag": _lag(view),
                "reason": view.reason or None,
                "what_to_do": view.advice.what_to_do or None,
            }
            for view in states.members
        ],
    }
