"""Telemetry streams: settings and their answers, commands to clients, and how streams end."""

import asyncio

import pytest
from tests.client.clusters import until
from tests.proxy.calls.test_client_settings import publishing, subscribing
from tests.proxy.fakes import METADATA, FakeBrokers, FakeCall, FakeStream

from firetrail.errors import RequestError
from firetrail.format.layout import MAGIC_V1
from firetrail.format.record import Record, encode_record
from firetrail.format.values.hosts import Host
from firetrail.proxy.calls import telemetry as module
from firetrail.proxy.calls.telemetry import SETTINGS_WAITING_MAX, Telemetry
from firetrail.proxy.schema.messages import (
    Code,
    Language,
    RecoverOrphanedTransactionCommand,
    Settings,
    Status,
    TelemetryCommand,
    ThreadStackTrace,
    VerifyMessageResult,
)
from firetrail.proxy.transport.call import StatusCode, StreamHandler
from firetrail.proxy.upstream.grpc_clients import ProxyClients
from firetrail.remoting.messages.admin.admin_bodies import ConsumerRunningInfo, DirectlyConsumed
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import CommandFlag, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand


@pytest.fixture(params=["at once", "later"])
def brokers(request: pytest.FixtureRequest) -> FakeBrokers:
    return FakeBrokers(waits=request.param == "later")


class Scene:
    """The streams of some clients."""

    def __init__(self, brokers: FakeBrokers) -> None:
        self.brokers = brokers
        self.clients = ProxyClients(lambda: 0.0)
        self.telemetry = Telemetry(brokers, self.clients, self.orphaned)

    def orphaned(self, broker: str, question: RemotingCommand) -> TelemetryCommand | None:
        if not question.body:
            return None
        return TelemetryCommand(
            recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                transaction_id=broker
            )
        )

    def open(self) -> tuple[FakeStream, StreamHandler]:
        stream = FakeStream()
        return stream, self.telemetry.open(stream)

    def joined(self) -> tuple[FakeStream, StreamHandler]:
        """Open the stream of a consumer, and drop the answer to its settings."""
        stream, handler = self.open()
        client = self.clients.of(stream)
        client.settings = subscribing("G", "T")
        client.settings.user_agent.version = "5.1.2"
        return stream, handler

    def command(self, code: int, **fields: str) -> RemotingCommand:
        return RemotingCommand(code, fields)


@pytest.fixture
def scene(brokers: FakeBrokers) -> Scene:
    return Scene(brokers)


def frame(settings: Settings) -> TelemetryCommand:
    return TelemetryCommand(settings=settings)


def stored(body: bytes = b"verify me") -> bytes:
    """A message of the topic T, as a broker stores it."""
    host = Host("127.0.0.1", 1)
    record = Record(*(0, MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, host, 0, host, 0, 0, body, "T", b""))
    return encode_record(record)


# -- settings ---------------------------------------------------------------------------------


async def test_a_stream_of_an_address_that_is_too_fast_ends(scene: Scene) -> None:
    stream, handler = scene.open()
    stream.too_fast = True
    handler.received(frame(subscribing("G", "T")))
    assert stream.ended is not None
    code, text = stream.ended
    assert (code, text[:35]) == (
        StatusCode.RESOURCE_EXHAUSTED,
        "192.0.2.7 sends more than request_r",
    )
    assert scene.clients.of(FakeCall()).settings is None


async def test_settings_are_answered_every_time(scene: Scene, brokers: FakeBrokers) -> None:
    brokers.groups["G"] = SubscriptionGroupConfig("G", retry_max_times=1)
    stream, handler = scene.open()
    for count in (1, 2):
        handler.received(frame(subscribing("G", "T")))
        await until(lambda count=count: len(stream.sent) == count)  # type: ignore[misc]
    for answer in stream.sent:
        assert answer.status.code == Code.OK
        assert answer.settings.backoff_policy.max_attempts == 2
    assert len(brokers.beats) == 2
    client = scene.clients.of(FakeCall())
    assert client.settings == stream.sent[-1].settings


async def test_answers_keep_the_order_of_the_settings(scene: Scene) -> None:
    stream, handler = scene.open()
    for topic in ("A", "B", "C"):
        handler.received(frame(publishing(topic)))
    await until(lambda: len(stream.sent) == 3)
    topics = [answer.settings.publishing.topics[0].name for answer in stream.sent]
    assert topics == ["A", "B", "C"]


def of_node(settings: Settings) -> Settings:
    settings.user_agent.language = Language.NODE_JS
    return settings


