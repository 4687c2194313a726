"""``firetrail topic``: the topics of a cluster."""

from __future__ import annotations

import argparse
import json
from typing import Any

from firetrail.cli import cluster
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import positive
from firetrail.cli.output import counted, human_time, table
from firetrail.client import Admin
from firetrail.remoting.admin_bodies import TopicOffset
from firetrail.remoting.bodies import MessageQueue

DESCRIPTION = """\
List the topics of a cluster, show the queues of a topic, create or delete a topic."""
EXAMPLES = """\
  firetrail topic list
  firetrail topic show orders
  firetrail topic create orders --queues 8
  firetrail topic delete orders"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = cluster.add_parser(
        subparsers, "topic", "list, show, create and delete topics", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    cluster.add_action(actions, "list", "list the names of all topics")
    cluster.add_action(actions, "show", "show the queues of a topic and their offsets", "topic")
    create = cluster.add_action(
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
        "--cluster", metavar="NAME", help="only on brokers of this cluster (default: all)"
    )
    cluster.add_action(actions, "delete", "delete a topic on all brokers and name servers", "topic")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Run the action."""
    cluster.run(args, _run(args))
    return ExitCode.OK


async def _run(args: argparse.Namespace) -> None:
    async with Admin(args.namesrv) as admin:
        if args.action == "list":
            names = await admin.topics()
            print(json.dumps(names) if args.json else "\n".join(names))
        elif args.action == "show":
            await admin.route(args.topic)  # raises if the topic does not exist
            _show(args, (await admin.topic_stats(args.topic)).offset_table)
        elif args.action == "create":
            await admin.create_topic(args.topic, args.queues, cluster=args.cluster)
            queues = await admin.queues(args.topic)
            _done(args, f"{args.topic}: {counted(len(queues), 'queue')}", queues=len(queues))
        else:
            await admin.route(args.topic)
            await admin.delete_topic(args.topic)
            _done(args, f"{args.topic}: deleted", deleted=True)


def _show(args: argparse.Namespace, offsets: dict[MessageQueue, TopicOffset]) -> None:
    rows = [
        (queue.broker_name, queue.queue_id, at.min_offset, at.max_offset, at.last_update_timestamp)
        for queue, at in sorted(offsets.items())
    ]
    if args.json:
        names = ("broker", "queue_id", "min_offset", "max_offset", "last_store_time")
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True))))
        return
    heads = ("BROKER", "QUEUE>", "MIN>", "MAX>", "LAST STORED")
    print("\n".join(table(heads, [(*row[:4], human_time(row[4])) for row in rows])))


def _done(args: argparse.Namespace, text: str, **found: Any) -> None:
    print(json.dumps({"topic": args.topic, **found}) if args.json else text)
