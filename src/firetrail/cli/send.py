"""``firetrail send``: messages to a topic."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

from firetrail.cli import cluster
from firetrail.cli.command import ExitCode, Subparsers
from firetrail.cli.common import not_negative
from firetrail.cli.output import say
from firetrail.client import Message, Producer, SendResult

DESCRIPTION = """\
Send a message to a topic of a cluster, or each line of standard input as one.

Prints where each message is: broker, queue, offset and its id."""
EXAMPLES = """\
  firetrail send orders '{"id": 7}' --tags new --key o-7
  seq 1000 | firetrail send numbers"""
_LINES_AHEAD = 1000
"""Lines that are read before they are sent."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Name, help and arguments."""
    parser = cluster.add_parser(
        subparsers, "send", "send messages to a topic", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("body", metavar="BODY", nargs="?", help="default: lines of standard input")
    parser.add_argument("--tags", help="the message's tag")
    parser.add_argument("--key", action="append", default=[], help="a key; may be given often")
    parser.add_argument(
        "--property",
        action="append",
        type=name_and_value,
        default=[],
        metavar="NAME=VALUE",
        help="a property; may be given often",
    )
    parser.add_argument("--order-key", metavar="TEXT", help="equal ones go to the same queue")
    parser.add_argument(
        "--delay-level",
        type=not_negative,
        default=0,
        metavar="LEVEL",
        help="a number of the broker's messageDelayLevel; 3 is 10 s by default",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each message")
    return parser


def name_and_value(text: str) -> tuple[str, str]:
    """The two parts of an argument ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def run(args: argparse.Namespace) -> ExitCode:
    """Send, and say where the messages are."""
    cluster.run(args, _send(args))
    return ExitCode.OK


async def _send(args: argparse.Namespace) -> None:
    async with Producer(args.namesrv, "firetrail-send") as producer:
        async for body in _bodies(args):
            message = Message(
                args.topic,
                body,
                tags=args.tags,
                keys=args.key,
                properties=dict(args.property),
                delay_level=args.delay_level,
            )
            _tell(args, await producer.send(message, order_key=args.order_key))


async def _bodies(args: argparse.Namespace) -> AsyncIterator[bytes]:
    if args.body is not None:
        yield args.body.encode()
        return
    if sys.stdin.isatty():
        say("each line that you type is a message; Ctrl-D ends")
    async for line in _lines():
        yield line.rstrip(b"\r\n")


async def _lines() -> AsyncIterator[bytes]:
    """The lines of standard input, read by a thread: the loop goes on while none comes.

    A thread that nobody waits for, so that Ctrl-C does not have to wait for the next line.
    """
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_LINES_AHEAD)

    def read() -> None:
        # Not sys.stdin, which the end of the process closes, and would wait for this thread.
        with suppress(RuntimeError), open(sys.stdin.fileno(), "rb", closefd=False) as source:
            for line in source:
                room.acquire()
                loop.call_soon_threadsafe(came.put_nowait, line)  # RuntimeError: the loop has ended
            loop.call_soon_threadsafe(came.put_nowait, b"")

    threading.Thread(target=read, name="firetrail-lines", daemon=True).start()
    while line := await came.get():
        room.release()
        yield line


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
