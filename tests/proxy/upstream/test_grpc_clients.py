"""The clients of the proxy: who is known, whose stream gets commands, and when one is forgotten."""

import pytest
from tests.proxy.fakes import METADATA, FakeCall, FakeStream

from firetrail.access.client_owners import ClientOwners
from firetrail.auth.caller import Caller
from firetrail.auth.policies import User
from firetrail.errors import ProxyError, RequestError
from firetrail.proxy.schema.messages import Code, TelemetryCommand
from firetrail.proxy.transport.call import StatusCode
from firetrail.proxy.upstream import grpc_clients as module
from firetrail.proxy.upstream.grpc_clients import (
    CLAIM_S,
    SILENT_S,
    STREAMS_MAX,
    UNREAD_MAX,
    ProxyClient,
    ProxyClients,
)
from firetrail.remoting.wire.codes import Language


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def clients(time: Time) -> ProxyClients:
    return ProxyClients(time)


def test_a_client_is_known_by_its_id(clients: ProxyClients) -> None:
    client = clients.of(FakeCall())
    assert (client.client_id, client.peer, client.language) == (
        "c1",
        "192.0.2.7:4321",
        Language.PYTHON,
    )
    assert clients.of(FakeCall(peer="192.0.2.8:1")) is client
    assert client.peer == "192.0.2.8:1"
    assert clients.find("c1") is client
    assert len(clients) == 1


@pytest.mark.parametrize("language", [{}, {"x-mq-language": "COBOL"}])
def test_any_language_is_accepted(clients: ProxyClients, language: dict[str, str]) -> None:
    client = clients.of(FakeCall({"x-mq-client-id": "c1", **language}))
    assert client.language == Language.OTHER


@pytest.mark.parametrize("metadata", [{}, {"x-mq-client-id": " "}, {"x-mq-client-id": "x" * 256}])
def test_a_call_without_client_id_is_refused(
    clients: ProxyClients, metadata: dict[str, str]
) -> None:
    with pytest.raises(ProxyError, match="x-mq-client-id") as caught:
        clients.of(FakeCall(metadata))
    assert caught.value.code == Code.CLIENT_ID_REQUIRED


def test_the_number_of_clients_is_limited(
    clients: ProxyClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 1)
    clients.of(FakeCall())
    with pytest.raises(ProxyError, match=r"has 1 gRPC clients, .* of at most 1") as caught:
        clients.of(FakeCall(METADATA | {"x-mq-client-id": "c2"}))
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    clients.of(FakeCall())


def test_one_address_leaves_room_for_the_clients_of_others(
    clients: ProxyClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 10)

    def enter(number: int, peer: str) -> ProxyClient:
        call = FakeCall(METADATA | {"x-mq-client-id": f"c{number}"})
        call.peer = peer
        return clients.of(call)

    greedy = [enter(number, "192.0.2.7:1") for number in range(5)]
    with pytest.raises(ProxyError, match=r"address 192\.0\.2\.7 has 5 gRPC clients"):
        enter(5, "192.0.2.7:2")
    enter(6, "192.0.2.8:1")
    clients.leave(greedy[0])
    clients.leave(greedy[1])
    enter(7, "192.0.2.7:1")


def test_the_newest_stream_gets_commands(clients: ProxyClients) -> None:
    client = clients.of(FakeCall())
    older, newer = FakeStream(), FakeStream()
    clients.attach(client, older)
    clients.attach(client, newer)
    assert client.tell(TelemetryCommand())
    assert (len(older.sent), len(newer.sent)) == (0, 1)
    newer.finish()
    assert client.tell(TelemetryCommand())
    assert (len(older.sent), len(newer.sent)) == (1, 1)
    older.finish()
    assert not client.tell(TelemetryCommand())


def test_a_client_that_does_not_read_gets_no_more_commands(clients: ProxyClients) -> None:
    client, stream = clients.of(FakeCall()), FakeStream()
    clients.attach(client, stream)
    stream.waiting_bytes = UNREAD_MAX + 1
    assert not client.tell(TelemetryCommand())
    assert not stream.sent


def test_the_number_of_streams_is_limited(clients: ProxyClients) -> None:
    client = clients.of(FakeCall())
    streams = [FakeStream() for _ in range(STREAMS_MAX + 2)]
    for stream in streams:
        clients.attach(client, stream)
    assert [stream.is_open for stream in streams] == [False] * 2 + [True] * STREAMS_MAX
    assert streams[0].ended == (StatusCode.ABORTED, "the client has opened newer telemetry streams")


def test_silent_clients_are_forgotten(clients: ProxyClients, time: Time) -> None:
    left: list[ProxyClient] = []
    clients.on_left.append(left.append)
    silent, stream = clients.of(FakeCall()), FakeStream()
    clients.attach(silent, stream)
    time.now += SILENT_S
    talking = clients.of(FakeCall(METADATA | {"x-mq-client-id": "c2"}))
    clients.expire()
    assert not left
    time.now += 1
    clients.expire()
    assert left == [silent]
    assert stream.ended == (StatusCode.ABORTED, "the client was silent for 120 s")
    assert clients.find("c2") is talking
    assert clients.of(FakeCall()) is not silent


def test_a_client_leaves_once(clients: ProxyClients) -> None:
    left: list[ProxyClient] = []
    clients.on_left.append(left.append)
    client = clients.of(FakeCall())
    clients.leave(client)
    clients.leave(client)
    assert left == [client]
    assert clients.find("c1") is None


def test_the_id_of_a_client_stays_claimed_while_it_calls(time: Time) -> None:
    owners = ClientOwners(time)
    clients = ProxyClients(time, owners=owners)

    def called_by(name: str) -> FakeCall:
        call = FakeCall()
        call.caller = Caller(User(name, "x" * 16), "192.0.2.7", is_checked=True)
        return call

    for _ in range(30):
        clients.of(called_by("alice"))
        time.now += CLAIM_S / 2
    eve = called_by("eve")
    assert eve.caller is not None
    with pytest.raises(RequestError, match="belongs to another user"):
        owners.claim("c1", eve.caller)  # as a heartbeat over remoting does
    owners._drop("c1")  # as if its user had too many ids
    with pytest.raises(ProxyError, match="client c1 belongs to another user"):
        clients.of(eve)
    clients.of(called_by("alice"))
