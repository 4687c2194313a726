"""Strangers give way to newcomers when all slots of a server, or of the process, are taken."""

import asyncio
from collections.abc import Iterator
from unittest.mock import Mock
from weakref import WeakSet

import pytest

from firetrail.remoting.servers.slots import ConnectionSlots
from firetrail.settings import descriptors

FULL = "the limit of 2 connections is reached"


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without servers, which may have three connections."""
    monkeypatch.setattr(ConnectionSlots, "_of_process", WeakSet())
    monkeypatch.setattr(descriptors, "CONNECTIONS_LEAST", 3)
    yield


def slots(most: int = 10) -> ConnectionSlots:
    return ConnectionSlots(most, lambda: 256)


def occupants(*servers: ConnectionSlots) -> list[Mock]:
    """Connections that take a slot of each server in turn."""
    found = [Mock() for _ in servers]
    assert [server.take(each) for server, each in zip(servers, found, strict=True)] == [
        None for _ in servers
    ]
    return found


async def test_the_oldest_stranger_gives_its_slot_to_a_newcomer() -> None:
    server = slots(2)
    oldest, other, newcomer = occupants(server, server, server)
    reason = f"it is the oldest on which no request has succeeded, and {FULL}"
    oldest.drop.assert_called_once_with(reason)
    other.drop.assert_not_called()
    server.free(oldest)  # the event loop closes it later
    assert len(server) == 2
    occupants(server)
    other.drop.assert_called_once_with(reason)
    newcomer.drop.assert_not_called()


async def test_a_newcomer_is_refused_if_all_others_are_proven() -> None:
    server = slots(2)
    for proven in occupants(server, server):
        server.prove(proven)
    newcomer = Mock()
    assert server.take(newcomer) == FULL
    server.free(newcomer)
    assert len(server) == 2
    server.free(proven)
    assert server.take(newcomer) is None


async def test_a_stranger_of_any_server_gives_way_when_descriptors_run_out() -> None:
    broker, namesrv, grpc = slots(), slots(), slots()
    known, oldest, other = occupants(broker, namesrv, grpc)
    broker.prove(known)
    (newcomer,) = occupants(broker)
    (said,) = oldest.drop.call_args.args
    assert said.endswith(
        "and all servers of this process have 3 connections, the limit with 256 file descriptors, "
        "half of which are for the queues of a store; raise the limit of descriptors "
        "(LimitNOFILE of systemd, or ulimit -n)"
    )
    assert (len(broker), len(namesrv), len(grpc)) == (2, 0, 1)
    broker.prove(newcomer)
    grpc.prove(other)
    assert str(namesrv.take(Mock())).startswith("all servers of this process have 3 connections")


async def test_a_stranger_of_another_event_loop_is_left_alone() -> None:
    def fill() -> Mock:
        async def take() -> Mock:
            return occupants(elsewhere, elsewhere, elsewhere)[0]

        return asyncio.run(take())

    elsewhere, here = slots(), slots()
    stranger = await asyncio.to_thread(fill)
    assert here.take(Mock()) is not None
    stranger.drop.assert_not_called()
