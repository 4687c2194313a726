"""``firetrail lag``: how many messages a group has yet to consume."""

import argparse
import asyncio
import json
import sys
from typing import NamedTuple

from firetrail.cli import running_cluster
from firetrail.cli.output import counted, human_time, table
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.client import Admin, MessageQueue, PullConsumer
from firetrail.system import SYSTEM

DESCRIPTION = """\
Print the committed offset and the lag of a group for each queue of a topic, or of all topics that
it has consumed.

Where the group is beyond the end of a queue, the lag is 0, and a line (the field "ahead" of --json)
says how far. Messages that were deleted before the group consumed them are not part of the lag; a
line (the field "expired") says how many."""
EXAMPLES = """\
  firetrail lag billing
  firetrail lag billing orders
  firetrail lag billing orders --watch"""
_WATCH_INTERVAL_S = 2.0
CLEAR = "\033[2J\033[H"
"""Clears the terminal and moves the cursor to the top, so that ``--watch`` stays in place."""


class Lag(NamedTuple):
    """The offsets of a group in a queue."""

    queue: MessageQueue
    committed: int | None
    """None if the broker has no offset of the group."""
    first: int
    end: int

    @property
    def left(self) -> int:
        """Count the messages that are yet to be consumed."""
        return max(self.end - max(self.committed or 0, self.first), 0)

    @property
    def expired(self) -> int:
        """Count the messages that were deleted before the group consumed them; it skips them."""
        return max(self.first - self.committed, 0) if self.committed is not None else 0

    @property
    def ahead(self) -> int:
        """The number of new messages that a group beyond the end of the queue would skip."""
        return max((self.committed or 0) - self.end, 0)


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "lag", "show the lag of a consumer group", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("group", metavar="GROUP", help="name of the consumer group")
    parser.add_argument(
        "topic",
        metavar="TOPIC",
        nargs="?",
        help="name of the topic (default: all topics that the group has consumed)",
    )
    parser.add_argument("--watch", action="store_true", help="repeat every 2 seconds until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object per queue")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print the lag once, or repeatedly until interrupted."""
    running_cluster.run(args, _run(args))
    return ExitCode.OK


async def _run(args: argparse.Namespace) -> None:
    outages = running_cluster.Outages()
    async with PullConsumer(args.namesrv, args.group) as consumer, Admin(args.namesrv) as admin:
        await _show(args, consumer, admin)
        while args.watch:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            try:
                await _show(args, consumer, admin)
            except BrokenPipeError:
                raise
            except OSError as error:
                await outages.wait(args.namesrv, error)
            else:
                outages.over(args.namesrv)


async def _show(args: argparse.Namespace, consumer: PullConsumer, admin: Admin) -> None:
    topics = [args.topic] if args.topic else await _topics(args.group, admin)
    queues = [queue for topic in topics for queue in await consumer.queues(topic)]
    lags = [await _lag(consumer, queue) for queue in queues]
    if not any(lag.committed for lag in lags):
        await running_cluster.check_group(admin, args.namesrv, args.group)
    _print(args, lags)


async def _topics(group: str, admin: Admin) -> list[str]:
    """Return the topics in which a group has offsets."""
    return sorted({queue.topic for queue in (await admin.consume_stats(group)).offset_table})


async def _lag(consumer: PullConsumer, queue: MessageQueue) -> Lag:
    committed = await consumer.committed(queue)
    return Lag(
        queue, committed, await consumer.offsets.lowest(queue), await consumer.offsets.end(queue)
    )


def _print(args: argparse.Namespace, lags: list[Lag]) -> None:
    if args.json:
        for lag in lags:
            found = {
                "topic": lag.queue.topic,
                "broker": lag.queue.broker_name,
                "queue_id": lag.queue.queue_id,
                "committed": lag.committed,
                "end": lag.end,
                "lag": lag.left,
                "ahead": lag.ahead,
                "expired": lag.expired,
            }
            print(json.dumps(found), flush=True)
        return
    if args.watch:
        print(CLEAR if sys.stdout.isatty() else "", human_time(SYSTEM.clock.now_ms()), sep="")
    if not lags:
        print(f"{args.group}: the group has not consumed anything yet", flush=True)
        return
    rows = [
        (
            lag.queue.topic,
            lag.queue.broker_name,
            lag.queue.queue_id,
            "-" if lag.committed is None else lag.committed,
            lag.end,
            lag.left,
        )
        for lag in lags
    ]
    total = ("total", "", "", "", sum(lag.end for lag in lags), sum(lag.left for lag in lags))
    heads = ("TOPIC", "BROKER", "QUEUE>", "COMMITTED>", "END>", "LAG>")
    warnings = [
        f"{lag.queue.topic} queue {lag.queue.queue_id} of {lag.queue.broker_name}: {args.group} is "
        f"{lag.ahead} beyond the end; the queue became shorter, or the offset was set by hand. "
        f"'firetrail reset {args.group} {lag.queue.topic} last' sets it back"
        for lag in lags
        if lag.ahead
    ]
    warnings += [
        f"{lag.queue.topic} queue {lag.queue.queue_id} of {lag.queue.broker_name}: {args.group} "
        f"skips {counted(lag.expired, 'message')} (offsets {lag.committed} to {lag.first - 1}), "
        "which were deleted before the group consumed them"
        for lag in lags
        if lag.expired
    ]
    print("\n".join([*table(heads, [*rows, total]), *warnings]), flush=True)
