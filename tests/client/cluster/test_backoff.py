"""Calls while brokers cannot be reached: they use the time that they have, with growing pauses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    NoRouteYetError,
    Outcome,
    Producer,
    PullConsumer,
    SimpleConsumer,
)
from firetrail.client.cluster import backoff
from firetrail.client.cluster.backoff import (
    FIRST_PAUSE_S,
    PAUSE_MAX_S,
    Backoff,
    pauses,
    was_not_sent,
)
from firetrail.errors import NoAnswerError, NotReachedError, RequestError, TlsError
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.server import NameServer


class SteppedTime:
    """A clock that only pauses move; it replaces the event loop's clock and its sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        monkeypatch.setattr(backoff, "pause", self.pause)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def not_sent() -> NotReachedError:
    error = NotReachedError("127.0.0.1:1: cannot be reached: Connection refused")
    error.may_have_arrived = False
    return error


async def test_a_call_uses_all_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    time = SteppedTime(monkeypatch)
    refreshed: list[float] = []
    failures: list[NotReachedError] = []

    async def fail() -> None:
        failures.append(not_sent())
        raise failures[-1]

    with pytest.raises(NotReachedError) as caught:
        await Backoff("Producer").until_reached(fail, 10.0, lambda: refreshed.append(time.now))
    assert caught.value is failures[-1]
    assert time.now == 10.0
    assert FIRST_PAUSE_S / 2 <= time.pauses[0] <= FIRST_PAUSE_S
    assert max(time.pauses) <= PAUSE_MAX_S and len(time.pauses) < 30
    assert len(refreshed) == len(time.pauses) == len(failures) - 1


async def test_a_call_ends_with_its_first_success(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time = SteppedTime(monkeypatch)
    waits = Backoff("Producer")

    async def call() -> str:
        if time.now < 3.0:
            raise NoRouteYetError(17, "no broker has registered")
        return "stored"

    assert await waits.until_reached(call, 10.0) == "stored"
    assert 3.0 <= time.now <= 4.0
    (line,) = caplog.messages
    assert line.endswith("no broker has registered; retrying for up to 10 s")


@pytest.mark.parametrize(
    "error",
    [
        NotReachedError("the connection was lost"),
        NoAnswerError("no answer"),
        TlsError("a certificate is refused"),
        RequestError(2, "busy"),
    ],
)
async def test_what_may_have_arrived_is_not_repeated(error: Exception) -> None:
    assert not was_not_sent(error)
    calls = 0

    async def fail() -> None:
        nonlocal calls
        calls += 1
        raise error

    with pytest.raises(type(error)):
        await Backoff("Producer").until_reached(fail, 10.0)
    assert calls == 1


def test_pauses_grow_and_differ() -> None:
    drawn = [[pause for pause, _ in zip(pauses(0.1, 0.8), range(6), strict=False)] for _ in "ab"]
    for each in drawn:
        for pause, most in zip(each, (0.1, 0.2, 0.4, 0.8, 0.8, 0.8), strict=True):
            assert most / 2 <= pause <= most
    assert drawn[0] != drawn[1]


class Restarting:
    """A name server that stays, and a broker that can be stopped and started again.

    It has another port each time, so clients must request its address again.
    """

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.namesrv = namesrv
        self._folder = folder
        self._broker: Broker | None = None

    async def start(self) -> None:
        host = SMALL.store_host._replace(port=0)
        config = BrokerConfig(namesrv=self.namesrv)
        self._broker = Broker(self._folder, config, SMALL.replace(store_host=host))
        await self._broker.start()

    async def stop(self) -> None:
        if self._broker is not None:
            await self._broker.stop()
            self._broker = None


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Restarting]:
    names = NameServer(NameServerConfig(listen_port=0))
    cluster = Restarting(tmp_path, f"127.0.0.1:{await names.start()}")
    await cluster.start()
    yield cluster
    await cluster.stop()
    await names.stop()


async def in_transaction(producer: Producer) -> None:
    await producer.send_in_transaction(Message("T", b""), lambda _: Outcome.COMMIT)


SENDS: dict[str, Callable[[Producer], Coroutine[Any, Any, object]]] = {
    "one": lambda producer: producer.send(Message("T", b"")),
    "in order": lambda producer: producer.send(Message("T", b""), order_key="o-1"),
    "batch": lambda producer: producer.send_batch([Message("T", b""), Message("T", b"")]),
    "one way": lambda producer: producer.send_one_way(Message("T", b"")),
    "in a transaction": in_transaction,
}


async def restarts_during(
    cluster: Restarting, call: Coroutine[Any, Any, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a call while the broker is down, and start the broker once the call waits for it."""
    waiting = asyncio.Event()

    async def pause(seconds: float) -> None:
        waiting.set()
        await asyncio.sleep(0.01)

    await cluster.stop()
    monkeypatch.setattr(backoff, "pause", pause)
    running = asyncio.ensure_future(call)
    await asyncio.wait(
        {running, asyncio.ensure_future(waiting.wait())}, return_when=asyncio.FIRST_COMPLETED
    )
    assert not running.done()
    await cluster.start()
    await running


@pytest.mark.parametrize("retries", [0, 5])
@pytest.mark.parametrize("way", SENDS)
async def test_a_send_survives_a_restart_of_the_only_broker(
    cluster: Restarting, way: str, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster.namesrv, retries=retries, timeout_s=60) as producer:
        await producer.send(Message("T", b"first"))
        await restarts_during(cluster, SENDS[way](producer), monkeypatch)


async def test_a_producer_that_is_opened_while_the_broker_is_down(
    cluster: Restarting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster.namesrv, timeout_s=60) as producer:
        await restarts_during(cluster, producer.send(Message("T", b"")), monkeypatch)


async def test_an_acknowledgement_waits_for_the_broker(
    cluster: Restarting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster.namesrv) as producer:
        await producer.send(Message("T", b""))
    first = ConsumeFromWhere.FIRST_OFFSET
    async with SimpleConsumer(cluster.namesrv, "G", {"T": "*"}, start=first) as consumer:
        (message,) = await consumer.receive(wait_s=60)
        await restarts_during(cluster, consumer.ack(message), monkeypatch)


@pytest.mark.parametrize("call", ["commit", "committed", "pull"])
async def test_a_pull_consumer_waits_for_the_broker(
    cluster: Restarting, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster.namesrv) as producer, PullConsumer(cluster.namesrv) as consumer:
        queue = (await producer.send(Message("T", b""))).queue
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "commit": lambda: consumer.commit(queue, 1),
            "committed": lambda: consumer.committed(queue),
            "pull": lambda: consumer.pull(queue, 0, wait_s=60),
        }
        await consumer.queues("T")
        await restarts_during(cluster, calls[call](), monkeypatch)


async def test_an_administrator_waits_for_a_broker_that_is_registered(
    cluster: Restarting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Admin(cluster.namesrv) as admin:
        ask, failures = admin._session.ask, [not_sent(), not_sent()]
        (master,) = (await admin.masters()).values()

        async def asked(address: str, *args: Any) -> object:
            if address == master and failures:
                raise failures.pop()
            return await ask(address, *args)

        monkeypatch.setattr(admin._session, "ask", asked)
        assert await admin.groups()
    assert not failures
