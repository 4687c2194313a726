"""The outcomes of listeners, alone and against Firetrail's broker."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from tests.broker.brokers import SMALL
from tests.client.cancellation import nothing_left
from tests.client.clusters import Heard, fill, read_all, received, until
from tests.helpers import PATIENCE_S

from firetrail.broker.broker import Broker
from firetrail.client import (
    ConfigError,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
    RequestError,
)
from firetrail.client.consumers.push.listener import ListenerCall

FIRST = ConsumeFromWhere.FIRST_OFFSET


class TestOutcomesOfListeners:
    """Whatever a listener does, its message is consumed in the end, and earlier ones, too."""

    @staticmethod
    async def cancel_something_else() -> None:
        sleeping = asyncio.ensure_future(asyncio.sleep(60))
        sleeping.cancel()
        await sleeping

    @staticmethod
    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    @staticmethod
    async def raise_cancelled() -> None:
        raise asyncio.CancelledError

    @staticmethod
    async def raise_something_else() -> None:
        class Strange(BaseException):
            pass

        raise Strange

    @pytest.mark.parametrize("in_order", [False, True])
    @pytest.mark.parametrize(
        "trouble",
        ["cancel_something_else", "cancel_itself", "raise_cancelled", "raise_something_else"],
    )
    async def test_a_message_whose_listener_fails_is_redelivered(
        self, namesrv: str, trouble: str, in_order: bool
    ) -> None:
        tries: list[bytes] = []

        async def listener(message: Received) -> None:
            tries.append(message.body)
            if message.body == b"1" and tries.count(b"1") <= 2:
                await getattr(self, trouble)()

        queue = MessageQueue("T", "broker-a", 0)
        async with Producer(namesrv) as producer:
            for number in range(3):
                await producer.send(Message("T", b"%d" % number), queue=queue)
        consumer = PushConsumer(namesrv, "G", listener, {"T": "*"}, in_order=in_order, start=FIRST)
        async with consumer:
            await until(lambda: tries.count(b"1") == 3 and b"2" in tries)
        if in_order:
            assert tries == [b"0", b"1", b"1", b"1", b"2"]
        async with PullConsumer(namesrv, "G") as puller:
            assert await puller.committed(queue) == 3

    @pytest.mark.parametrize("in_order", [False, True])
    async def test_a_listener_that_ignores_its_cancellation_is_ended(
        self,
        namesrv: str,
        in_order: bool,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """So a close, for example after Ctrl-C, always ends. The message is redelivered."""
        monkeypatch.setattr("firetrail.client.cluster.cluster_client.END_S", 0.05)
        said: list[str] = []

        async def stubborn(message: Received) -> None:
            said.append(f"begins {message.body.decode()}")
            try:
                while message.body == b"1":
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(60)
            finally:
                said.append(f"ends {message.body.decode()}")

        queue = MessageQueue("T", "broker-a", 0)
        async with Producer(namesrv) as producer:
            for number in range(2):
                await producer.send(Message("T", b"%d" % number), queue=queue)
        consumer = PushConsumer(namesrv, "G", stubborn, {"T": "*"}, in_order=in_order, start=FIRST)
        async with nothing_left():
            await consumer.open()
            await until(lambda: "begins 1" in said and "ends 0" in said)
            await consumer.close(0.01)
            assert said[-1] == "ends 1"
        async with PullConsumer(namesrv, "G") as puller:
            await puller.queues("T")
            assert await puller.committed(queue) == 1
        what = (
            "test_a_listener_that_ignores_its_cancellation_is_ended.<locals>.stubborn ignores its"
        )
        assert what in caplog.text
        assert "(T queue 0 on broker-a, offset 1) will be redelivered" in caplog.text

    async def test_a_listener_that_ignores_its_forced_end_is_logged(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def stubborn(message: Received) -> None:
            for _ in range(3):
                with suppress(BaseException):
                    await asyncio.sleep(60)

        listening = ListenerCall(stubborn)
        outcome = asyncio.ensure_future(listening.outcome(received()))
        await asyncio.sleep(0)
        await listening.end(0.01)
        assert outcome.cancelled()
        assert (
            "raised while it was ended: RuntimeError('coroutine ignored GeneratorExit')"
            in caplog.text
        )

    def test_an_exit_from_a_listener_does_not_consume_its_message(self) -> None:
        tries: list[bytes] = []

        def listener(message: Received) -> None:
            tries.append(message.body)
            if len(tries) == 1:
                raise KeyboardInterrupt

        async def consume(broker: Broker, count: int) -> None:
            topics = {"T": "*"}
            async with PushConsumer(broker.namesrv, "G", listener, topics, start=FIRST):
                await until(lambda: len(tries) >= count)

        # Two loops cannot share a broker in one process; committed offsets are in its store.
        async def first(folder: str) -> None:
            async with Broker.running(folder, store=SMALL) as broker:
                await fill(broker.namesrv, "T", 1)
                await consume(broker, 2)

        async def second(folder: str) -> None:
            async with asyncio.timeout(PATIENCE_S), Broker.running(folder, store=SMALL) as broker:
                await consume(broker, 2)

        with tempfile.TemporaryDirectory() as folder:
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(first(folder))
            asyncio.run(second(folder))
        assert tries == [b"0", b"0"]

    async def test_the_message_of_a_listener_cancelled_by_close_is_redelivered(
        self, namesrv: str
    ) -> None:
        ended: list[str] = []
        begun = asyncio.Event()

        async def listener(message: Received) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("cancelled")

        await fill(namesrv, "T", 1)
        consumer = PushConsumer(namesrv, "G", listener, {"T": "*"}, start=FIRST)
        await consumer.open()
        await begun.wait()
        await consumer.close(grace_s=0.01)
        assert ended == ["cancelled"]
        heard = Heard()
        async with PushConsumer(namesrv, "G", heard, {"T": "*"}, start=FIRST):
            await until(lambda: heard.messages)

    async def test_a_listener_can_close_its_consumer(self, namesrv: str) -> None:
        closed = asyncio.Event()

        async def listener(message: Received) -> None:
            await consumer.close(60)  # it does not wait for this listener
            closed.set()

        await fill(namesrv, "T", 1)
        consumer = PushConsumer(namesrv, "G", listener, {"T": "*"})
        await consumer.open()
        async with Producer(namesrv) as producer:
            await producer.send(Message("T", b""))
        await closed.wait()


class TestReturnValues:
    MESSAGE = received()

    async def test_a_return_value_is_ignored_and_logged_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        listening = ListenerCall(lambda _: False)  # type: ignore[arg-type,return-value]
        for _ in range(2):
            assert (await listening.outcome(self.MESSAGE)) is None
        assert caplog.text.count("<lambda> returned False, which is ignored") == 1

    async def test_a_returned_generator_is_a_failure(self) -> None:
        def listener(message: Received) -> Iterator[None]:
            yield

        listening = ListenerCall(lambda message: listener(message))  # type: ignore[arg-type,return-value]
        error = await listening.outcome(self.MESSAGE)
        assert "returned a generator" in str(error)


async def consume_and_yield(message: Received) -> AsyncIterator[None]:
    """Not a listener, because a call does nothing."""
    yield


@pytest.mark.parametrize(
    ("listener", "reason"), [(None, "expected a function"), (consume_and_yield, "with 'yield'")]
)
def test_functions_that_cannot_be_listeners_are_rejected(listener: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PushConsumer("127.0.0.1:1", "G", listener, {"T": "*"})  # type: ignore[arg-type]


@pytest.mark.parametrize("in_order", [False, True], ids=["concurrent", "in order"])
@pytest.mark.parametrize("how", ["cancels", "is cancelled", "exits"])
async def test_a_listener_that_ends_its_own_task_has_failed(
    namesrv: str, how: str, in_order: bool
) -> None:
    """Its message is retried as often as others, and then goes to the dead letters."""
    await fill(namesrv, "T", 1)
    attempts: list[int] = []

    async def listener(message: Received) -> None:
        attempts.append(message.reconsume_times)
        task = asyncio.current_task()
        assert task is not None
        if how == "exits":
            raise GeneratorExit
        if how == "cancels":
            task.cancel()
        else:
            asyncio.get_running_loop().call_later(0.01, task.cancel)
        await asyncio.sleep(10)

    consumer = PushConsumer(
        namesrv,
        "G",
        listener,
        {"T": "*"},
        start=ConsumeFromWhere.FIRST_OFFSET,
        in_order=in_order,
        max_retries=2,
    )
    async with consumer:
        dead: Received | None = None
        while dead is None:
            with suppress(RequestError):  # until the topic exists
                (dead,) = await read_all(namesrv, "%DLQ%G", 1)
    assert dead.body == b"0"
    assert attempts == [0, 1, 2]
