"""Histories of sends and reads, and the checks that they could be those of one append-only log.

The history is all that these checks know: which operation was called and answered when, by one
monotonic clock, and with what result. Neither which member was the master nor any code of the
product matters. A send without a positive answer may or may not have happened.

:func:`check_history` compares everything with the final log. It names the fault, and takes no time.
:func:`check_linearizable` lets porcupine search for an order of all operations that explains every
answer. It needs Go.
"""

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.crash.oracle import Violation

CHECKER = Path(__file__).parents[1] / "linearizable"
SOURCES = ("go.mod", "go.sum", "main.go")
STALENESS_NS = 1_000_000_000
"""How old the answer may be that a queue ends here: the queues follow the log a little later."""
BUILD_S = 240
CHECK_S = 60
"""Porcupine's time limit per queue. It takes less than a second if the history is linearizable."""


class Kind(StrEnum):
    """The kind of an operation of a client."""

    SEND = "send"
    READ = "read"
    """A pull that found messages."""
    END = "end"
    """A pull that found none."""
    FINAL = "final"
    """A look at the whole queue, when everything else was over."""


class Operation(NamedTuple):
    """Something that a client did, and the answer.

    Attributes:
        client: The number of the client, which does one thing after the other.
        kind: What it did.
        queue: The id of the queue.
        member: The broker that was asked.
        called: When the client began, in nanoseconds.
        returned: When it had the answer.
        ok: Whether a send was acknowledged. If not, ``offset`` is -1.
        offset: The queue offset of the first message.
        ids: The messages that were sent or found.
        end: The end of the queue, as the answer to a read says. If it found nothing, this is the
            offset at which the consumer is to continue. -1 for sends.
    """

    client: int
    kind: Kind
    queue: int
    member: int
    called: int
    returned: int
    ok: bool
    offset: int
    ids: tuple[int, ...]
    end: int = -1


def as_json(history: Iterable[Operation]) -> str:
    return "".join(f"{json.dumps(op._asdict())}\n" for op in history)


# -- direct checks ----------------------------------------------------------------------------


def check_history(history: Sequence[Operation], staleness_ns: int = STALENESS_NS) -> None:
    """Raise a Violation unless all answers fit the final logs and each other."""
    logs = {op.queue: op.ids for op in history if op.kind is Kind.FINAL}
    for queue, found in _by_queue(history).items():
        _check_places([op for op in found if op.kind is Kind.SEND])
        _check_final(found, logs.get(queue, ()))
        _check_places(found)
        _check_order(found)
        _check_sessions(found)
    for found in _by_queue(weakened(history, staleness_ns)).values():
        _check_staleness(found, staleness_ns)


def weakened(history: Sequence[Operation], staleness_ns: int) -> list[Operation]:
    """Return the history without statements about ends that may be older than the limit.

    A member that was just elected has to let the end of its log be confirmed again, and shows it
    only then. So these statements count only while one member acknowledges messages, which is then
    the master.
    """
    acks = sorted(
        (op for op in history if op.kind is Kind.SEND and op.ok), key=lambda op: op.returned
    )
    times = [ack.returned for ack in acks]

    def has_master(op: Operation) -> bool:
        at = bisect_right(times, op.returned)
        if not 0 < at < len(acks):
            return False
        before, after = acks[at - 1], acks[at]
        is_soon = after.returned - before.returned <= staleness_ns
        return is_soon and before.member == after.member

    return [
        op._replace(kind=Kind.READ) if op.kind is Kind.END and not has_master(op) else op
        for op in history
    ]


def _by_queue(history: Iterable[Operation]) -> dict[int, list[Operation]]:
    queues = defaultdict[int, list[Operation]](list)
    for op in history:
        queues[op.queue].append(op)
    return queues


def _check_places(history: Sequence[Operation]) -> None:
    """No offset has two messages, no message has two offsets, and every message was sent."""
    sent = {op.ids[0] for op in history if op.kind is Kind.SEND}
    at: dict[int, tuple[int, Operation]] = {}
    where: dict[int, tuple[int, Operation]] = {}
    for op in history:
        if op.kind is Kind.SEND and not op.ok:
            continue
        for offset, number in enumerate(op.ids, op.offset):
            if number not in sent:
                raise Violation(f"I2: message {number} was never sent: {brief(op)}")
            other, before = at.setdefault(offset, (number, op))
            if other != number:
                raise Violation(f"I2: two messages at {offset}: {brief(before)} and {brief(op)}")
            place, before = where.setdefault(number, (offset, op))
            if place != offset:
                raise Violation(f"I2: message {number} is stored twice: {brief(before, op)}")


