"""Requests about roles to a broker that does not answer."""

import socket

import pytest

from firetrail.broker.replica.role_requests import Reachability, try_ask_status
from firetrail.pace.reminders import Reminders
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.replica_headers import HandOverHeader
from firetrail.remoting.wire.codes import RequestCode


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_hand_over_that_is_asked_for_again_and_again_is_logged_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "firetrail.broker.replica.role_requests")
    clock, client = Clock(), RemotingClient()
    reminders, reachability = Reminders(clock), Reachability(clock)
    header = HandOverHeader("127.0.0.1:2", cancel=True)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nothing listens on the port, and no other process takes it
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for second in range(100):
            clock.now = second
            code = RequestCode.HAND_OVER
            assert (
                await try_ask_status(client, address, code, header, reminders, reachability) is None
            )
            assert reachability.is_gone == (second >= 3)
    await client.close()
    failure = f"HAND_OVER of {address} failed: {address}: cannot be reached: Connection refused"
    assert [record.getMessage() for record in caplog.records] == [failure] * 2