async def test_settings_are_repeated_for_nodejs_clients_with_several_topics(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPEATS_S", (0.001, 0.002))
    stream, handler = scene.open()
    handler.received(frame(of_node(publishing("A", "B"))))
    await until(lambda: len(stream.sent) == 3)
    assert stream.sent[0] == stream.sent[1] == stream.sent[2]
    handler.received(frame(of_node(publishing("A", "B", "C"))))  # only the first ones are repeated
    await until(lambda: len(stream.sent) == 4)
    consumer, handler = scene.open()
    handler.received(frame(of_node(subscribing("G", "A", "B"))))
    await until(lambda: len(consumer.sent) == 3)
    assert len(stream.sent) == 4


@pytest.mark.parametrize("settings", [publishing("A", "B"), of_node(publishing("A"))])
async def test_settings_of_other_clients_are_answered_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(module, "REPEATS_S", (0.0,))
    stream, handler = scene.open()
    handler.received(frame(settings))
    await until(lambda: bool(stream.sent))
    await asyncio.sleep(0)
    assert len(stream.sent) == 1


async def test_a_closed_stream_repeats_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPEATS_S", (3600.0,))
    stream, handler = scene.open()
    handler.received(frame(of_node(publishing("A", "B"))))
    await until(lambda: bool(stream.sent))
    handler.closed()
    (repeat,) = handler._repeats  # type: ignore[attr-defined]
    assert repeat.cancelled()


async def test_a_missing_client_id_is_answered(scene: Scene) -> None:
    stream = FakeStream({})
    handler = scene.telemetry.open(stream)
    (answer,) = stream.sent
    assert answer.status.code == Code.CLIENT_ID_REQUIRED
    assert answer.WhichOneof("command") is None
    assert stream.ended == (StatusCode.OK, "")
    handler.received(frame(publishing("T")))
    handler.closed()
    assert len(stream.sent) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(), "neither for publishing nor for subscribing"),
        (publishing("a b"), "'a b'"),
        (subscribing(""), "the consumer group is blank"),
        (subscribing("G", "T", expression="||"), "||"),
    ],
)
async def test_refused_settings_end_the_stream(scene: Scene, settings: Settings, text: str) -> None:
    stream, handler = scene.open()
    handler.received(frame(settings))
    assert stream.ended is not None
    code, reason = stream.ended
    assert code == StatusCode.INVALID_ARGUMENT
    assert text in reason
    assert not stream.sent


async def test_a_broker_that_refuses_a_client_does_not_end_its_stream(
    scene: Scene, brokers: FakeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    brokers.refusal = RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "changing its role")
    stream, handler = scene.open()
    handler.received(frame(publishing("T")))
    await until(lambda: stream.sent)
    assert stream.sent[0].status.code == Code.OK
    assert "client c1 is not registered yet: code 14: changing its role" in caplog.text


async def test_an_unexpected_error_ends_the_stream(
    scene: Scene, brokers: FakeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.refusal = ZeroDivisionError("a bug")
    stream, handler = scene.open()
    handler.received(frame(publishing("T")))
    await until(lambda: stream.ended)
    assert stream.ended == (StatusCode.INTERNAL, "ZeroDivisionError: a bug")
    assert "unexpected error" in caplog.text


async def test_settings_that_wait_for_brokers_are_limited() -> None:
    scene = Scene(FakeBrokers(waits=True))
    stream, handler = scene.open()
    for _ in range(SETTINGS_WAITING_MAX + 1):
        handler.received(frame(publishing("T")))
    assert stream.ended == (StatusCode.RESOURCE_EXHAUSTED, "the client sends too many settings")
    await until(lambda: not handler._waiting)  # type: ignore[attr-defined]


async def test_the_stream_of_a_client_that_left_serves_it_again(scene: Scene) -> None:
    stream, handler = scene.open()
    scene.clients.leave(scene.clients.of(stream))
    handler.received(frame(publishing("T")))
    await until(lambda: stream.sent)
    client = scene.clients.of(FakeCall())
    assert client.published == {"T"}
    assert client.tell(TelemetryCommand())


async def test_a_stream_ends_with_its_client(scene: Scene) -> None:
    stream, handler = scene.open()
    handler.closed()
    assert stream.ended == (StatusCode.OK, "")
    assert not scene.clients.of(FakeCall()).tell(TelemetryCommand())


# -- commands ---------------------------------------------------------------------------------


async def test_a_transaction_is_asked_for(scene: Scene, brokers: FakeBrokers) -> None:
    stream, _ = scene.joined()
    client = scene.clients.of(FakeCall())
    question = RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, {}, b"half")
    assert brokers.on_command(client, "broker-a", question) is None
    (told,) = stream.sent
    assert told.recover_orphaned_transaction_command.transaction_id == "broker-a"
    damaged = RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE)
    assert brokers.on_command(client, "broker-a", damaged) is None
    stream.finish()
    assert brokers.on_command(client, "broker-a", question) is None
    assert len(stream.sent) == 1


