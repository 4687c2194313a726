"""Event loops whose events come late still deliver all of them, and timers on time or later."""

import asyncio
import random
import socket
import time
from collections.abc import Callable

import pytest
from tests.harness.late_events import LateSelector

MESSAGES = 50


@pytest.fixture
def new_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes event loops with late events."""
    monkeypatch.setattr(LateSelector, "source", random.Random(1))
    return lambda: asyncio.SelectorEventLoop(LateSelector())


def test_everything_arrives_in_order(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def exchange() -> list[bytes]:
        ours, theirs = socket.socketpair()
        reader, closed = await asyncio.open_connection(sock=ours)
        _, writer = await asyncio.open_connection(sock=theirs)
        received = []
        for number in range(MESSAGES):
            writer.write(b"%d\n" % number)
            received.append(await reader.readline())
        writer.close()
        closed.close()
        return received

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(exchange()) == [b"%d\n" % number for number in range(MESSAGES)]


def test_a_timer_does_not_expire_early(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def waits() -> list[float]:
        took = []
        for _ in range(MESSAGES):
            begun = time.monotonic()
            await asyncio.sleep(0.002)
            took.append(time.monotonic() - begun)
        return took

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert min(runner.run(waits())) >= 0.002
