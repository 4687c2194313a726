"""``firetrail tail``: print the last messages of a topic, and new ones as they arrive."""

import argparse
import asyncio
import json
from binascii import b2a_base64
from collections.abc import Iterable

from firetrail.cli import running_cluster
from firetrail.cli.common import not_negative
from firetrail.cli.output import human_time
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.client import MessageQueue, PullConsumer, Received, by_sql, by_tags
from firetrail.errors import FormatError
from firetrail.remoting.messages.bodies import SubscriptionData

DESCRIPTION = """\
Print the last messages of a topic and, with --follow, new ones until Ctrl-C. If a broker restarts,
the command waits for it.

A body that cannot be decompressed is printed as it is stored, with the reason (body_error in JSON).

Nothing is consumed: no group's offsets change."""
EXAMPLES = """\
  firetrail tail orders
  firetrail tail orders --lines 100 --tags 'new || paid' --follow
  firetrail tail orders --sql 'price > 10' --json"""
_LONG_POLL_S = 15.0
_PREVIEW = 120


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "tail", "print messages of a topic as they arrive", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument(
        "--lines",
        type=not_negative,
        default=10,
        metavar="N",
        help="print the last N messages of each queue (default: %(default)s). There is no short "
        "form as in Unix tail: -n is --namesrv",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print new messages until Ctrl-C"
    )
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument(
        "--tags",
        metavar="TAGS",
        default="*",
        help="only messages with one of these tags, such as 'a || b' (default: %(default)s, all)",
    )
    wanted.add_argument(
        "--sql", metavar="CONDITION", help="only messages whose properties meet the condition"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per message")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print messages up to the end, or until interrupted."""
    running_cluster.run(args, _tail(args))
    return ExitCode.OK


async def _tail(args: argparse.Namespace) -> None:
    wanted = by_sql(args.topic, args.sql) if args.sql else by_tags(args.topic, args.tags)
    async with PullConsumer(args.namesrv, "firetrail-tail") as consumer:
        queues = await consumer.queues(args.topic)
        ends = [await consumer.offsets.end(queue) for queue in queues]
        last: list[Received] = []
        for queue, end in zip(queues, ends, strict=True):
            start = max(end - args.lines, await consumer.offsets.lowest(queue))
            last += [message async for message in consumer.read(queue, start, end, wanted)]
        for message in sorted(last, key=lambda found: found.record.store_time):
            _show(args, message)
        if args.follow:
            await _follow_all(args, consumer, wanted, zip(queues, ends, strict=True))


async def _follow_all(
    args: argparse.Namespace,
    consumer: PullConsumer,
    wanted: SubscriptionData,
    starts: Iterable[tuple[MessageQueue, int]],
) -> None:
    outages = running_cluster.Outages()
    try:
        async with asyncio.TaskGroup() as group:
            for queue, offset in starts:
                group.create_task(_follow(args, consumer, wanted, outages, queue, offset))
    except ExceptionGroup as errors:  # the first is enough: standard output closed, or pull refused
        raise errors.exceptions[0] from None


async def _follow(
    args: argparse.Namespace,
    consumer: PullConsumer,
    wanted: SubscriptionData,
    outages: running_cluster.Outages,
    queue: MessageQueue,
    offset: int,
) -> None:
    while True:
        try:
            pulled = await consumer.pull(queue, offset, wanted, wait_s=_LONG_POLL_S)
        except OSError as error:
            await outages.wait(queue.broker_name, error)
            continue
        outages.over(queue.broker_name)
        offset = pulled.next_offset
        for message in pulled.messages:
            _show(args, message)


def _show(args: argparse.Namespace, message: Received) -> None:
    record = message.record
    body, problem = _body_of(message)
    if args.json:
        found: dict[str, object] = {
            "topic": message.topic,
            "broker": message.queue.broker_name,
            "queue_id": message.queue.queue_id,
            "queue_offset": message.queue_offset,
            "message_id": message.message_id,
            "store_time": record.store_time,
            "properties": message.properties,
            "body": b2a_base64(body, newline=False).decode(),
        }
        if problem is not None:
            found["body_error"] = problem
        print(json.dumps(found), flush=True)
        return
    place = f"{message.queue.broker_name}/{message.queue.queue_id}/{message.queue_offset}"
    text = body[:_PREVIEW].decode("utf-8", "backslashreplace")
    more = "…" if len(body) > _PREVIEW else ""
    note = "" if problem is None else f"  (compressed, cannot be decompressed: {problem})"
    shown = f"{human_time(record.store_time)}  {place}  {message.tags or '-'}  {text!r}{more}{note}"
    print(shown, flush=True)


def _body_of(message: Received) -> tuple[bytes, str | None]:
    """Return the body, or the compressed body and why it cannot be decompressed."""
    try:
        return message.body, None
    except FormatError as error:
        return message.record.body, error.detail
