"""A request to become the master that arrives while the broker starts is carried out afterwards."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.broker.pairs import SLAVE, pair, send
from tests.broker.replica.hand_over.test_interrupted_hand_over import die_in
from tests.client.clusters import until

from firetrail.broker.replica.hand_over.live_master_check import LiveMaster
from firetrail.broker.roles.promotion import Promotion
from firetrail.broker.services.registration import RegistrationService
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import BrokerRole

OVERLAP_S = 0.3
"""How long the start is kept from ending, so that a change that does not wait for it begins."""


class Starts:
    """Promotes the broker that registers next, before its registration has started."""

    def __init__(self, client: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self._client = client
        self._start: Callable[[RegistrationService], Awaitable[None]] = RegistrationService.start
        self.services: list[RegistrationService] = []
        self._has_second = asyncio.Event()

        async def start(service: RegistrationService) -> None:
            await self._intercept(service)

        monkeypatch.setattr(RegistrationService, "start", start)

    async def _intercept(self, service: RegistrationService) -> None:
        self.services.append(service)
        if len(self.services) == 1:
            command = RemotingCommand(RequestCode.PROMOTE_REPLICA, {"force": "true"})
            await self._client.ask(service._address, command)
            with suppress(TimeoutError):
                async with asyncio.timeout(OVERLAP_S):
                    await self._has_second.wait()
        else:
            self._has_second.set()
        await self._start(service)


async def test_nothing_of_the_slave_is_left_on_a_master_promoted_during_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, old, new):
        await old.broker.stop()
        await new.broker.stop()
        starts = Starts(group.client, monkeypatch)
        new = await group.start("new", SLAVE)
        await until(lambda: new.broker.role is BrokerRole.ASYNC_MASTER)
        await until(lambda: not new.broker._replicas.promotion.step)
        assert [service._task is None for service in starts.services] == [True, False]
        assert "the store is closed" not in caplog.text
        assert await send(new, b"second") == 1
        await starts.services[-1]._register_all()
        assert group.master == new.broker.address


async def test_a_hand_over_is_not_settled_while_the_replica_is_promoted_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (group, _, new):
        await die_in("copy_tables", new)
        is_started = asyncio.Event()

        async def after_the_start(_: Promotion) -> LiveMaster:
            await is_started.wait()
            return LiveMaster()

        monkeypatch.setattr(Promotion, "_present_master", after_the_start)
        Starts(group.client, monkeypatch)
        new = await group.start("new", SLAVE)
        is_started.set()
        await until(lambda: new.broker.role is BrokerRole.ASYNC_MASTER)
        await until(lambda: not new.broker._replicas.promotion.step)
        assert "was interrupted" not in caplog.text
        assert new.broker.epochs.number == 3
        assert await send(new, b"second") == 1
