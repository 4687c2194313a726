"""``firetrail cluster up``: a group of brokers, a name server and etcd on this machine."""

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from firetrail.cli import common
from firetrail.cli.clusters.etcd_program import etcd_command, etcd_program
from firetrail.cli.clusters.held_member import may_start
from firetrail.cli.clusters.local_cluster import (
    ETCD,
    ETCD_LOG,
    PORT_STEP,
    ClusterPorts,
    LocalCluster,
    LocalMember,
    create_cluster,
)
from firetrail.cli.output import say
from firetrail.cli.replication.member_states import GroupStates, ask_members
from firetrail.cli.servers import log_output, server_command
from firetrail.cli.servers.server_process import ServerProcess
from firetrail.cli.servers.service import Service
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.errors import ConfigError, FiretrailError, NoSuchError
from firetrail.namesrv import NameServer, NameServerConfig
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.system import SYSTEM

DESCRIPTION = """\
Start a group of brokers with automatic failover, a name server and etcd on this machine.

Every member is a process with a folder of its own. A member that ends, or is killed, is started
again. SIGTERM and Ctrl-C stop all of them in order: replicas, master, name server, etcd. The same
command starts the cluster again with what it has. To try failover, kill the process of the master;
'firetrail cluster status FOLDER' shows what happens.

One machine does not protect against its own loss: run a member per machine for that
(docs/guide/replication.md)."""
EXAMPLES = """\
  firetrail cluster up shop
  firetrail cluster up shop --members 5
  firetrail cluster up shop --port 20911 --namesrv-port 19876 --etcd-port 22379 --json"""
MEMBERS_DEFAULT, MEMBERS_MIN, MEMBERS_MAX = 3, 2, 9
PORT_DEFAULT, NAMESRV_DEFAULT, ETCD_DEFAULT = 10911, 9876, 12379
POLL_S = 0.2
"""Pause between two checks whether the servers run."""
SAY_S = 30.0
"""The time after which the command reports the reason of a wait, and the pause until it does so
again."""
ETCD_ANSWER_S = 1.0
LOG_FILE = "name-server.log"
"""The log of this process, unless another file is given."""


def add(actions: Subparsers) -> None:
    """Add the parser."""
    parser = common.add_plain_parser(
        actions, "up", "start a group of brokers on this machine", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="folder of the cluster; created if missing"
    )
    parser.add_argument(
        "--members",
        metavar="N",
        type=int,
        choices=range(MEMBERS_MIN, MEMBERS_MAX + 1),
        help=f"number of members of a new cluster, {MEMBERS_MIN} to {MEMBERS_MAX} (default: "
        f"{MEMBERS_DEFAULT})",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=server_command.port,
        help=f"port of member 1 of a new cluster; those of the others are {PORT_STEP} apart "
        f"(default: {PORT_DEFAULT})",
    )
    parser.add_argument(
        "--namesrv-port",
        metavar="N",
        type=server_command.port,
        help=f"port of the name server of a new cluster (default: {NAMESRV_DEFAULT})",
    )
    parser.add_argument(
        "--etcd-port",
        metavar="N",
        type=server_command.port,
        help=f"port of etcd in a new cluster; it uses the next one, too (default: {ETCD_DEFAULT})",
    )
    server_command.add_json(parser)
    log_output.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> ExitCode:
    """Run the cluster until it is stopped."""
    program = etcd_program()
    cluster = _cluster(args)
    args.log_file = args.log_file or cluster.folder / LOG_FILE
    log_output.set_up(args)
    server_command.run(_serve(cluster, program, args.json))
    return ExitCode.OK


def _cluster(args: argparse.Namespace) -> LocalCluster:
    """Return the cluster in the folder; create it if there is none."""
    try:
        cluster = LocalCluster(args.folder)
    except NoSuchError:
        ports = ClusterPorts(
            args.port or PORT_DEFAULT,
            args.namesrv_port or NAMESRV_DEFAULT,
            args.etcd_port or ETCD_DEFAULT,
        )
        return create_cluster(args.folder, args.members or MEMBERS_DEFAULT, ports)
    first = next(iter(cluster.members.values()))
    for option, given, present in (
        ("--members", args.members, len(cluster.members)),
        ("--port", args.port, first.settings.store.store_host.port),
        ("--namesrv-port", args.namesrv_port, split_address(cluster.name_server)[1]),
        ("--etcd-port", args.etcd_port, split_address(cluster.etcd)[1]),
    ):
        if given is not None and given != present:
            raise ConfigError(
                option,
                given,
                f"the cluster in {args.folder} has {present}; leave the option out, or choose "
                "another folder",
            )
    return cluster


