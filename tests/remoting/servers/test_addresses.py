"""Limits for each address that clients connect from."""

import pytest
from tests.remoting.clocks import Clock

from firetrail.remoting.servers import addresses
from firetrail.remoting.servers.addresses import AddressShare, ClientAddresses, RequestRates
from firetrail.remoting.servers.client_limits import ServerLimits


def test_an_address_has_a_limited_number_of_connections() -> None:
    found = ClientAddresses(ServerLimits(connections_per_address=2), Clock())
    one, two = (found.open("10.0.0.1") for _ in range(2))
    assert isinstance(one, AddressShare)
    assert one is two
    refusal = "10.0.0.1 has 2 connections, the limit for an address; connections_per_address"
    assert str(found.open("::ffff:10.0.0.1")).startswith(refusal)
    assert isinstance(found.open("10.0.0.2"), AddressShare)
    found.close(one)
    assert isinstance(found.open("10.0.0.1"), AddressShare)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", ""])
def test_clients_of_this_machine_are_exempt(host: str) -> None:
    for limit_loopback in (False, bool(host)):
        limits = ServerLimits(connections_per_address=1, limit_loopback=limit_loopback)
        found = ClientAddresses(limits, Clock())
        found.open(host)
        assert isinstance(found.open(host), str if limit_loopback else AddressShare)


def test_the_addresses_of_an_ipv6_network_count_as_one() -> None:
    found = ClientAddresses(ServerLimits(connections_per_address=1), Clock())
    assert isinstance(found.open("2001:db8:1:2::1"), AddressShare)
    assert str(found.open("2001:db8:1:2:3::4%eth0")).startswith("2001:db8:1:2::/64 has 1 ")
    assert isinstance(found.open("2001:db8:1:3::1"), AddressShare)


def test_an_address_opens_connections_at_a_limited_rate() -> None:
    clock = Clock()
    found = ClientAddresses(ServerLimits(connection_rate=5), clock)
    for _ in range(10):
        share = found.open("10.0.0.1")
        assert isinstance(share, AddressShare)
        found.close(share)
    assert "opens more than 5 connections per second" in str(found.open("10.0.0.1"))
    assert isinstance(found.open("10.0.0.2"), AddressShare)
    clock.now += 0.2
    assert isinstance(found.open("10.0.0.1"), AddressShare)


def test_requests_and_bytes_above_the_rate_cause_a_pause() -> None:
    clock = Clock()
    found = ClientAddresses(ServerLimits(request_rate=10, byte_rate=1000), clock)
    share = found.open("127.0.0.1")
    assert isinstance(share, AddressShare)
    assert share.charge(20, 100, clock.now) == 0
    assert share.charge(5, 100, clock.now) == 0.5
    assert share.charge(0, 3800, clock.now) == 2.0


def test_a_request_during_a_pause_is_refused_and_does_not_count() -> None:
    rates = RequestRates(1, 0, 0.0)
    assert [rates.admits(10, 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert not rates.admits(10, 0.9)
    assert rates.admits(10, 1.0)


def test_addresses_without_a_connection_are_forgotten() -> None:
    clock = Clock()
    found = ClientAddresses(ServerLimits(connection_rate=5), clock)
    share = found.open("10.0.0.1")
    assert isinstance(share, AddressShare)
    found.close(share)
    found.sweep()
    assert len(found) == 1  # its rate is remembered
    clock.now += 1
    found.sweep()
    assert len(found) == 0


def test_the_number_of_addresses_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "IDLE_MAX", 10)
    found = ClientAddresses(ServerLimits(), Clock())
    for number in range(100):
        share = found.open(f"10.0.0.{number}")
        assert isinstance(share, AddressShare)
        found.close(share)
    assert len(found) == 10
