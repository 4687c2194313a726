"""Connections are counted, checked and forgotten in the same way by every server."""

import asyncio
from unittest.mock import Mock

import pytest
from tests.client.clusters import until

from firetrail.remoting.servers import acceptor
from firetrail.remoting.servers.acceptor import Acceptor
from firetrail.remoting.servers.client_limits import ConnectionLimits
from firetrail.system import SYSTEM


def connection(peer: str = "192.0.2.7:1", deadline: float | None = None) -> Mock:
    return Mock(host=peer.partition(":")[0], peer=peer, handshake_deadline=deadline)


def accepting(limits: ConnectionLimits | None = None) -> Acceptor[Mock]:
    def check(accepted: Mock, now: float) -> None:
        accepted.check(now)

    return Acceptor(asyncio.Protocol, check, limits or ConnectionLimits(), SYSTEM)


async def test_the_check_of_one_connection_does_not_end_those_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "SWEEP_S", 0.001)
    accepts = accepting()
    broken, other = connection(), connection("192.0.2.8:1")
    broken.check.side_effect = RuntimeError
    broken.abort.side_effect = lambda: accepts.closed(broken)
    accepts.opened(broken)
    accepts.opened(other)
    await accepts.listen("127.0.0.1", 0)
    await until(lambda: broken.abort.called and other.check.call_count > 2)
    accepts.close()
    await accepts.disconnect(0.0)
    assert "192.0.2.7:1 could not be checked; it is disconnected" in caplog.text
    assert accepts.connections == {other}


async def test_a_client_that_is_late_with_the_handshake_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "SWEEP_S", 0.001)
    accepts = accepting()
    now = asyncio.get_running_loop().time()
    late, timely = connection(deadline=now - 1), connection("192.0.2.8:1", now + 100)
    late.drop.side_effect = lambda reason: accepts.closed(late)
    accepts.opened(late)
    accepts.opened(timely)
    await accepts.listen("127.0.0.1", 0)
    await until(lambda: late.drop.called and timely.check.called)
    accepts.close()
    await accepts.disconnect(0.0)
    (reason,) = late.drop.call_args.args
    assert "not finished, the TLS handshake in time" in reason
    assert not late.check.called and not timely.drop.called


async def test_a_connection_beyond_the_limit_is_refused_and_never_counted() -> None:
    accepts = accepting(ConnectionLimits(connections=1))
    first, second = connection(), connection("192.0.2.8:1")
    assert accepts.opened(first) is accepts.share(first) is not None
    accepts.proven(first)
    assert accepts.opened(second) is None
    second.abort.assert_called_once_with()
    assert accepts.share(second) is None
    assert not accepts.closed(second)
    assert accepts.closed(first)
    assert not accepts.closed(first)
    assert accepts.opened(second) is not None
    assert accepts.connections == {second}


async def test_a_stranger_is_closed_for_a_newcomer_whose_address_may_connect() -> None:
    accepts = accepting(ConnectionLimits(connections=2, connections_per_address=1))
    stranger, other, newcomer = (connection(f"192.0.2.{n}:1") for n in (7, 8, 9))
    accepts.opened(stranger)
    accepts.opened(other)
    assert accepts.opened(connection("192.0.2.8:2")) is None
    stranger.drop.assert_not_called()
    assert accepts.opened(newcomer) is not None
    stranger.drop.assert_called_once()
    other.drop.assert_not_called()
    assert accepts.closed(stranger)  # its owner learns of its end
    assert accepts.connections == {other, newcomer}


async def test_connections_that_do_not_end_in_time_are_aborted() -> None:
    accepts = accepting()
    late = connection()
    accepts.opened(late)
    await accepts.listen("127.0.0.1", 0)
    accepts.close()
    await accepts.disconnect(asyncio.get_running_loop().time())
    late.abort.assert_called_once_with()
