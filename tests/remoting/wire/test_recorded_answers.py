"""Answers that wait until their request was recorded."""

import asyncio
from concurrent.futures import Future

import pytest
from tests.remoting.loopbacks import ECHO, FAIL, SLOW, serving

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.servers import remoting_server as server
from firetrail.remoting.wire.command import RemotingCommand


class Records:
    """Records requests when it is told to, but failed ones at once."""

    def __init__(self) -> None:
        self.waiting: list[Future[None]] = []

    def __call__(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None
    ) -> Future[None] | None:
        if response is None or response.code:
            return None
        self.waiting.append(Future())
        return self.waiting[-1]


@pytest.mark.parametrize("code", [ECHO, SLOW])
async def test_an_answer_waits_for_its_record(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RECORDED_S", 60.0)
    records = Records()
    async with serving(audit=records) as loopback:
        answer = asyncio.create_task(loopback.ask(code))
        while not records.waiting:
            await asyncio.sleep(0.001)
        assert (await loopback.ask(FAIL)).code  # others are answered meanwhile
        assert not answer.done()
        records.waiting[0].set_result(None)
        assert (await answer).code == 0


async def test_an_answer_does_not_wait_for_a_disk_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "RECORDED_S", 0.01)
    async with serving(audit=Records()) as loopback:
        assert (await loopback.ask(ECHO)).code == 0
