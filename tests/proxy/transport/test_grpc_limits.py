"""Accounts of memory."""

from firetrail.proxy.transport.grpc_limits import MemoryAccount


def test_an_account_and_the_one_above_have_limits() -> None:
    server = MemoryAccount(100)
    first, second = MemoryAccount(80, server), MemoryAccount(80, server)
    assert first.take(80)
    assert not first.take(1)
    assert not second.take(21)
    assert second.take(20)
    assert (first.taken, second.taken, server.taken) == (80, 20, 100)
    first.give_back(80)
    assert second.take(60)
    assert server.taken == 80
