"""The limits of what brokers and clients can make a name server keep."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.connections import connected

from firetrail.errors import ProtocolError, RequestError
from firetrail.namesrv import kv as kv_module
from firetrail.namesrv import routes
from firetrail.namesrv.kv import KVConfig
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.server import NameServer
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages import registration_body
from firetrail.remoting.messages.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from firetrail.remoting.messages.registration_body import decode_registration, encode_registration
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.servers.configured_limits import server_limits
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM


@pytest.fixture
async def served() -> AsyncIterator[tuple[NameServer, str]]:
    server = NameServer(NameServerConfig(listen_port=0))
    port = await server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.stop()


async def register(
    address: str, name: str, *topics: str, expiry_ms: int = 0, filter_servers: Sequence[str] = ()
) -> RemotingCommand:
    client = RemotingClient()
    table = TopicConfigTable({topic: TopicConfig(topic, 1, 1) for topic in topics})
    fields = {
        "brokerName": name,
        "brokerAddr": f"10.0.0.1:{sum(name.encode())}",
        "clusterName": "C",
        "haServerAddr": "",
        "brokerId": "0",
        "heartbeatTimeoutMillis": str(expiry_ms),
    }
    body = RegisterBrokerBody(table, list(filter_servers)).encode()
    try:
        command = RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)
        return await client.request(address, command)
    finally:
        await client.close()


Served = tuple[NameServer, str]


def test_routes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that many brokers have count once for each of them."""
    monkeypatch.setattr(routes, "ROUTES_MAX", 4)
    table = TopicConfigTable({topic: TopicConfig(topic, 1, 1) for topic in ("T1", "T2")})
    found = routes.Routes()
    for name in ("b1", "b2"):
        who = routes.Registration("C", name, f"{name}:1")
        assert not found.refusal(who, table.topic_config_table)
        found.register(who, table, now=0.0)
    other = routes.Registration("C", "b3", "b3:1")
    text = "there would be more than 4 routes, one for each topic and broker"
    assert found.refusal(other, ["T1"]) == text
    assert not found.refusal(who, table.topic_config_table), "these are known"


async def test_filter_servers_are_limited(served: Served) -> None:
    assert (await register(served[1], "b1", filter_servers=["10.0.0.1:1"])).code == 0
    answer = await register(served[1], "b1", filter_servers=["10.0.0.1:1"] * 65)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "it has 65 filter servers; at most 64 are allowed" in str(answer.remark)
    answer = await register(served[1], "b1", filter_servers=["x" * 256])
    assert "a name or address of 256 characters" in str(answer.remark)


async def test_brokers_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BROKERS_MAX", 0)
    answer = await register(served[1], "b1")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "broker b1 is not registered: there are 0 brokers" in (answer.remark or "")


async def test_topics_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "TOPICS_MAX", 2)
    answer = await register(served[1], "b1", "T1", "T2", "T3")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "there are 0 topics; with 3 more" in (answer.remark or "")
    assert (await register(served[1], "b1", "T1", "T2")).code == 0
    assert not served[0].routes.has_room_for("T3")


async def test_names_have_a_limited_length(served: Served) -> None:
    answer = await register(served[1], "b" * 256)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "256 characters; 255 are allowed" in (answer.remark or "")


async def test_a_broker_cannot_ask_to_stay_for_ever(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NameServer, "disconnected", lambda self, connection: None)
    server = NameServer(NameServerConfig(listen_port=0))
    port = await server.start()
    try:
        assert (await register(f"127.0.0.1:{port}", "b1", expiry_ms=10**15)).code == 0
        assert [b.expiry_s for b in server.routes._all()] == [routes.EXPIRY_MAX_S]
    finally:
        await server.stop()


def test_a_compressed_registration_has_a_limited_number_of_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = TopicConfigTable({f"T{n}": TopicConfig(f"T{n}", 1, 1) for n in range(3)})
    raw = encode_registration(RegisterBrokerBody(table), compressed=True)
    assert decode_registration(raw, compressed=True).topic_config_serialize_wrapper == table
    monkeypatch.setattr(registration_body, "REGISTERED_MAX", 2)
    with pytest.raises(ProtocolError, match="3 topics in a registration; 2 are allowed"):
        decode_registration(raw, compressed=True)


async def test_values_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_module, "VALUES_MAX", 1)
    kv = KVConfig(tmp_path / "kv" / "kvConfig.json", SYSTEM)
    await kv.put("n", "k", "1")
    await kv.put("n", "k", "2")
    with pytest.raises(RequestError, match="there are 1 values, which is the limit"):
        await kv.put("other", "k", "3")
    with pytest.raises(RequestError, match="at most 16384 are allowed"):
        await kv.put("n", "k", "x" * 16_384)
    assert kv.get("n", "k") == "2"
    assert (tmp_path / "kv" / "kvConfig.json").stat().st_mode & 0o077 == 0


async def test_silent_strangers_do_not_keep_brokers_out() -> None:
    server = NameServer(NameServerConfig(listen_port=0, max_connections=2))
    address = f"127.0.0.1:{await server.start()}"
    async with connected(address) as (stranger, _), connected(address):
        assert (await register(address, "a")).code == ResponseCode.SUCCESS
        assert not await stranger.read()
    await server.stop()


def test_the_settings_have_the_defaults_of_the_limits() -> None:
    assert server_limits(NameServerConfig()) == ServerLimits()