async def _serve(cluster: LocalCluster, program: str, as_json: bool) -> None:
    service = Service()
    stopping = asyncio.ensure_future(service.stop.wait())
    async with AsyncExitStack() as resources:
        starting = asyncio.ensure_future(_start(cluster, program, resources))
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        members = starting.result()
        _announce(cluster, members, as_json)
        await service.until_stopped(f"clients connect to {cluster.name_server}")
    stopping.cancel()


async def _start(
    cluster: LocalCluster, program: str, resources: AsyncExitStack
) -> dict[int, ServerProcess]:
    """Start all servers; return those of the members when the group is complete."""
    command = etcd_command(
        program, cluster.folder / ETCD, cluster.folder / ETCD_LOG, *split_address(cluster.etcd)
    )
    etcd = ServerProcess("etcd", command)
    resources.push_async_callback(etcd.stop)
    etcd.start()
    while not await asyncio.to_thread(_is_healthy, cluster.etcd):
        etcd.check()
        await asyncio.sleep(POLL_S)
    etcd.settle()
    host, port = split_address(cluster.name_server)
    name_server = NameServer(NameServerConfig(bind_address=host, listen_port=port))
    await name_server.start()
    resources.push_async_callback(name_server.stop)
    members = {
        number: ServerProcess(
            f"member {number}", _broker_command(member), partial(may_start, member)
        )
        for number, member in cluster.members.items()
    }
    resources.push_async_callback(_stop_members, cluster, members)
    for process in members.values():
        process.start()
    await _until_complete(cluster, members)
    for process in members.values():
        process.settle()
    return members


def _is_healthy(address: str) -> bool:
    connection = HTTPConnection(*split_address(address), timeout=ETCD_ANSWER_S)
    try:
        connection.request("GET", "/health")
        return b"true" in connection.getresponse().read()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _broker_command(member: LocalMember) -> list[str]:
    return [
        *(sys.executable, "-m", "firetrail", "broker", str(member.store)),
        *("-c", str(member.conf), "--log-file", str(member.log)),
    ]


async def _until_complete(cluster: LocalCluster, members: dict[int, ServerProcess]) -> None:
    """Wait until there is a master, and all members are in sync."""
    clock = SYSTEM.clock
    say_at = clock.monotonic() + SAY_S
    while True:
        for process in members.values():
            process.check()
        states = await _states(cluster)
        if states.is_complete:
            return
        if clock.monotonic() >= say_at:
            say_at = clock.monotonic() + SAY_S
            say(f"waiting for the members: {states.summary}")
        await asyncio.sleep(POLL_S)


async def _states(cluster: LocalCluster) -> GroupStates:
    return await ask_members({n: member.address for n, member in cluster.members.items()})


async def _stop_members(cluster: LocalCluster, members: dict[int, ServerProcess]) -> None:
    """Stop the replicas, and then the master: otherwise one of them would be elected."""
    try:
        found = (await _states(cluster)).members
        masters = [each.number for each in found if each.is_master]
    except FiretrailError:
        masters = []
    replicas = [process for number, process in members.items() if number not in masters]
    await asyncio.gather(*(process.stop() for process in replicas))
    await asyncio.gather(*(members[number].stop() for number in masters))


def _announce(cluster: LocalCluster, processes: dict[int, ServerProcess], as_json: bool) -> None:
    """Print where the servers listen."""
    if as_json:
        members = [
            {"member": number, "broker": member.address, "process": processes[number].pid}
            for number, member in cluster.members.items()
        ]
        found = {"name_server": cluster.name_server, "etcd": cluster.etcd, "members": members}
        print(json.dumps(found), flush=True)
        return
    found_lines = {
        "name server": f"{cluster.name_server}   clients connect here",
        "etcd": f"{cluster.etcd}   elects the master",
    }
    for number, member in cluster.members.items():
        found_lines[f"member {number}"] = f"{member.address}   process {processes[number].pid}"
    for name, text in found_lines.items():
        print(f"{name:<11}  {text}")
    print(f"'firetrail cluster status {cluster.folder}' shows the members", flush=True)
