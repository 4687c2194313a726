"""The checks of histories accept a history of one log, and catch one fault of each kind."""

import random
from collections.abc import Callable

import pytest
from tests.crash.oracle import Violation
from tests.torture.records.history import (
    CheckerMissing,
    Kind,
    Operation,
    check_history,
    check_linearizable,
    checker,
)

MS = 1_000_000
STALENESS_NS = 50 * MS
QUEUE, OTHER_QUEUE = 0, 1
FENCED = 1
"""The member that was the master in the first half of the history."""
HALF = 60


def recorded(seed: int = 1) -> list[Operation]:
    """Return what three producers and two consumers do to two logs while the master changes."""
    rng = random.Random(seed)
    history: list[Operation] = []
    logs: dict[int, list[int]] = {QUEUE: [], OTHER_QUEUE: []}
    now, number = 10_000 * MS, 0
    read_to = dict.fromkeys([(client, queue) for client in (3, 4) for queue in logs], 0)
    for turn in range(2 * HALF):
        member = FENCED if turn < HALF else 2
        queue = rng.choice(list(logs))
        log = logs[queue]
        # The sends of a turn overlap: they take effect in any order.
        for client in rng.sample(range(3), 3):
            number += 1
            called, returned = now + rng.randrange(MS), now + (2 + rng.randrange(4)) * MS
            answered = rng.random() < 0.8
            happened = answered or rng.random() < 0.5
            offset = len(log) if answered else -1
            log += [number] if happened else []
            history.append(
                Operation(
                    *(client, Kind.SEND, queue, member, called, returned),
                    *(answered, offset, (number,)),
                )
            )
        now += 10 * MS
        for client in (3, 4):
            queue = rng.choice(list(logs))
            log = logs[queue]
            offset = read_to[client, queue]
            found = tuple(log[offset : offset + rng.randrange(1, 32)])
            read_to[client, queue] += len(found)
            kind = Kind.READ if found else Kind.END
            end = len(log) if found else offset
            times = (now + rng.randrange(MS), now + 2 * MS)
            history.append(Operation(client, kind, queue, member, *times, True, offset, found, end))
        now += 10 * MS
    for queue, log in logs.items():
        final = (9, Kind.FINAL, queue, 2, now, now + MS, True, 0, tuple(log), len(log))
        history.append(Operation(*final))
    return history


def _last_ack(history: list[Operation]) -> int:
    return max(at for at, op in enumerate(history) if op.kind is Kind.SEND and op.ok)


def _change_final(history: list[Operation], queue: int, ids: tuple[int, ...]) -> None:
    at = next(n for n, op in enumerate(history) if (op.kind, op.queue) == (Kind.FINAL, queue))
    history[at] = history[at]._replace(ids=ids, end=len(ids))


def lost(history: list[Operation]) -> None:
    """The last acknowledged message, and everything after it, is not in the final log."""
    ack = history[_last_ack(history)]
    history[:] = [
        op for op in history if op.kind is Kind.SEND or op.called < ack.called or op.end < 0
    ] + [op for op in history if op.kind is Kind.FINAL]
    log = next(op.ids for op in history if (op.kind, op.queue) == (Kind.FINAL, ack.queue))
    _change_final(history, ack.queue, log[: ack.offset])


def replaced(history: list[Operation]) -> None:
    """A second master acknowledged another message at the same offset."""
    ack = history[_last_ack(history)]
    history.append(ack._replace(client=7, ids=(100_000,), member=FENCED))


def doubled(history: list[Operation]) -> None:
    """A message was stored twice."""
    final = next(op for op in history if op.kind is Kind.FINAL)
    _change_final(history, final.queue, (*final.ids, final.ids[0]))


def invented(history: list[Operation]) -> None:
    """The log has a message that was not sent."""
    final = next(op for op in history if op.kind is Kind.FINAL)
    _change_final(history, final.queue, (*final.ids, 100_000))


def disappeared(history: list[Operation]) -> None:
    """A consumer read a message that was never acknowledged, and that a failover took back."""
    at = max(n for n, op in enumerate(history) if op.kind is Kind.READ)
    read = history[at]
    end = read.offset + len(read.ids)
    unsure = Operation(2, Kind.SEND, read.queue, FENCED, 0, MS, False, -1, (100_000,))
    seen = Operation(
        *(4, Kind.READ, read.queue, FENCED, read.returned + MS, read.returned + 2 * MS),
        *(True, end, (100_000,), end + 1),
    )
    history[:] = [unsure, *history, seen]
    final = next(op for op in history if (op.kind, op.queue) == (Kind.FINAL, read.queue))
    _change_final(history, read.queue, final.ids[:end])


