"""A close finishes running calls or lets them fail, so that no caller waits forever."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.client.cancellation import Cancelled, Moment, at_every_await, interrupted, nothing_left
from tests.client.clusters import SOON, fill, read_all, until

from firetrail.broker.broker import Broker
from firetrail.client import (
    ClientClosedError,
    Message,
    Outcome,
    Producer,
    RequestError,
    SimpleConsumer,
)
from firetrail.client.cluster.open_calls import OpenCalls
from firetrail.remoting.wire.codes import ResponseCode

FAILED = r"^Producer was closed before this call ended; it may have taken effect$"


class SlowBroker:
    """A broker that stores no message until it is released."""

    def __init__(self, broker: Broker) -> None:
        self.namesrv = broker.namesrv
        self._go = asyncio.Event()
        self._begin_put = broker.broker_store.writer.begin_put
        self.asked = 0

    def begin_put(self, message: Any) -> Any:
        async def put() -> Any:
            self.asked += 1
            await self._go.wait()
            result = self._begin_put(message)
            return await result if isinstance(result, Awaitable) else result

        return put()

    def go_on(self) -> None:
        self._go.set()

    def hold(self) -> None:
        """Hold back messages that arrive from now on."""
        self._go.clear()


@asynccontextmanager
async def slow_broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlowBroker]:
    async with Broker.running(store=SOON) as broker:
        await fill(broker.namesrv, "T", 1)
        slow = SlowBroker(broker)
        with monkeypatch.context() as patch:
            patch.setattr(broker.broker_store.writer, "begin_put", slow.begin_put)
            try:
                yield slow
            finally:
                slow.go_on()


async def begin_sends(producer: Producer, slow: SlowBroker) -> list[asyncio.Future[Any]]:
    """Start two sends with one key, of which the second waits for the first, and one without."""
    sends: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(producer.send(Message("T", b"1"), order_key="k")),
        asyncio.ensure_future(producer.send(Message("T", b"2"), order_key="k")),
        asyncio.ensure_future(producer.send(Message("T", b"3"))),
    ]
    await until(lambda: slow.asked == 2)
    return sends


async def test_a_close_finishes_running_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with slow_broker(monkeypatch) as slow:
        producer = Producer(slow.namesrv, timeout_s=60)
        await producer.open()
        sends = await begin_sends(producer, slow)
        closing = asyncio.ensure_future(producer.close(20))
        await asyncio.sleep(0)
        with pytest.raises(ClientClosedError, match="is being closed"):
            await producer.send(Message("T", b"too late"))
        slow.go_on()
        results = await asyncio.gather(*sends)
        await closing
        found = {message.message_id for message in await read_all(slow.namesrv, "T", 4)}
        assert {result.message_id for result in results} <= found


async def test_sends_that_take_too_long_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with slow_broker(monkeypatch) as slow:
        producer = Producer(slow.namesrv, timeout_s=60)
        await producer.open()
        sends = await begin_sends(producer, slow)
        await producer.close(0.05)
        for send in sends:
            assert send.done()
            with pytest.raises(ClientClosedError, match=FAILED):
                send.result()
    assert "Producer: 3 calls did not end within 0.05 s after the close and raise" in caplog.text


async def test_an_exception_in_the_block_is_kept_and_other_sends_finish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error of the block is raised, and the sends of other tasks are finished."""
    async with slow_broker(monkeypatch) as slow:
        with pytest.raises(ZeroDivisionError):
            async with Producer(slow.namesrv, timeout_s=60) as producer:
                sends = await begin_sends(producer, slow)
                slow.go_on()
                raise ZeroDivisionError
        assert all(send.done() for send in sends)
        await asyncio.gather(*sends)


