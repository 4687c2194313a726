"""``firetrail replica status``: the role of a broker, and how it follows its master."""

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from firetrail.broker.replica.hand_over.unfinished_hand_over import unfinished_remark
from firetrail.broker.replica.role_requests import ask_status
from firetrail.broker.replica.saved_role import saved_role
from firetrail.broker.replica.slave_synchronize import table_failures
from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.cli import common
from firetrail.cli.common import open_view
from firetrail.cli.output import counted, human_size, human_time, table
from firetrail.cli.replication.role_client import broker_client
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import FiretrailError, NotReachedError, RequestError
from firetrail.format.files.java_properties import parse_properties
from firetrail.format.values.integers import number_in
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.admin.admin_bodies import HAConnectionRuntimeInfo, HARuntimeInfo
from firetrail.remoting.messages.bodies import KVTable
from firetrail.remoting.messages.replica_bodies import FollowerReport, GroupReport, ReplicaStatus
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.group.group_check import StateConflict
from firetrail.replication.group.group_status import GroupProblem
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import check_is_broker
from firetrail.store.log.log_records import store_time_at
from firetrail.system import SYSTEM

DESCRIPTION = """\
Show the role of a broker, its epoch and the range of its log; for a slave, how it follows its
master, and for a master, its replicas. For a folder, show what its files say.

Exit codes for a broker:
  0  a master that accepts and confirms messages, or a slave that follows its master
  3  a slave that does not follow at the moment and tries again: see the error
  4  a stuck slave: the master no longer has, or does not send, what it needs next
  5  a diverged slave: its log is not that of the master; the error says what to do
  6  a master that refuses messages, because there is a newer one or for another reason
  7  a hand-over of the master is not finished, so there may be no master: see the remedy
  8  a SYNC_MASTER that stores messages, but whose replicas are too few or too late to confirm them
  9  a slave that follows, but has deleted old messages that its master still has
 10  a member of a group that refuses the state of the group in etcd: see the reason and the remedy
  2  the broker does not answer
Exit code for a folder: 0, or 2 if it is not a store."""
EXAMPLES = """\
  firetrail replica status 10.0.0.3:10911
  firetrail replica status 10.0.0.3:10911 --json | jq .follower.lag
  firetrail replica status data"""
_EXITS = {
    FollowerState.FOLLOWING.value: ExitCode.OK,
    FollowerState.STUCK.value: ExitCode.STUCK,
    FollowerState.DIVERGED.value: ExitCode.DIVERGED,
}


class _BrokerStatus(NamedTuple):
    """The status of a broker, and the replicas of a master."""

    status: ReplicaStatus
    replicas: list[HAConnectionRuntimeInfo]


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        actions, "status", "show the role of a broker, and how it follows", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "subject",
        metavar="ADDRESS|STORE",
        type=_subject,
        help="HOST:PORT of a broker, or folder of a store",
    )
    common.add_json(parser, "print a JSON object")
    parser.set_defaults(run=run)


def _subject(text: str) -> str:
    if not text:  # Path("") is the current folder
        raise argparse.ArgumentTypeError("expected an address or a folder, not an empty text")
    return text


def run(args: argparse.Namespace) -> ExitCode:
    """Print the status of a broker or a folder."""
    if Path(args.subject).exists() or ":" not in args.subject:
        return _show_folder(Path(args.subject), args.json)
    found = asyncio.run(_ask(args.subject))
    if args.json:
        replicas = [replica.to_json() for replica in found.replicas]
        print(json.dumps(found.status.to_json() | {"replicas": replicas}))
    else:
        print("\n".join(_lines(found)))
    return _exit_code(found.status)


def _exit_code(status: ReplicaStatus) -> ExitCode:
    if status.hand_over is not None:
        return ExitCode.UNFINISHED
    if status.group is not None and status.group.doubt:
        return ExitCode.DOUBTS
    if not status.is_slave:
        if status.refusal:
            return ExitCode.REFUSES
        return ExitCode.UNCONFIRMED if status.unconfirmed else ExitCode.OK
    follower = status.follower
    code = _EXITS.get(follower.state if follower else "", ExitCode.NOT_FOLLOWING)
    is_incomplete = code is ExitCode.OK and follower is not None and follower.missing
    return ExitCode.INCOMPLETE if is_incomplete else code


async def _ask(address: str) -> _BrokerStatus:
    async with broker_client() as client:
        try:
            status = await ask_status(client, address)
        except RequestError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            await check_is_broker(client, address)
            status = await _java_status(client, address)
        except OSError as error:
            raise NotReachedError(f"{error}; is a broker running there?") from None
        return _with_replicas(status, await _ha_info(client, address))


async def _java_status(client: RemotingClient, address: str) -> ReplicaStatus:
    """Return the status of a broker of RocketMQ."""
    command = RemotingCommand(RequestCode.GET_BROKER_CONFIG)
    text = (await client.ask(address, command)).content.decode("utf-8", "replace")
    settings = parse_properties(text)
    command = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
    figures = KVTable.decode((await client.ask(address, command)).content).table
    texts = {key: entry.text for key, entry in settings.items()}
    return ReplicaStatus(
        address=address,
        cluster_name=texts.get("brokerClusterName", ""),
        broker_name=texts.get("brokerName", ""),
        broker_id=number_in(texts.get("brokerId")) or 0,
        role=texts.get("brokerRole", "").upper(),
        epoch=0,
        min_offset=number_in(figures.get("commitLogMinOffset")) or 0,
        max_offset=number_in(figures.get("commitLogMaxOffset")) or 0,
    )


async def _ha_info(client: RemotingClient, address: str) -> HARuntimeInfo:
    """Return the replicas of a master; none if it does not report them (RocketMQ 4.x)."""
    try:
        command = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS)
        answer = await client.ask(address, command)
    except (OSError, FiretrailError):
        return HARuntimeInfo()
    return HARuntimeInfo.decode(answer.content)


