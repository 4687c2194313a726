"""The peers that may connect to the HA port."""

import asyncio
import socket
from collections.abc import Iterable
from functools import partial

import pytest
from tests.broker.brokers import talking

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.services.ha_peers import ASK_INTERVAL_S, HAPeers
from firetrail.errors import ConfigError
from firetrail.remoting.messages.bodies import TopicConfigTable
from firetrail.remoting.wire.codes import RequestCode
from firetrail.settings.settings_table import Live
from firetrail.system import Clock


class FakeClock(Clock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Peers:
    """The rules of a broker at 10.0.0.1, and the members that name servers list."""

    def __init__(self, allowed: str = "") -> None:
        self.members: list[str] = []
        self.asked = 0
        self.live = Live(BrokerConfig(ha_allowed_peers=allowed, ha_host="10.0.0.2"))
        self.clock = FakeClock()
        self._peers = HAPeers(self.live, "10.0.0.1:10911", self._members, self.clock)

    async def _members(self) -> Iterable[str]:
        self.asked += 1
        return self.members

    async def refusal(self, ip: str) -> str:
        return await asyncio.to_thread(self._peers.refusal, ip)


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "10.0.0.1", "10.0.0.2"])
async def test_this_machine_may_connect(ip: str) -> None:
    assert await Peers().refusal(ip) == ""


async def test_members_may_connect_as_soon_as_name_servers_know_them() -> None:
    peers = Peers()
    assert "no broker named broker-a at 10.0.0.5" in await peers.refusal("10.0.0.5")
    peers.members = ["10.0.0.5:10911", "[fd00::5]:10911"]
    peers.clock.now += ASK_INTERVAL_S
    assert await peers.refusal("10.0.0.5") == ""
    assert await peers.refusal("fd00::5") == ""
    assert peers.asked == 2


async def test_unknown_peers_do_not_make_a_broker_ask_all_the_time() -> None:
    peers = Peers()
    refusals = [await peers.refusal(f"10.0.1.{n}") for n in range(20)]
    assert all("set ha_allowed_peers" in refusal for refusal in refusals)
    assert peers.asked == 1


async def test_a_member_may_have_a_host_name() -> None:
    peers = Peers()
    peers.members = ["localhost:10911", "no.such.host.invalid:10911"]
    await peers.refusal("10.0.0.5")
    assert peers._peers._known >= {"127.0.0.1"}


async def test_the_setting_replaces_the_rule() -> None:
    peers = Peers("10.1.0.0/16;fd00::/8;10.2.3.4")
    assert [await peers.refusal(ip) for ip in ("10.1.255.1", "fd00::7", "10.2.3.4")] == [""] * 3
    for ip in ("10.2.3.5", "127.0.0.1", "10.0.0.1"):
        assert await peers.refusal(ip) == f"{ip} is not among ha_allowed_peers"
    peers.live.current = peers.live.current.replace(ha_allowed_peers="10.2.3.5")
    assert await peers.refusal("10.2.3.5") == ""


@pytest.mark.parametrize("bad", ["10.0.0.300", "host", "10.0.0.0/33", "10.0.0.1;x"])
def test_the_setting_is_checked(bad: str) -> None:
    with pytest.raises(ConfigError, match="IP addresses or networks"):
        BrokerConfig(ha_allowed_peers=bad)


async def test_a_broker_refuses_others(caplog: pytest.LogCaptureFixture) -> None:
    async with talking(config=BrokerConfig(ha_allowed_peers="10.0.0.5")) as talk:
        host, port = talk.broker.config.ha_host, talk.broker.config.ha_listen_port
        connect = partial(socket.create_connection, (host, port), 10)
        with await asyncio.to_thread(connect) as peer:
            assert await asyncio.to_thread(peer.recv, 1) == b""
        assert "127.0.0.1 is not among ha_allowed_peers" in caplog.text
        await talk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"ha_allowed_peers=127.0.0.0/8")
        with await asyncio.to_thread(connect) as peer:
            peer.sendall(bytes(8))
            assert await asyncio.to_thread(peer.recv, 1)


async def test_members_come_from_all_name_servers() -> None:
    async with talking() as other:
        config = BrokerConfig(namesrv=other.broker.namesrv)
        async with talking(config=config) as talk:
            name_server = other.broker._name_server
            assert name_server is not None
            name_server.register_local(
                cluster="DefaultCluster",
                name="broker-a",
                address="10.0.0.7:10911",
                topics=TopicConfigTable(),
                broker_id=1,
            )
            members = await talk.broker._parts.registration.members()
            assert {"10.0.0.7:10911", talk.broker.address} <= members