def stale(history: list[Operation]) -> None:
    """A fenced master, which knows nothing of its successor, said where its queue ends."""
    ends = [op.offset + 1 for op in history if op.member == FENCED and op.queue == QUEUE]
    acks = sorted(op.returned for op in history if op.kind is Kind.SEND and op.ok)
    now = acks[len(acks) * 9 // 10] + 1
    said = (5, Kind.END, QUEUE, FENCED, now, now + 1, True, max(ends), (), max(ends))
    history.append(Operation(*said))


def reordered(history: list[Operation]) -> None:
    """A message that was sent after another one was acknowledged is before it."""
    acks = [
        n for n, op in enumerate(history) if op.kind is Kind.SEND and op.ok and op.queue == QUEUE
    ]
    first, second = acks[0], acks[-1]
    one, two = history[first], history[second]
    history[first] = one._replace(called=two.called, returned=two.returned)
    history[second] = two._replace(called=one.called, returned=one.returned)
    history[:] = [op for op in history if op.kind in (Kind.SEND, Kind.FINAL)]


def set_back(history: list[Operation]) -> None:
    """A consumer that has read a message is told at once that the queue ends before it."""
    read = max(
        (op for op in history if op.kind is Kind.READ and op.queue == QUEUE),
        key=lambda op: op.offset + len(op.ids),
    )
    end = read.offset + len(read.ids) - 1
    times = (read.returned + 1, read.returned + 2)
    back = Operation(read.client, Kind.END, QUEUE, FENCED, *times, True, end + 1, (), end)
    history.append(back)


def set_back_by_election(history: list[Operation]) -> None:
    """The new master sets a consumer back to where its queue ends."""
    read = next(op for op in history if op.kind is Kind.READ)
    first = next(at for at, op in enumerate(history) if op.member != FENCED and op.ok)
    times = (history[first].called - 2, history[first].called - 1)
    back = Operation(read.client, Kind.END, read.queue, 2, *times, True, 99, (), read.offset)
    history.insert(first, back)


FAULTS: dict[Callable[[list[Operation]], None], str] = {
    lost: "I1: an acknowledged message is lost",
    replaced: "I2: two messages at",
    doubled: "I2: message 1 is stored twice",
    invented: "I2: message 100000 was never sent",
    disappeared: "R7: messages disappeared after they were read",
    stale: "R6: an answer of a former master",
    reordered: "I3: the second was called after the first",
    set_back: "R10: a client was set back",
    set_back_by_election: "R10: a client was set back",
}


@pytest.fixture
def go() -> None:
    """Skip the test if porcupine cannot be built."""
    try:
        checker()
    except CheckerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("seed", range(5))
def test_a_history_of_one_log_is_accepted(seed: int) -> None:
    history = recorded(seed)
    assert {op.kind for op in history} == {*Kind}
    assert {op.ok for op in history} == {True, False}
    check_history(history, STALENESS_NS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_direct_checks_name_a_fault(fault: Callable[[list[Operation]], None]) -> None:
    history = recorded()
    fault(history)
    with pytest.raises(Violation, match=FAULTS[fault]):
        check_history(history, STALENESS_NS)


def elected(history: list[Operation]) -> None:
    """The new master says that a queue ends where the old one did, and then acknowledges."""
    first = next(at for at, op in enumerate(history) if op.member != FENCED and op.ok)
    last = next(op for op in reversed(history[:first]) if op.kind is Kind.SEND and op.ok)
    called = history[first].called - 2
    said = Operation(5, Kind.END, last.queue, 2, called, called + 1, True, 0, (), 0)
    history.insert(first, said)


def test_a_master_that_was_just_elected_may_have_to_confirm_its_end_again() -> None:
    history = recorded()
    elected(history)
    check_history(history, STALENESS_NS)


@pytest.mark.usefixtures("go")
def test_porcupine_accepts_that_as_well() -> None:
    history = recorded()
    elected(history)
    check_linearizable(history, STALENESS_NS)


@pytest.mark.usefixtures("go")
def test_porcupine_accepts_a_history_of_one_log() -> None:
    check_linearizable(recorded(), STALENESS_NS)


@pytest.mark.usefixtures("go")
@pytest.mark.parametrize(
    "fault",
    [fault for fault, text in FAULTS.items() if not text.startswith("R10")],
    ids=lambda fault: fault.__name__,
)
def test_porcupine_catches_a_fault(fault: Callable[[list[Operation]], None]) -> None:
    """All but those of sessions: for porcupine, an answer may be older than an earlier one."""
    history = recorded()
    fault(history)
    with pytest.raises(Violation, match=r"not linearizable: (?s:.*)has no place for"):
        check_linearizable(history, STALENESS_NS)
