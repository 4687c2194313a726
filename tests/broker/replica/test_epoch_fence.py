"""The log of a master that cannot ask whether there is a newer one."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from firetrail.broker.replica.epoch_fence import EpochFence


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


async def test_a_name_server_that_is_down_is_logged_once_and_then_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "firetrail.broker.replica.epoch_fence")
    clock = Clock()
    env: Any = SimpleNamespace(system=SimpleNamespace(clock=clock), client_access=None)
    parts: Any = SimpleNamespace(state=SimpleNamespace(store=None), registration=None)
    epoch_fence = EpochFence(env, parts)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nothing listens on the port, and no other process takes it
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for second in range(100):
            clock.now = second
            await epoch_fence._ask_other_master(address)
    await epoch_fence.stop()
    messages = [record.getMessage() for record in caplog.records]
    reason = f"{address}: cannot be reached: Connection refused"
    assert messages == [f"cannot learn whether there is a newer master: {reason}"] * 2
