"""``firetrail send``: messages to a topic."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from firetrail.cli import cluster
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.client import Message, Producer, SendResult

DESCRIPTION = """\
Send a message to a topic of a cluster, or each line of standard input as one.

Prints where each message is: broker, queue, offset and its id."""
EXAMPLES = """\
  firetrail send orders '{"id": 7}' --tags new --key o-7
  seq 1000 | firetrail send numbers"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = cluster.add_parser(
        subparsers, "send", "send messages to a topic", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("body", metavar="BODY", nargs="?", help="default: lines of standard input")
    parser.add_argument("--tags", help="the message's tag")
    parser.add_argument("--key", action="append", default=[], help="a key; may be given often")
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--order-key", metavar="TEXT", help="equal ones go to the same queue")
    parser.add_argument("--delay-level", type=int, default=0, metavar="LEVEL")
    parser.add_argument("--json", action="store_true", help="one JSON object for each message")
    return parser


def run(args: argparse.Namespace) -> ExitCode:
    """Send, and say where the messages are."""
    cluster.run(args, _send(args))
    return ExitCode.OK


async def _send(args: argparse.Namespace) -> None:
    properties = dict(text.partition("=")[::2] for text in args.property)
    async with Producer(args.namesrv, "firetrail-send") as producer:
        for body in _bodies(args):
            message = Message(
                args.topic,
                body,
                tags=args.tags,
                keys=args.key,
                properties=properties,
                delay_level=args.delay_level,
            )
            _tell(args, await producer.send(message, order_key=args.order_key))


def _bodies(args: argparse.Namespace) -> Iterator[bytes]:
    if args.body is not None:
        yield args.body.encode()
    else:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")


def _tell(args: argparse.Namespace, sent: SendResult) -> None:
    queue = sent.queue
    if args.json:
        found = {
            "status": sent.status,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "queue_offset": sent.queue_offset,
            "message_id": sent.message_id,
            "offset_message_id": sent.offset_message_id,
        }
        print(json.dumps(found), flush=True)
    else:
        place = f"{queue.broker_name} queue {queue.queue_id} offset {sent.queue_offset}"
        print(f"{sent.status}  {place}  {sent.message_id}", flush=True)
