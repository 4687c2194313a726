"""Tasks of a session: their failures are logged, and they are cancelled together."""

import asyncio

import pytest
from tests.client.clusters import until

from firetrail.client.cluster import background_tasks
from firetrail.client.cluster.background_tasks import BackgroundTasks


async def fail() -> None:
    raise ValueError("no")


async def test_a_failure_is_logged_unless_the_caller_handles_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = BackgroundTasks("Producer")
    watched, other = tasks.spawn(fail(), watched=True), tasks.spawn(fail())
    await asyncio.wait([watched, other])
    await until(lambda: caplog.messages == [f"Producer: {other.get_name()} failed"])
    with pytest.raises(ValueError, match="no"):
        await watched
    await tasks.cancel()


async def test_an_action_is_repeated_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    async def act() -> None:
        calls.append(1)
        await fail()

    tasks = BackgroundTasks("Producer")
    repeating = tasks.spawn(tasks.repeat(0.001, act))
    await until(lambda: len(calls) > 2)
    await tasks.cancel()
    assert repeating.cancelled()
    assert caplog.messages[0].endswith("act failed; retrying in 0.001 s: no")


async def test_a_task_that_ignores_its_cancellation_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "END_S", 0.01)
    go_on = asyncio.Event()

    async def ignore() -> None:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    tasks = BackgroundTasks("Producer")
    task = tasks.spawn(ignore())
    await asyncio.sleep(0)
    await tasks.cancel()
    assert caplog.messages[0].startswith("Producer: a task still runs 0.01 s after its cancel")
    go_on.set()
    await task


async def test_a_task_may_cancel_all_others() -> None:
    tasks = BackgroundTasks("Producer")
    waiting = tasks.spawn(asyncio.Event().wait())
    await tasks.spawn(tasks.cancel())
    assert waiting.cancelled()
