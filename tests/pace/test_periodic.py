"""Repeated steps survive failures, which are logged at growing intervals."""

import asyncio
import logging
import re
from pathlib import Path

import pytest
from tests.client.clusters import until

from firetrail.errors import ReplicationError
from firetrail.pace import periodic as module
from firetrail.pace import reminders
from firetrail.pace.periodic import GuardedStep, every, repeat, woken


async def test_the_same_error_is_logged_once_until_the_step_succeeds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "AFTER_ERROR_S", 0.0)
    calls = 0

    def step() -> float:
        nonlocal calls
        calls += 1
        if calls != 10:
            raise ReplicationError("another broker is the master")
        return 0.0

    log = logging.getLogger("tests.repeat")
    task = asyncio.create_task(repeat(step, "not now", log))
    await until(lambda: calls > 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.messages == ["not now: another broker is the master"] * 2


async def test_a_failing_step_keeps_no_other_from_its_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds = 0

    def fail() -> None:
        raise RuntimeError("can't start new thread")

    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise ReplicationError("no master")

    def count() -> None:
        nonlocal rounds
        rounds += 1

    log = logging.getLogger("tests.every")
    steps = [GuardedStep(fail, "a", log), GuardedStep(fail_later, "b", log)]
    task = asyncio.create_task(every(lambda: 0.0, *steps, GuardedStep(count, "c", log)))
    await until(lambda: rounds > 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.messages == ["a: can't start new thread", "b: no master"]
    assert [record.exc_info is not None for record in caplog.records] == [True, False]
    assert all(step.failures > 5 for step in steps)


async def test_a_lasting_failure_is_counted_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reminders, "FIRST_S", 0.0)

    def fail() -> None:
        raise OSError("disk is full")

    quiet = GuardedStep(
        fail, "not saved", logging.getLogger("tests.step"), level=logging.WARNING, expected=OSError
    )
    for _ in range(3):
        assert await quiet.run() is None
    assert caplog.messages == [
        "not saved: disk is full",
        "not saved: disk is full (2 failures in a row)",
        "not saved: disk is full (3 failures in a row)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


SOURCES = Path(__file__).parents[2] / "src" / "firetrail"
OTHER_LOOPS = {
    "cli/replication/replica_follow.py": "prints the state; its failure ends the command",
    "replication/replica/follower.py": "its failure ends the attempt to follow, which is retried",
}


def test_every_endless_loop_that_sleeps_first_is_guarded() -> None:
    """A loop that only sleeps and works would end unseen at its first exception."""
    loop = re.compile(r"while True:\n\s+await asyncio\.sleep\(")
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if loop.search(path.read_text(encoding="utf-8"))
    }
    assert found == {*OTHER_LOOPS, "pace/periodic.py"}


async def test_an_event_wakes_once() -> None:
    event = asyncio.Event()
    assert not await woken(event, 0.0)
    event.set()
    assert await woken(event, 60.0)
    assert not event.is_set()
