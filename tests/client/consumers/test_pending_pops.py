"""Cancelled receives, against Firetrail's broker: no message waits for its invisible time."""

import asyncio
from typing import Any

import pytest
from tests.client.clusters import fill, until

from firetrail.client import (
    ClientClosedError,
    ConfigError,
    ConsumeFromWhere,
    Message,
    Producer,
    SimpleConsumer,
)
from firetrail.client.consumers.pop_client import PopClient, Popped

FIRST = ConsumeFromWhere.FIRST_OFFSET
LONG_S = 1000.0
"""Longer than every test, so that a lost message is not redelivered during the test."""


async def test_late_messages_go_to_the_next_call(namesrv: str) -> None:
    await fill(namesrv, "T", 1)
    async with Producer(namesrv) as producer, SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer:
        await consumer.ack(*await consumer.receive(wait_s=5))
        for number in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.receive(invisible_s=LONG_S, wait_s=20), 0.05)
            receiving = asyncio.ensure_future(consumer.receive(invisible_s=LONG_S, wait_s=20))
            await until(lambda: not consumer._receiving._abandoned)  # it waits for the first pop
            await producer.send(Message("T", b"%d" % number))
            (message,) = await receiving
            assert (message.body, message.reconsume_times) == (b"%d" % number, 0)
            await consumer.ack(message)


@pytest.mark.parametrize("how", ["task", "timeout", "group"])
async def test_late_messages_without_a_receive_are_redelivered_at_once(
    namesrv: str, how: str
) -> None:
    await fill(namesrv, "T", 1)
    async with (
        Producer(namesrv) as producer,
        SimpleConsumer(namesrv, "G", {"T": "*"}) as one,
        SimpleConsumer(namesrv, "G", {"T": "*"}) as other,
    ):
        await one.ack(*await one.receive(wait_s=5))
        await cancelled(one, how)
        await producer.send(Message("T", b"x"))  # it goes to the receive that was cancelled
        (message,) = await other.receive(invisible_s=LONG_S, wait_s=20)
        assert message.body == b"x"
        await other.ack(message)


async def cancelled(consumer: SimpleConsumer, how: str) -> None:
    async def receive() -> None:
        await consumer.receive(invisible_s=LONG_S, wait_s=20)

    if how == "task":
        task = asyncio.ensure_future(receive())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    elif how == "timeout":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await receive()
    else:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(receive())
                await asyncio.sleep(0.1)
                raise ValueError


async def test_messages_that_arrive_with_the_cancellation_are_not_lost(namesrv: str) -> None:
    """The answer has arrived, but the task has not run yet."""
    await fill(namesrv, "T", 4)
    bodies = []
    async with SimpleConsumer(namesrv, "G", {"T": "*"}, start=FIRST) as consumer:
        for turns in range(40):
            task = asyncio.ensure_future(consumer.receive(1, invisible_s=LONG_S, wait_s=20))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, list):
                bodies += [message.body for message in outcome]
                await consumer.ack(*outcome)
                if len(bodies) == 4:
                    break
        while len(bodies) < 4:
            messages = await consumer.receive(2, invisible_s=LONG_S, wait_s=20)
            bodies += [message.body for message in messages]
            await consumer.ack(*messages)
    assert sorted(bodies) == [b"0", b"1", b"2", b"3"]


async def test_a_close_ends_running_receives(namesrv: str) -> None:
    await fill(namesrv, "T", 1)
    consumer = SimpleConsumer(namesrv, "G", {"T": "*"})
    await consumer.open()
    await consumer.ack(*await consumer.receive(wait_s=5))
    waiting = asyncio.ensure_future(consumer.receive(invisible_s=LONG_S, wait_s=20))
    await asyncio.sleep(0.1)
    await consumer.close()
    with pytest.raises(ClientClosedError, match="SimpleConsumer is being closed"):
        await waiting
    await fill(namesrv, "T", 1)
    async with SimpleConsumer(namesrv, "G", {"T": "*"}) as other:
        assert len(await other.receive(invisible_s=LONG_S, wait_s=20)) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, "count = 0: expected 1 to 32"),
        ({"count": 33}, "count = 33: expected 1 to 32"),
        ({"invisible_s": 0}, r"invisible_s = 0: expected a number of seconds from 0\.001 to"),
        ({"wait_s": -1}, "wait_s = -1: expected a number of seconds from 0 to"),
    ],
)
async def test_wrong_arguments_of_receive_are_rejected(
    namesrv: str, wrong: dict[str, int], message: str
) -> None:
    await fill(namesrv, "T", 1)
    async with SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer:
        with pytest.raises(ConfigError, match=message):
            await consumer.receive(**wrong)


async def test_a_failed_receive_raises_and_does_not_log(
    namesrv: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> list[Popped]:
        raise ConnectionError("the broker is away")

    await fill(namesrv, "T", 1)
    async with SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer:
        monkeypatch.setattr(PopClient, "pop", fail)
        with pytest.raises(ConnectionError, match="the broker is away"):
            await consumer.receive(wait_s=0.1)
    assert "the broker is away" not in caplog.text


async def test_a_failed_pop_of_a_cancelled_receive_is_logged(
    namesrv: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = asyncio.Event()

    async def fail(*_: object, **__: object) -> list[Popped]:
        await failing.wait()
        raise ConnectionError("the broker is away")

    await fill(namesrv, "T", 1)
    async with SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer:
        monkeypatch.setattr(PopClient, "pop", fail)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive(), 0.05)
        failing.set()
        await until(lambda: caplog.records)
    assert "T: the pop of a cancelled receive failed: the broker is away" in caplog.text


async def test_a_message_that_could_not_be_returned_is_logged(
    namesrv: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker may have done what it did not confirm, so the log does not claim either."""
    received = asyncio.Event()
    pop = PopClient.pop

    async def late(*args: Any, **more: Any) -> list[Popped]:
        messages = await pop(*args, **more)
        await received.wait()
        return messages

    async def fail(*_: object) -> Popped:
        raise TimeoutError("no answer to CHANGE_MESSAGE_INVISIBLETIME within 3 s")

    await fill(namesrv, "T", 1)
    async with SimpleConsumer(namesrv, "G", {"T": "*"}) as consumer:
        monkeypatch.setattr(PopClient, "pop", late)
        monkeypatch.setattr(PopClient, "change", fail)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive(), 0.05)
        received.set()
        await until(lambda: caplog.records)
    assert (
        "returning a message to the broker failed, so it may be redelivered only after its "
        "invisible time: no answer to CHANGE_MESSAGE_INVISIBLETIME within 3 s"
    ) in caplog.text
