"""``firetrail topic``: the topics of a cluster."""

import argparse
import json
from typing import Any

from firetrail.cli import running_cluster
from firetrail.cli.common import positive
from firetrail.cli.output import counted, human_time, say, table
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.client import Admin, MessageType
from firetrail.remoting.messages.admin.admin_bodies import TopicOffset
from firetrail.remoting.messages.bodies import MessageQueue

DESCRIPTION = """\
List the topics of a cluster, show the queues of a topic, create or delete a topic."""
EXAMPLES = """\
  firetrail topic list
  firetrail topic show orders
  firetrail topic create orders --queues 8
  firetrail topic create payments --type FIFO
  firetrail topic delete orders"""

TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "topic", "list, show, create and delete topics", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = running_cluster.add_action(
        actions, "list", "list topics, and the types of those that have one"
    )
    listing.add_argument(
        "--all",
        action="store_true",
        help="list the topics that brokers use themselves, too, after the others",
    )
    running_cluster.add_action(
        actions, "show", "show the queues of a topic and their offsets", "topic"
    )
    create = running_cluster.add_action(
        actions, "create", "create or change a topic on every master", "topic"
    )
    create.add_argument(
        "--queues",
        metavar="N",
        type=positive,
        default=8,
        help="queues on each broker (default: %(default)s)",
    )
    create.add_argument(
        "--type",
        type=str.upper,
        choices=TYPES,
        help="the messages that the topic is for; gRPC clients can send only these "
        "(default: no change; a new topic is for NORMAL messages)",
    )
    create.add_argument(
        "--cluster", metavar="NAME", help="only on brokers of this cluster (default: all)"
    )
    running_cluster.add_action(
        actions, "delete", "delete a topic on all brokers and name servers", "topic"
    )
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the action."""
    running_cluster.run(args, _run(args))
    return ExitCode.OK


async def _run(args: argparse.Namespace) -> None:
    async with Admin(args.namesrv) as admin:
        if args.action == "list":
            await _list(args, admin)
        elif args.action == "show":
            types = (await admin.topic_types(args.topic)).get(args.topic, {})
            _show(args, (await admin.topic_stats(args.topic)).offset_table, types)
        elif args.action == "create":
            kind = MessageType(args.type) if args.type else None
            await admin.create_topic(
                args.topic, args.queues, cluster=args.cluster, message_type=kind
            )
            queues = await admin.queues(args.topic)
            _done(args, f"{args.topic}: {counted(len(queues), 'queue')}", queues=len(queues))
        else:
            await admin.route(args.topic)
            await admin.delete_topic(args.topic)
            _done(args, f"{args.topic}: deleted", deleted=True)


async def _list(args: argparse.Namespace, admin: Admin) -> None:
    """Print the topics. The name server lists them; brokers, which may be down, know the rest."""
    names = await admin.topics()
    types: dict[str, dict[str, str]] = {}
    system: set[str] = set()
    try:
        types, system = await admin.topic_types(), await admin.system_topics()
    except OSError as error:
        say(f"types are not shown, nor which topics are those of the system: {error}")
    kinds = {name: "/".join(sorted(set(types.get(name, {}).values()))) for name in names}
    if args.json:
        found = [
            {"topic": name, "type": kind or None, "system": name in system}
            for name, kind in kinds.items()
        ]
        print(json.dumps(found))
        return
    names.sort(key=lambda name: name in system)
    shown = [name for name in names if args.all or name not in system]
    rows = [(name, kinds[name], "system" if name in system else "") for name in shown]
    print("\n".join(table(("", "", ""), rows)[1:]))  # no heads: scripts read a name per line
    if len(shown) < len(names):
        say(f"{counted(len(names) - len(shown), 'system topic')} not listed; --all lists them")


def _show(
    args: argparse.Namespace, offsets: dict[MessageQueue, TopicOffset], types: dict[str, str]
) -> None:
    rows = [
        (
            *(queue.broker_name, queue.queue_id, at.min_offset, at.max_offset),
            *(at.last_update_timestamp, types.get(queue.broker_name)),
        )
        for queue, at in sorted(offsets.items())
    ]
    if args.json:
        names = ("broker", "queue_id", "min_offset", "max_offset", "last_store_time", "type")
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True))))
        return
    heads = ("BROKER", "QUEUE>", "MIN>", "MAX>", "LAST STORED", "TYPE")
    print("\n".join(table(heads, [(*row[:4], human_time(row[4]), row[5] or "") for row in rows])))


def _done(args: argparse.Namespace, text: str, **found: Any) -> None:
    print(json.dumps({"topic": args.topic, **found}) if args.json else text)