def _check_final(history: Sequence[Operation], log: tuple[int, ...]) -> None:
    """Everything that was acknowledged or read is in the final log."""
    for op in history:
        there = log[op.offset : op.offset + len(op.ids)]
        if op.kind is Kind.SEND and op.ok and there != op.ids:
            raise Violation(f"I1: an acknowledged message is lost: {brief(op)}")
        if op.kind is Kind.READ and there != op.ids:
            raise Violation(f"R7: messages disappeared after they were read: {brief(op)}")
        if op.kind is Kind.FINAL and op.ids != log:
            raise Violation(f"R1: members have different logs: {brief(op)}")
        if op.end > len(log):
            raise Violation(f"R7: the queue had more than the {len(log)} it has: {brief(op)}")


def _check_order(history: Sequence[Operation]) -> None:
    """A message that was sent after another one was acknowledged or read has a larger offset."""
    seen = sorted((op for op in history if op.ok and op.ids), key=lambda op: op.returned)
    highest: Operation | None = None
    at = 0
    for op in sorted((op for op in seen if op.kind is Kind.SEND), key=lambda op: op.called):
        while seen[at].returned < op.called:
            if highest is None or _last(seen[at]) > _last(highest):
                highest = seen[at]
            at += 1
        if highest is not None and op.offset <= _last(highest):
            raise Violation(f"I3: the second was called after the first: {brief(highest, op)}")


def _check_sessions(history: Sequence[Operation]) -> None:
    """No client finds that a queue ends before a message that it has read, or had acknowledged."""
    seen: dict[int, Operation] = {}
    for op in sorted((op for op in history if op.ok), key=lambda op: op.called):
        before = seen.get(op.client)
        if op.kind is Kind.END and before is not None and op.end <= _last(before):
            raise Violation(f"R10: a client was set back: {brief(before, op)}")
        if op.ids and op.kind is Kind.READ and (before is None or _last(op) > _last(before)):
            seen[op.client] = op


def _check_staleness(history: Sequence[Operation], staleness_ns: int) -> None:
    """The end of a queue is not older than the limit."""
    told = sorted((op for op in history if op.ok and op.ids), key=lambda op: op.returned)
    highest: Operation | None = None
    at = 0
    for op in sorted((op for op in history if op.kind is Kind.END), key=lambda op: op.called):
        while at < len(told) and told[at].returned < op.called - staleness_ns:
            if highest is None or _last(told[at]) > _last(highest):
                highest = told[at]
            at += 1
        if highest is not None and op.end <= _last(highest):
            raise Violation(f"R6: an answer of a former master: {brief(highest, op)}")


def _last(op: Operation) -> int:
    return op.offset + len(op.ids) - 1


def brief(*operations: Operation) -> str:
    """Return operations as text, without the ids in the middle of long reads."""
    return ", then ".join(
        str(op if len(op.ids) < 9 else op._replace(ids=(*op.ids[:4], -1, *op.ids[-4:])))
        for op in operations
    )


# -- porcupine --------------------------------------------------------------------------------


class CheckerMissing(Exception):
    """Porcupine cannot be built; the text is the reason."""


@functools.cache
def checker() -> Path:
    """Return the path of the checker; it is built if its source has changed.

    Raises:
        CheckerMissing: There is no Go, or porcupine cannot be fetched.
    """
    if shutil.which("go") is None:
        raise CheckerMissing("there is no Go on this machine")
    text = b"".join((CHECKER / name).read_bytes() for name in SOURCES)
    version = hashlib.sha256(text).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"firetrail-linearizable-{os.getuid()}-{version}"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait for the one that builds it
        if not path.exists():
            _build(path)
    return path


def _build(path: Path) -> None:
    built = path.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(built), "."],
        cwd=CHECKER,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    if done.returncode:
        raise CheckerMissing(f"porcupine cannot be built: {done.stderr[-500:]}")
    built.rename(path)


def check_linearizable(history: Sequence[Operation], staleness_ns: int = STALENESS_NS) -> None:
    """Raise a Violation unless porcupine explains the history.

    Raises:
        CheckerMissing: Porcupine cannot be built.
        Violation: The history is not linearizable, or it is not known after the time limit.
    """
    queues = len({op.queue for op in history})
    command = [str(checker()), f"-staleness={staleness_ns}ns", f"-limit={CHECK_S}s"]
    done = subprocess.run(
        command,
        input=as_json(weakened(history, staleness_ns)),
        capture_output=True,
        text=True,
        timeout=2 * CHECK_S * queues + CHECK_S,
    )
    if done.returncode == 1:
        raise Violation(f"not linearizable: {done.stdout[-3000:]}")
    if done.returncode or done.stdout.count(": Ok,") != queues:
        raise AssertionError(f"the checker failed: {done.stdout[-500:]}{done.stderr[-2000:]}")