@pytest.mark.parametrize("twice", [False, True])
async def test_a_cancelled_block_still_waits_for_other_sends(
    monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    """The first cancellation waits for the sends of other tasks; a second one ends the wait."""
    sends: list[asyncio.Future[Any]] = []

    async def work(slow: SlowBroker) -> None:
        async with Producer(slow.namesrv, timeout_s=60) as producer:
            sends.extend(await begin_sends(producer, slow))
            await asyncio.Event().wait()

    async with slow_broker(monkeypatch) as slow, nothing_left():
        working = asyncio.ensure_future(work(slow))
        await until(lambda: sends)
        working.cancel()
        await asyncio.sleep(0.01)
        if twice:
            working.cancel()
        else:
            slow.go_on()
        await asyncio.wait({working})
        assert working.cancelled()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        closed = [isinstance(outcome, ClientClosedError) for outcome in outcomes]
        assert closed == [twice] * 3
        slow.go_on()


async def wait_for_a_reply(producer: Producer) -> object:
    return await producer.request(Message("T", b""), timeout_s=60)


async def wait_for_a_decision(producer: Producer) -> object:
    async def decide(message: Message) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    return await producer.send_in_transaction(Message("T", b""), decide)


@pytest.mark.parametrize("call", [wait_for_a_reply, wait_for_a_decision])
async def test_calls_that_wait_for_others_fail_after_a_close(
    call: Callable[[Producer], Awaitable[object]],
) -> None:
    async with Broker.running(store=SOON) as broker, nothing_left():
        await fill(broker.namesrv, "T", 1)
        producer = Producer(broker.namesrv)
        await producer.open()
        waiting = asyncio.ensure_future(call(producer))
        await asyncio.wait({waiting}, timeout=0.2)
        await producer.close(0.05)
        assert waiting.done()
        with pytest.raises(ClientClosedError, match=FAILED):
            waiting.result()


async def test_a_close_ends_the_pause_before_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker.running(store=SOON) as broker, nothing_left():
        await fill(broker.namesrv, "T", 1)

        def begin_put(message: object) -> object:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "busy")

        monkeypatch.setattr(broker.broker_store.writer, "begin_put", begin_put)
        monkeypatch.setattr("firetrail.client.producers.message_sender.BUSY_S", 60.0)
        producer = Producer(broker.namesrv)
        await producer.open()
        waiting = asyncio.ensure_future(producer.send(Message("T", b"")))
        await asyncio.wait({waiting}, timeout=0.2)
        assert not waiting.done()
        await producer.close(0.05)
        assert waiting.done()
        with pytest.raises(ClientClosedError, match=FAILED):
            waiting.result()


async def test_a_close_within_a_call_does_not_wait_for_it() -> None:
    async with Broker.running(store=SOON) as broker, nothing_left():
        producer = Producer(broker.namesrv)
        await producer.open()

        async def decide(message: Message) -> Outcome:
            await producer.close(60)
            return Outcome.COMMIT

        with pytest.raises(ClientClosedError, match=r"^Producer is closed"):
            await producer.send_in_transaction(Message("T", b""), decide)


async def test_a_close_finishes_acknowledgements() -> None:
    async with Broker.running(store=SOON) as broker, nothing_left():
        await fill(broker.namesrv, "T", 1)
        consumer = SimpleConsumer(broker.namesrv, "G", {"T": "*"})
        await consumer.open()
        messages = await consumer.receive(invisible_s=1000, wait_s=20)
        ack = asyncio.ensure_future(consumer.ack(*messages))
        await asyncio.sleep(0)
        await consumer.close()
        assert ack.done()
        ack.result()


async def test_a_close_can_be_cancelled_at_every_await(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every send ends, acknowledged messages are stored, and no task is left."""
    async with slow_broker(monkeypatch) as slow:
        sends: list[asyncio.Future[Any]] = []

        async def attempt(at: int, moment: Moment) -> bool:
            async with nothing_left():
                slow.hold()
                producer = Producer(slow.namesrv, timeout_s=60)
                await producer.open()
                sends.append(asyncio.ensure_future(producer.send(Message("T", b""))))
                await until(lambda: slow.asked == len(sends))
                closing = asyncio.ensure_future(interrupted(producer.close(20), at, moment))
                await asyncio.sleep(0)
                slow.go_on()
                was_interrupted = True
                with suppress(Cancelled):
                    was_interrupted, _ = await closing
                await until(lambda: all(send.done() for send in sends))
            return was_interrupted

        assert await at_every_await(attempt) > 1
        stored = {message.message_id for message in await read_all(slow.namesrv, "T", 1)}
        for send in sends:
            if (error := send.exception()) is None:
                assert send.result().message_id in stored
            else:
                assert isinstance(error, ClientClosedError)


async def test_a_call_that_is_cancelled_while_it_fails_is_cancelled() -> None:
    calls = OpenCalls("Producer")

    async def call() -> None:
        with calls.one():
            await asyncio.sleep(60)

    calling = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(calls.end(0.0))
    while calls.running and not calling.cancelling():
        await asyncio.sleep(0)
    calling.cancel()
    await ending
    assert calling.cancelled()


async def test_a_timeout_around_a_call_is_still_a_timeout() -> None:
    calls = OpenCalls("Producer")
    with pytest.raises(TimeoutError, match=r"^slow$"), calls.one():
        raise TimeoutError("slow")
    await calls.end(60)