async def test_other_requests_of_brokers(scene: Scene, brokers: FakeBrokers) -> None:
    stream, _ = scene.joined()
    client = scene.clients.of(FakeCall())
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    note = RemotingCommand(code, flag=CommandFlag.ONE_WAY)
    assert brokers.on_command(client, "broker-a", note) is None
    answer = brokers.on_command(client, "broker-a", RemotingCommand(4711))
    assert answer is not None
    refusal = await answer
    assert refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert refusal.remark == "gRPC client c1 cannot answer request 4711"
    assert not stream.sent


async def running_info(scene: Scene, brokers: FakeBrokers, jstack: str) -> RemotingCommand:
    client = scene.clients.of(FakeCall())
    request = RemotingCommand(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": "G", "clientId": "c1", "jstackEnable": jstack},
    )
    answer = brokers.on_command(client, "broker-a", request)
    assert answer is not None
    return await answer


async def test_running_info_without_a_thread_dump(scene: Scene, brokers: FakeBrokers) -> None:
    stream, handler = scene.joined()
    handler.received(frame(subscribing("G", "T")))
    await until(lambda: stream.sent)
    stream.sent.clear()
    found = ConsumerRunningInfo.decode((await running_info(scene, brokers, "false")).content)
    assert [each.topic for each in found.subscription_set] == ["T"]
    assert found.jstack is None
    assert not stream.sent


async def test_a_thread_dump_is_asked_for(scene: Scene, brokers: FakeBrokers) -> None:
    stream, handler = scene.joined()
    asking = asyncio.ensure_future(running_info(scene, brokers, "true"))
    await until(lambda: stream.sent)
    nonce = stream.sent[0].print_thread_stack_trace_command.nonce
    handler.received(TelemetryCommand(thread_stack_trace=ThreadStackTrace(nonce="other")))
    dump = ThreadStackTrace(nonce=nonce, thread_stack_trace="main: idle")
    handler.received(TelemetryCommand(thread_stack_trace=dump))
    found = ConsumerRunningInfo.decode((await asking).content)
    assert found.jstack == "main: idle"
    assert found.properties == {"PROP_CLIENT_VERSION": "5.1.2"}


async def test_a_silent_client_is_busy(
    scene: Scene, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    stream, _ = scene.joined()
    answer = await running_info(scene, brokers, "true")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "gRPC client c1 has not answered within 0.01 s",
    )
    stream.finish()
    assert (await running_info(scene, brokers, "true")).code == ResponseCode.SYSTEM_BUSY


async def test_questions_are_limited(
    scene: Scene, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUESTIONS_MAX", 0)
    stream, _ = scene.joined()
    assert (await running_info(scene, brokers, "true")).code == ResponseCode.SYSTEM_BUSY
    assert not stream.sent


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (Code.OK, "CR_SUCCESS"),
        (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
        (99999, "CR_LATER"),
    ],
)
async def test_a_message_is_verified(
    scene: Scene, brokers: FakeBrokers, code: int, result: str
) -> None:
    stream, handler = scene.joined()
    client = scene.clients.of(FakeCall(METADATA))
    request = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, {}, stored())
    answer = brokers.on_command(client, "broker-a", request)
    assert answer is not None
    asking = asyncio.ensure_future(answer)
    await until(lambda: stream.sent)
    command = stream.sent[0].verify_message_command
    assert (command.message.topic.name, command.message.body) == ("T", b"verify me")
    outcome = VerifyMessageResult(nonce=command.nonce)
    status = Status(code=code, message="done")
    handler.received(TelemetryCommand(status=status, verify_message_result=outcome))
    found = DirectlyConsumed.decode((await asking).content)
    assert (found.consume_result, found.remark) == (result, "done")


async def test_a_damaged_message_is_not_verified(scene: Scene, brokers: FakeBrokers) -> None:
    scene.joined()
    client = scene.clients.of(FakeCall())
    answer = brokers.on_command(
        client, "broker-a", RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    )
    assert answer is not None
    assert (await answer).remark == "the message is damaged"
