"""``firetrail lag``: how far a group is behind."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import NamedTuple

from firetrail.cli import cluster
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.output import table
from firetrail.client import MessageQueue, PullConsumer

DESCRIPTION = """\
Print, for each queue of a topic, up to where a group has consumed and how many messages are left.

With --watch, again every two seconds until you press Ctrl-C."""
EXAMPLES = """\
  firetrail lag billing orders
  firetrail lag billing orders --watch"""
_WATCH_S = 2.0


class Lag(NamedTuple):
    """A group in a queue."""

    queue: MessageQueue
    committed: int | None
    """None if the broker knows nothing about it."""
    first: int
    end: int

    @property
    def left(self) -> int:
        """Messages that are yet to be consumed."""
        return self.end - max(self.committed or 0, self.first)


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = cluster.add_parser(
        subparsers, "lag", "how far a group is behind", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("group", metavar="GROUP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--watch", action="store_true", help="again every two seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object for each queue")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Print once, or until interrupted."""
    cluster.run(args, _run(args))
    return ExitCode.OK


async def _run(args: argparse.Namespace) -> None:
    async with PullConsumer(args.namesrv, args.group) as consumer:
        while True:
            _show(args, [await _lag(consumer, q) for q in await consumer.queues(args.topic)])
            if not args.watch:
                return
            await asyncio.sleep(_WATCH_S)


async def _lag(consumer: PullConsumer, queue: MessageQueue) -> Lag:
    committed = await consumer.committed(queue)
    return Lag(
        queue, committed, await consumer.offsets.lowest(queue), await consumer.offsets.end(queue)
    )


def _show(args: argparse.Namespace, lags: list[Lag]) -> None:
    if args.json:
        for lag in lags:
            found = {
                "broker": lag.queue.broker_name,
                "queue_id": lag.queue.queue_id,
                "committed": lag.committed,
                "end": lag.end,
                "lag": lag.left,
            }
            print(json.dumps(found), flush=True)
        return
    rows = [
        (
            lag.queue.broker_name,
            lag.queue.queue_id,
            "-" if lag.committed is None else lag.committed,
            lag.end,
            lag.left,
        )
        for lag in lags
    ]
    total = ("total", "", "", sum(lag.end for lag in lags), sum(lag.left for lag in lags))
    print("\n".join(table(("BROKER", "QUEUE>", "COMMITTED>", "END>", "LAG>"), [*rows, total])))
