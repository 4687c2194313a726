"""The requests that many concurrent calls of one client send to a cluster."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.client.clusters import read_all, running_cluster, until

from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Admin, ClientClosedError, Message, Outcome, Producer, Received
from firetrail.client.cluster.session import Session
from firetrail.client.cluster.single_flight import SingleFlight
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Counts the requests of all sessions by code."""
    counted: Counter[int] = Counter()
    request = Session.request

    async def counting(
        self: Session, address: str, code: int, *more: Any, **named: Any
    ) -> RemotingCommand:
        counted[code] += 1
        return await request(self, address, code, *more, **named)

    monkeypatch.setattr(Session, "request", counting)
    return counted


@pytest.mark.parametrize("exists", [True, False])
async def test_concurrent_first_sends_request_the_route_once(
    namesrv: str, exists: bool, requested: Counter[int]
) -> None:
    """A service that has just started, with many messages at once."""
    if exists:
        async with Admin(namesrv) as admin:
            await admin.create_topic("T", 4)
    requested.clear()
    async with Producer(namesrv) as producer:
        await asyncio.gather(*(producer.send(Message("T", b"%d" % n)) for n in range(500)))
    assert requested[RequestCode.GET_ROUTEINFO_BY_TOPIC] <= (1 if exists else 4)
    assert requested[RequestCode.HEART_BEAT] <= 2
    stored = await read_all(namesrv, "T", 500)
    assert sorted(int(message.body) for message in stored) == list(range(500))


async def test_an_idle_producer_is_asked_about_transactions() -> None:
    """It restarted after a crash and has sent nothing yet."""
    config = BrokerConfig(transaction_timeout_ms=1, transaction_check_interval_ms=50)

    async with running_cluster(config) as namesrv:

        def fail(message: Message) -> Outcome:
            raise RuntimeError("the process ends here")

        async with Producer(namesrv, "PG") as producer:
            with pytest.raises(RuntimeError):
                await producer.send_in_transaction(Message("T", b"pay"), fail)
        asked: list[bytes] = []

        def check(message: Received) -> Outcome:
            asked.append(message.body)
            return Outcome.COMMIT

        async with Producer(namesrv, "PG", check=check):
            await until(lambda: asked)
            (message,) = await read_all(namesrv, "T", 1)
            assert message.body == b"pay"


class TestSharedLookups:
    async def test_a_cancelled_caller_does_not_take_the_result_from_the_others(self) -> None:
        lookups = SingleFlight[int](asyncio.ensure_future, "Producer")
        release = asyncio.Event()
        started = 0

        async def look_up() -> int:
            nonlocal started
            started += 1
            await release.wait()
            return started

        callers = [asyncio.ensure_future(lookups.get("T", look_up)) for _ in range(3)]
        await asyncio.sleep(0)
        callers[0].cancel()
        await asyncio.sleep(0)
        release.set()
        assert await callers[1] == await callers[2] == 1
        with pytest.raises(asyncio.CancelledError):
            await callers[0]
        assert await lookups.get("T", look_up) == 2

    async def test_a_failure_is_that_of_all_callers_and_the_next_call_tries_again(self) -> None:
        lookups = SingleFlight[int](asyncio.ensure_future, "Producer")

        async def fail() -> int:
            await asyncio.sleep(0)
            raise ConnectionError("down")

        async def succeed() -> int:
            return 7

        failed = await asyncio.gather(
            *(lookups.get("T", fail) for _ in range(3)), return_exceptions=True
        )
        assert [str(error) for error in failed] == ["down"] * 3
        assert await lookups.get("T", succeed) == 7

    async def test_a_close_ends_waiting_callers_with_an_error(self) -> None:
        tasks: list[asyncio.Task[int]] = []

        def spawn(work: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
            tasks.append(asyncio.ensure_future(work))
            return tasks[-1]

        lookups = SingleFlight[int](spawn, "Producer")

        async def wait() -> int:
            await asyncio.Event().wait()
            return 0

        caller = asyncio.ensure_future(lookups.get("T", wait))
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(ClientClosedError, match="Producer was closed during the call"):
            await caller
