"""``firetrail send``: send messages to a topic."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta

from firetrail.cli import running_cluster
from firetrail.cli.common import KeyValues, moment, not_negative
from firetrail.cli.output import counted, human_time, say
from firetrail.cli.subcommand import ExitCode, Subparsers
from firetrail.client import Message, Producer, SendResult, SendStatus
from firetrail.client.producers.delivery_time import delivery_ms
from firetrail.system import SYSTEM

DESCRIPTION = """\
Send one message to a topic, or each line of standard input as a message.

For each message, print the status, the broker, the queue, the queue offset and the message id. A
delayed message waits outside its queue: print its time or delay level instead of queue and offset,
and the handle that recalls a message with a delivery time.

Exit codes:
  0  all messages are stored and confirmed
  2  a message was not sent, and neither were those after it
  8  all are stored, but some are not confirmed as the broker's settings require:
     FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE"""
EXAMPLES = """\
  firetrail send orders '{"id": 7}' --tags new --key o-7
  firetrail send reminders 'call back' --delay 90m
  seq 1000 | firetrail send numbers"""
_LINES_AHEAD = 1000
"""Maximum number of lines that are read ahead of sending; then the reader waits."""
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(rf"([0-9]{{1,9}})({'|'.join(_UNITS)})")


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the parser."""
    parser = running_cluster.add_parser(
        subparsers, "send", "send messages to a topic", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument(
        "body",
        metavar="BODY",
        nargs="?",
        help="body of the message (default: each line of standard input)",
    )
    parser.add_argument("--tags", metavar="TAG", help="tag, by which consumers can filter")
    parser.add_argument(
        "--key",
        metavar="KEY",
        action="append",
        default=[],
        help="key, by which the message can be queried; may be repeated",
    )
    parser.add_argument(
        "--property",
        action=KeyValues,
        type=name_and_value,
        default={},
        metavar="NAME=VALUE",
        help="user property; may be repeated",
    )
    parser.add_argument(
        "--order-key", metavar="TEXT", help="send messages with equal keys to the same queue"
    )
    parser.add_argument(
        "--delay-level",
        type=not_negative,
        default=0,
        metavar="LEVEL",
        help="deliver after the delay of this level of the broker's messageDelayLevel, where 1 is "
        "the first, usually 1 s (default: no delay)",
    )
    later = parser.add_mutually_exclusive_group()
    later.add_argument(
        "--deliver-at",
        type=moment,
        metavar="TIME",
        help="deliver at a local time such as 2026-11-15T09:30:00, or at ms since 1970",
    )
    later.add_argument(
        "--delay", type=delay, metavar="DURATION", help="deliver after a time such as 90s, 10m, 2h"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per message")
    return parser


def delay(text: str) -> timedelta:
    """Parse a duration: a number with a unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        units = ", ".join(_UNITS)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number with a unit ({units})")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def name_and_value(text: str) -> str:
    """Return an argument ``NAME=VALUE`` whose value is not empty."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return text


def run(args: argparse.Namespace) -> ExitCode:
    """Send the messages, and print where each one is stored."""
    unconfirmed = running_cluster.run(args, _send(args))
    if not unconfirmed:
        return ExitCode.OK
    say(
        f"{counted(unconfirmed, 'message')} stored, but not confirmed as the broker's settings "
        "require (see the status): a crash or a failover may still remove what is not confirmed; "
        "sending again stores a second copy if it does not"
    )
    return ExitCode.UNCONFIRMED


async def _send(args: argparse.Namespace) -> int:
    """Send the messages; return how many were not confirmed."""
    unconfirmed = 0
    async with Producer(args.namesrv, "firetrail-send") as producer:
        await producer.queues(args.topic)  # which does not wait for brokers, unlike a send
        async for body in _bodies(args):
            message = Message(
                args.topic,
                body,
                tags=args.tags,
                keys=args.key,
                properties=args.property,
                delay_level=args.delay_level,
            )
            later = args.delay if args.deliver_at is None else args.deliver_at
            deliver_at = None if later is None else delivery_ms(later)
            sent = await producer.send(message, order_key=args.order_key, deliver_at=deliver_at)
            _print_sent(args, sent, deliver_at)
            unconfirmed += sent.status is not SendStatus.OK
    return unconfirmed


async def _bodies(args: argparse.Namespace) -> AsyncIterator[bytes]:
    if args.body is not None:
        yield args.body.encode()
        return
    if sys.stdin.isatty():
        say("each line that you type is sent as a message; Ctrl-D ends the input")
    async for line in _lines():
        yield line.rstrip(b"\r\n")


async def _lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input, read by a thread so that the event loop is not blocked.

    It is a daemon thread: Ctrl-C ends the process without waiting for the next line.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_LINES_AHEAD)

    def read() -> None:
        # Not sys.stdin: the interpreter closes it at exit, which would wait for this thread.
        with suppress(RuntimeError), open(sys.stdin.fileno(), "rb", closefd=False) as source:
            for line in source:
                room.acquire()
                loop.call_soon_threadsafe(lines.put_nowait, line)  # RuntimeError: the loop ended
            loop.call_soon_threadsafe(lines.put_nowait, b"")

    threading.Thread(target=read, name="firetrail-lines", daemon=True).start()
    while line := await lines.get():
        room.release()
        yield line


def _print_sent(args: argparse.Namespace, sent: SendResult, deliver_at: int | None) -> None:
    """Print where a message is stored; for one that waits, until when.

    The broker's answer has the position of a waiting message among those that wait, which is not a
    position in the topic.
    """
    queue, handle = sent.queue, sent.recall_handle
    found: dict[str, object] = {"status": sent.status, "broker": queue.broker_name}
    after = ""
    if args.delay_level:
        place = f"waits for delay level {args.delay_level}"
        found |= {"delay_level": args.delay_level, "message_id": sent.message_id}
    elif deliver_at is not None and (handle is not None or deliver_at > SYSTEM.clock.now_ms()):
        place = f"waits until {human_time(deliver_at)}"
        after = f"  recall handle {handle}" if handle is not None else ""
        found |= {"deliver_at": deliver_at, "message_id": sent.message_id, "recall_handle": handle}
    else:
        place = f"queue {queue.queue_id} offset {sent.queue_offset}"
        found |= {"queue_id": queue.queue_id, "queue_offset": sent.queue_offset}
        found |= {"message_id": sent.message_id, "offset_message_id": sent.offset_message_id}
    text = f"{sent.status}  {queue.broker_name} {place}  {sent.message_id}{after}"
    print(json.dumps(found) if args.json else text, flush=True)
