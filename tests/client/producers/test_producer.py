"""The producer, against Firetrail's broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.client.clusters import WAIT_S, read_all, running_cluster, until
from tests.helpers import PATIENCE_S

from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    Message,
    MessageQueue,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
)
from firetrail.client.messages import send_requests
from firetrail.client.messages.send_requests import SendStatus
from firetrail.client.producers.message_sender import BUSY_S
from firetrail.errors import (
    ConfigError,
    FormatError,
    IllegalMessageError,
    NoAnswerError,
    NoSuchError,
    RequestError,
)
from firetrail.format.layout import COMPRESSED
from firetrail.format.values.ids import decode_message_id
from firetrail.namesrv import NameServer, NameServerConfig
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import TopicConfig, TopicConfigTable
from firetrail.remoting.messages.headers import SendResponse
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM


async def test_a_sent_message_is_consumed_as_it_was(namesrv: str) -> None:
    async with Producer(namesrv, "PG") as producer, PullConsumer(namesrv) as consumer:
        result = await producer.send(
            Message("T", b"hello", tags="a", keys=["k1", "k2"], properties={"p": "v"}, flag=5)
        )
        assert result.status is SendStatus.OK
        assert result.message_id.startswith("7F000001")  # the client's address
        assert decode_message_id(result.offset_message_id).physical_offset == 0
        (message,) = (await consumer.pull(result.queue, 0, wait_s=10)).messages
        assert (message.topic, message.body, message.tags) == ("T", b"hello", "a")
        assert message.keys == ("k1", "k2")
        assert message.properties["p"] == "v"
        assert message.message_id == result.message_id
        assert message.record.flag == 5
        assert message.queue_offset == result.queue_offset == 0


async def test_messages_go_to_all_queues_in_turn(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        results = [await producer.send(Message("T", b"x")) for _ in range(8)]
        used = [result.queue.queue_id for result in results]
        assert sorted(used) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_equal_order_keys_go_to_the_same_queue(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        queues = {(await producer.send(Message("T", b""), order_key="k")).queue for _ in "abc"}
        assert len(queues) == 1
        chosen = MessageQueue("T", "broker-a", 2)
        assert (await producer.send(Message("T", b"x"), queue=chosen)).queue == chosen


async def test_many_sends_run_concurrently(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        sends = (producer.send(Message("T", b"%03d" % n)) for n in range(300))
        results = await asyncio.gather(*sends)
        assert len({result.message_id for result in results}) == 300
    got = await read_all(namesrv, "T", 300)
    assert sorted(m.body for m in got) == [b"%03d" % n for n in range(300)]


async def test_a_batch_is_stored_contiguously(namesrv: str) -> None:
    async with Producer(namesrv) as producer, PullConsumer(namesrv) as consumer:
        messages = [Message("T", b"%d" % n, tags=f"t{n}") for n in range(5)]
        result = await producer.send_batch(messages)
        got = (await consumer.pull(result.queue, 0, wait_s=10)).messages
        assert [(m.body, m.tags) for m in got] == [(b"%d" % n, f"t{n}") for n in range(5)]
        assert ",".join(m.message_id for m in got) == result.message_id


@pytest.mark.parametrize(
    "messages",
    [[], [Message("T", b""), Message("U", b"")], [Message("%RETRY%G", b"")]],
    ids=["empty", "two topics", "retries"],
)
async def test_invalid_batches_are_rejected(namesrv: str, messages: list[Message]) -> None:
    async with Producer(namesrv) as producer:
        with pytest.raises(IllegalMessageError, match="batch"):
            await producer.send_batch(messages)


async def test_large_bodies_are_compressed(namesrv: str) -> None:
    async with Producer(namesrv) as producer, PullConsumer(namesrv) as consumer:
        result = await producer.send(Message("T", b"x" * 100_000))
        (message,) = (await consumer.pull(result.queue, 0, wait_s=10)).messages
        assert len(message.record.body) < 1000
        assert message.body == b"x" * 100_000


async def test_a_one_way_message_is_stored(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        result = await producer.send(Message("T", b"0"))
        await producer.send_one_way(Message("T", b"1"), queue=result.queue)
        assert [m.body for m in await read_all(namesrv, "T", 2)] == [b"0", b"1"]


async def test_a_one_way_message_to_an_unknown_broker_is_an_error(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        known = (await producer.send(Message("T", b"0"))).queue
        what = f"^T: no queue 0 on the broker other; the topic is on {known.broker_name}$"
        with pytest.raises(NoSuchError, match=what) as caught:
            await producer.send_one_way(Message("T", b"1"), queue=MessageQueue("T", "other", 0))
        assert not caught.value.retriable


class TestTransactions:
    @pytest.mark.parametrize(
        ("outcome", "seen"), [(Outcome.COMMIT, [b"half"]), (Outcome.ROLLBACK, [])]
    )
    async def test_the_outcome_of_decide_takes_effect(
        self, namesrv: str, outcome: Outcome, seen: list[bytes]
    ) -> None:
        async with Producer(namesrv, "PG") as producer:
            await producer.send(Message("T", b"whole"))

            await producer.send_in_transaction(Message("T", b"half"), lambda _: outcome)
            await until_ended(namesrv)
        got = await read_all(namesrv, "T", 1 + len(seen))
        assert sorted(m.body for m in got) == sorted([b"whole", *seen])

    async def test_the_broker_asks_check_if_decide_fails(self) -> None:
        asked: list[Received] = []

        def check(message: Received) -> Outcome:
            asked.append(message)
            return Outcome.COMMIT

        def fail(message: Message) -> Outcome:
            raise ZeroDivisionError

        soon = BrokerConfig(transaction_timeout_ms=1, transaction_check_interval_ms=50)
        async with (
            running_cluster(soon) as namesrv,
            Producer(namesrv, "PG", check=check) as producer,
        ):
            await producer.send(Message("T", b"whole"))
            with pytest.raises(ZeroDivisionError):
                await producer.send_in_transaction(Message("T", b"half"), fail)
            await until(lambda: asked)
            assert asked[0].body == b"half"
            got = await read_all(namesrv, "T", 2)
            assert sorted(m.body for m in got) == [b"half", b"whole"]

    async def test_an_unknown_outcome_needs_a_check(self, namesrv: str) -> None:
        async def later(message: Message) -> Outcome:
            return Outcome.UNKNOWN

        async with Producer(namesrv, "PG", check=lambda _: Outcome.ROLLBACK) as producer:
            await producer.send_in_transaction(Message("T", b"half"), later)
        async with Producer(namesrv, "PG") as producer:
            with pytest.raises(ConfigError, match="this producer has no check function"):
                await producer.send_in_transaction(Message("T", b"half"), later)

    async def test_a_delayed_message_in_a_transaction_is_rejected(self, namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            with pytest.raises(RequestError, match="cannot be delayed"):
                await producer.send_in_transaction(
                    Message("T", b"", delay_level=1), lambda _: Outcome.COMMIT
                )


class TestRequests:
    @pytest.mark.parametrize("size", [1, 50_000])
    async def test_a_request_gets_its_reply(self, namesrv: str, size: int) -> None:
        async with Producer(namesrv, "asking") as asking, Producer(namesrv, "G") as replying:

            async def listener(message: Received) -> None:
                await replying.reply(message, message.body * size)

            await asking.send(Message("T", b"made"))
            async with PushConsumer(namesrv, "G", listener_of_requests(listener), {"T": "*"}):
                reply = await asking.request(Message("T", b"x"), 20)
            assert reply.body == b"x" * size
            assert reply.properties["MSG_TYPE"] == "reply"

    async def test_a_queue_that_does_not_exist_is_an_error_with_those_that_do(
        self, namesrv: str
    ) -> None:
        async with Producer(namesrv) as producer:
            known = (await producer.send(Message("T", b""))).queue
            what = f"^T: no queue 99 on the broker {known.broker_name}; it has the queues 0, 1"
            with pytest.raises(NoSuchError, match=what) as caught:
                await producer.send(
                    Message("T", b""), queue=MessageQueue("T", known.broker_name, 99)
                )
            assert not caught.value.retriable
            what = f"^T: no queue 0 on the broker other; the topic is on {known.broker_name}$"
            with pytest.raises(NoSuchError, match=what):
                await producer.send(Message("T", b""), queue=MessageQueue("T", "other", 0))

    async def test_a_request_without_a_reply_times_out(self, namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            with pytest.raises(NoAnswerError):
                await producer.request(Message("T", b"x"), 0.3)

    async def test_a_reply_that_cannot_be_decompressed_is_an_error_at_once(
        self, namesrv: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with Producer(namesrv, "asking") as asking, Producer(namesrv, "G") as replying:

            async def listener(message: Received) -> None:
                monkeypatch.setattr(send_requests, "_compressed", lambda body: (body, COMPRESSED))
                await replying.reply(message, b"raw")

            await asking.send(Message("T", b"made"))
            async with PushConsumer(namesrv, "G", listener_of_requests(listener), {"T": "*"}):
                what = r"^the compressed body of the reply to a message of T at offset 0: it is not"
                with pytest.raises(FormatError, match=what):
                    await asking.request(Message("T", b"x"), WAIT_S)

    async def test_a_reply_to_a_message_that_is_not_a_request_is_refused(
        self, namesrv: str
    ) -> None:
        async with Producer(namesrv) as producer:
            await producer.send(Message("T", b"x"))
            (message,) = await read_all(namesrv, "T", 1)
            with pytest.raises(RequestError, match=r"is not a request: .*send it with request"):
                await producer.reply(message, b"")


def listener_of_requests(
    listener: Callable[[Received], Awaitable[None]],
) -> Callable[[Received], Awaitable[None]]:
    """Return a listener that is called only for requests, which expect a reply."""

    async def listen(message: Received) -> None:
        if "CORRELATION_ID" in message.properties:
            await listener(message)

    return listen


async def until_ended(namesrv: str) -> None:
    """Wait for the record that marks the end of a transaction."""
    async with PullConsumer(namesrv) as consumer:
        ends = MessageQueue("RMQ_SYS_TRANS_OP_HALF_TOPIC", "broker-a", 0)
        await consumer.queues(ends.topic)
        await consumer.pull(ends, 0, wait_s=10)


class TestRefusals:
    async def test_a_topic_that_is_not_created_on_demand_is_an_error(self) -> None:
        config = BrokerConfig(auto_create_topics=False)
        async with running_cluster(config) as namesrv, Producer(namesrv) as producer:
            with pytest.raises(RequestError, match="create it") as caught:
                await producer.send(Message("T", b""))
            assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST

    async def test_an_invalid_topic_is_an_error(self, namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            with pytest.raises(IllegalMessageError, match="topic"):
                await producer.send(Message("../x", b""))

    async def test_an_unreachable_name_server_is_an_error(self) -> None:
        with pytest.raises(OSError):
            async with Producer(["127.0.0.1:1", "127.0.0.1:2"]):
                pass

    async def test_the_next_name_server_is_used_if_one_is_unreachable(self, namesrv: str) -> None:
        async with Producer(f"127.0.0.1:1;{namesrv}") as producer:
            assert (await producer.send(Message("T", b""))).status is SendStatus.OK


LIMIT_S = PATIENCE_S + 1
"""The time limit for an attempt to send. It is over only if the test says so."""


class TestRetries:
    """Two brokers that only accept or reject messages."""

    @staticmethod
    @asynccontextmanager
    async def between(answers: dict[str, Handler]) -> AsyncIterator[tuple[Producer, list[str]]]:
        """Return a producer for brokers with these answers, and the names of those it asks."""
        asked: list[str] = []

        def noting(name: str, handler: Handler) -> Handler:
            def handle(connection: Connection, request: RemotingCommand) -> object:
                asked.append(name)
                return handler(connection, request)

            return handle  # type: ignore[return-value]

        names = NameServer(NameServerConfig(listen_port=0))
        port = await names.start()
        servers = []
        topics = TopicConfigTable({"T": TopicConfig("T", 1, 1)})
        for name, handler in answers.items():
            server = RemotingServer({RequestCode.SEND_MESSAGE_V2: noting(name, handler)}, SYSTEM)
            address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
            names.register_local(cluster="C", name=name, address=address, topics=topics)
            servers.append(server)
        try:
            async with Producer(f"127.0.0.1:{port}", timeout_s=LIMIT_S) as producer:
                yield producer, asked
        finally:
            for server in servers:
                await server.stop()
            await names.stop()

    @staticmethod
    def take(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(fields=SendResponse("00" * 16, 0, 7).encode())

    @staticmethod
    def refuse(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise RequestError(ResponseCode.SYSTEM_BUSY, "too much to do")

    @staticmethod
    def forbid(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "not such a message")

    async def test_another_broker_is_tried(self) -> None:
        await self.check_another_is_tried(self.refuse)

    async def test_another_broker_is_tried_after_the_time_limit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits: list[asyncio.Timeout] = []

        def noted(delay: float | None) -> asyncio.Timeout:
            limit = timeout(delay)
            if delay == LIMIT_S:
                limits.append(limit)
            return limit

        def let_it_expire(connection: Connection, request: RemotingCommand) -> None:
            """Do not answer: the time limit of the attempt is over."""
            limits[-1].reschedule(asyncio.get_running_loop().time())

        timeout = asyncio.timeout
        monkeypatch.setattr(asyncio, "timeout", noted)
        await self.check_another_is_tried(let_it_expire)

    async def check_another_is_tried(self, trouble: Handler) -> None:
        async with self.between({"a": trouble, "b": self.take}) as (producer, asked):
            for _ in range(2):  # so that each broker is asked first once
                assert (await producer.send(Message("T", b""))).queue.broker_name == "b"
        assert "a" in asked and asked.count("b") == 2

    async def test_the_last_error_is_raised_if_all_brokers_fail(self) -> None:
        async with self.between({"a": self.refuse, "b": self.refuse}) as (producer, asked):
            with pytest.raises(RequestError, match="too much to do"):
                await producer.send(Message("T", b""))
        assert len(asked) == 3 and set(asked) == {"a", "b"}

    async def test_retries_back_off_while_the_cluster_is_busy(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses: list[float] = []

        async def pause(seconds: float) -> None:
            pauses.append(seconds)

        monkeypatch.setattr("firetrail.client.producers.message_sender.pause", pause)
        await self.test_the_last_error_is_raised_if_all_brokers_fail()
        first, second = pauses
        assert BUSY_S / 2 <= first <= BUSY_S <= second <= 2 * BUSY_S

    async def test_a_permanent_error_is_not_retried(self) -> None:
        async with self.between({"a": self.forbid, "b": self.forbid}) as (producer, asked):
            with pytest.raises(RequestError, match="not such a message"):
                await producer.send(Message("T", b""))
        assert len(asked) == 1
