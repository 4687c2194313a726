"""A step that fails for long is logged at growing intervals."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.client.clusters import until

from firetrail.broker.services import repeat as module
from firetrail.broker.services.repeat import repeat
from firetrail.errors import ReplicationError


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