def _with_replicas(status: ReplicaStatus, ha: HARuntimeInfo) -> _BrokerStatus:
    """Return the status with the replicas, and with the end that the log had at that moment.

    Otherwise a replica could seem to be ahead of the master.
    """
    if not ha.ha_connection_info:
        return _BrokerStatus(status, [])
    end = ha.master_commit_log_max_offset
    return _BrokerStatus(replace(status, max_offset=end), ha.ha_connection_info)


def _lines(found: _BrokerStatus) -> list[str]:
    status, replicas = found
    epoch = f", epoch {status.epoch}" if status.epoch else ""
    lines = [
        f"{status.address}: {status.role} with id {status.broker_id} of {status.broker_name} in "
        f"{status.cluster_name}{epoch}",
        f"log: {status.min_offset} to {status.max_offset}",
    ]
    if status.damaged_records:
        records = counted(status.damaged_records, "damaged record")
        lines.append(f"{records} in the log, not repaired yet: see its log file for the places")
    if status.refusal:
        lines.append(f"refuses messages: {status.refusal}")
    if status.unconfirmed:
        lines.append(f"does not confirm messages: {status.unconfirmed}")
    if status.step:
        lines.append(f"its role is being changed: {status.step}")
    elif status.step_error and not _is_following(status):
        lines.append(f"the last change of its role failed: {status.step_error}")
    if status.hand_over is not None and not status.step:
        lines.append(f"no master: {status.hand_over.remark}")
    if status.group is not None:
        lines += _group_lines(status.group)
    if status.follower is not None:
        lines += _follower_lines(status.follower)
    elif replicas:
        rows = [[each.addr, each.slave_ack_offset, human_size(each.diff)] for each in replicas]
        lines += table(["replica", "has the log up to>", "behind>"], rows)
    return lines


def _is_following(status: ReplicaStatus) -> bool:
    follower = status.follower
    return follower is not None and follower.state == FollowerState.FOLLOWING.value


def _group_lines(group: GroupReport) -> list[str]:
    holder = "no member holds the lease"
    if group.member:
        holder = f"member {group.member} at {group.holder} holds lease {group.epoch}"
    members = ", ".join(map(str, group.in_sync)) or "none"
    lines = [f"group: {holder}; in-sync members: {members}"]
    if group.doubt:
        is_left_out = group.doubt == StateConflict.DECIDED_WITHOUT
        head = "takes no part" if is_left_out else "no master"
        return [f"group: {head} ({group.doubt}): {group.refusal}"]
    if group.obstacle and not group.member:
        lines.append(f"this member cannot be elected: {group.obstacle}")
    if group.error:
        problem = "failover does not work at the moment"
        if group.problem == GroupProblem.FULL_DISK:
            problem = "this member takes no part in the group, because its disk is full"
        lines.append(f"{problem}: {group.error}")
    if group.older_master:
        lines.append(f"do not rewind this member: {group.older_master}")
    return lines


def _follower_lines(follower: FollowerReport) -> list[str]:
    master = follower.master_address or "no master"
    behind = "" if follower.lag < 0 else f", {human_size(follower.lag)} behind"
    lines = [f"{follower.state}: {master}{behind}, since {human_time(follower.since_timestamp)}"]
    if follower.error:
        lines.append(f"error: {follower.error}")
    if follower.missing:
        lines.append(
            f"lacks old messages: its log begins {human_size(follower.missing)} after that of the "
            f"master, at {follower.master_min_offset}"
        )
    if follower.tables_timestamp:
        lines.append(f"topics, groups and offsets as of {human_time(follower.tables_timestamp)}")
    return lines + [f"not copied: {failure}" for failure in table_failures(follower.table_errors)]


# -- folders ----------------------------------------------------------------------------------


def _show_folder(store: Path, as_json: bool) -> ExitCode:
    with open_view(store) as view:
        saved = saved_role(SYSTEM, store)
        epochs = EpochFile(SYSTEM, store).epochs
        unfinished = unfinished_remark(saved, "ADDRESS") if saved is not None else ""
        last_ms = store_time_at(view.log, view.last_record)
        notes = SlaveMark(SYSTEM, store).notes
        replica_of = notes.followed if notes.is_slave else ""
        found = {
            "store": str(store),
            "state": view.state.value,
            "process": view.owner,
            "role": saved.role if saved is not None else None,
            "broker_id": saved.broker_id if saved is not None else None,
            "replica_of": replica_of or None,
            "diverged": notes.diverged or None,
            "unfinished_hand_over": unfinished or None,
            "min_offset": view.log.min_offset,
            "max_offset": view.end,
            "last_store_time": last_ms,
            "epochs": [{"epoch": each.number, "start": each.start_offset} for each in epochs],
        }
    if as_json:
        print(json.dumps(found))
        return ExitCode.OK
    state = f"open in process {found['process']}" if found["process"] else found["state"]
    stored = f", last stored {human_time(last_ms)}" if last_ms is not None else ""
    print(f"{store} ({state}): log {found['min_offset']} to {found['max_offset']}{stored}")
    if saved is not None and saved.is_changed:
        print(f"its role was changed to {saved.role} with id {saved.broker_id}")
    if replica_of:
        print(f"a replica of {replica_of} (cluster/broker)")
    if notes.diverged:
        print(f"it has diverged: {notes.diverged}")
    if unfinished:
        print(unfinished)
    if epochs:
        print(
            f"{counted(len(epochs), 'epoch')}, the last one {epochs[-1].number} from offset "
            f"{epochs[-1].start_offset} on"
        )
    return ExitCode.OK
