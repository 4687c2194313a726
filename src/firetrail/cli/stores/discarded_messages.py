"""The messages that a repair discards, as text, and the question whether it may."""

import argparse
import sys

from firetrail.cli.output import counted, human_time
from firetrail.errors import FiretrailError
from firetrail.store.log.lost_part import Loss, QueueLoss

QUEUES_SHOWN = 20
"""Maximum number of queues that are listed one by one; ``--json`` lists all."""


def loss_lines(loss: Loss, verb: str) -> list[str]:
    """Return a summary, and a line for each queue."""
    if loss.is_empty:
        return [f"{verb} no message: {loss.detail}"]
    lines = [
        f"{verb} {_readable(loss.messages, loss.readable)}, from physical offset {loss.begin} to "
        f"{loss.end}: {loss.detail}",
        *map(_queue_line, loss.queues[:QUEUES_SHOWN]),
    ]
    if len(loss.queues) > QUEUES_SHOWN:
        lines.append(f"  and {counted(len(loss.queues) - QUEUES_SHOWN, 'queue')} more, see --json")
    if loss.others:
        lines.append(f"  {counted(loss.others, 'record')} that no consumer sees (transactions)")
    return lines


def _queue_line(queue: QueueLoss) -> str:
    stored = ""
    if queue.first_stored is not None and queue.last_stored is not None:
        times = f"{human_time(queue.first_stored)} to {human_time(queue.last_stored)}"
        stored = f", stored {times}"
    return (
        f"  {queue.topic}/{queue.queue_id}: {_readable(queue.messages, queue.readable)}, offsets "
        f"{queue.first_offset} to {queue.end_offset - 1}{stored}"
    )


def _readable(messages: int, readable: int) -> str:
    """Return a number of messages, and how many can be read if not all can."""
    if readable == messages:
        return counted(messages, "message")
    return f"{counted(messages, 'message')}, {readable or 'none'} of them readable"


def confirm(args: argparse.Namespace, loss: Loss, advice: str = "") -> None:
    """Ask on a terminal whether messages may be discarded; raise FiretrailError if not.

    Args:
        args: The arguments of the command; ``yes`` answers the question.
        loss: The messages.
        advice: The advice before the question. Default: how to keep the messages.
    """
    if loss.is_empty or args.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    for line in loss_lines(loss, "will discard"):
        print(line, file=sys.stderr)
    salvage = f"firetrail salvage {args.store} --into DIR keeps every readable message."
    print(f"{advice or salvage}\nDiscard them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise FiretrailError("nothing was changed")
