"""The users of a slave: what its master has changed while it was down is taken over."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.access.actors import ROOT, SECURE, acl, credentials, info
from tests.broker.brokers import SMALL
from tests.broker.pairs import SLAVE, Group
from tests.client.clusters import until
from tests.helpers import ManualClock

from firetrail.access.user_bodies import AclInfo, UserInfo
from firetrail.access.user_store import UserStore
from firetrail.auth.policies import UserStatus
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.user_synchronize import REFUSED_S, UserSynchronize
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

LOGGER = "firetrail.broker.replica.user_synchronize"


class CountingClient(RemotingClient):
    """A client that counts its requests."""

    asked = 0

    async def ask(self, *args: Any) -> RemotingCommand:
        self.asked += 1
        return await super().ask(*args)


class Compared(NamedTuple):
    """The users of a master and of a slave that are compared when a test says so."""

    master: Broker
    there: UserStore
    here: UserStore
    comparing: UserSynchronize
    clock: ManualClock
    client: CountingClient

    async def copy(self) -> None:
        await self.comparing.copy(self.master.address)


@asynccontextmanager
async def compared(config: BrokerConfig = SECURE, by: str = "root") -> AsyncIterator[Compared]:
    async with Broker.running(None, config, SMALL) as master, Broker.running(None, SECURE) as slave:
        here, clock = slave.access.users, ManualClock()
        assert here is not None
        client = CountingClient(access=Access(credentials(by)))
        try:
            there = master.access.users or here
            yield Compared(master, there, here, UserSynchronize(client, here, clock), clock, client)
        finally:
            await client.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


async def test_a_slave_that_was_down_forgets_a_deleted_user(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        **{"authentication": True, "authorization": True},
        **{"init_user": ROOT, "inner_credentials": ROOT},
    }
    async with Group(tmp_path) as group:
        master = (await group.start("master", **settings)).broker
        slave = (await group.start("slave", SLAVE, **settings)).broker
        for each in (master.access.users, slave.access.users):
            assert each is not None
            await each.create(info("yan"))
        await slave.stop()
        assert master.access.users is not None
        await master.access.users.delete("yan")
        slave = (await group.start("slave", SLAVE, **settings)).broker
        users = slave.access.users
        assert users is not None
        await until(lambda: users.find("yan") is None)
    saved = (tmp_path / "slave/config/firetrailUsers.json").read_text()
    assert "yan" not in saved and "root" in saved


async def test_status_type_and_policies_are_those_of_the_master() -> None:
    async with compared() as found:
        for store in (found.there, found.here):
            await store.create(info("yan"))
            await store.create(info("zoe"))
            await store.merge_acl(acl("yan", "Topic:T1 Pub", "Topic:T2 Sub"))
        await found.there.update(UserInfo("yan", user_status="disable"))
        await found.there.delete_acl("User:yan", "Topic:T1")
        await found.there.update(UserInfo("zoe", user_type="Super"))
        await found.copy()
        yan, zoe = found.here.find("yan"), found.here.find("zoe")
        assert yan is not None and zoe is not None
        assert yan.status is UserStatus.DISABLED
        assert AclInfo.of(yan) == AclInfo.of(found.there.by_name["yan"])
        assert yan.password == credentials("yan").secret_key
        assert zoe.is_super
        before = found.here.by_name
        await found.copy()
        assert found.here.by_name is before  # nothing to save


async def test_a_user_that_the_slave_lacks_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    async with compared() as found:
        await found.copy()
        assert ["passwords are not compared" in text for text in warnings(caplog)] == [True]
        await found.there.create(info("yan"))
        await found.copy()  # the command is about to create it here, too
        assert len(warnings(caplog)) == 1
        for _ in range(3):
            await found.copy()
        assert "lacks the users yan" in warnings(caplog)[1]
        assert "firetrail user create NAME --broker" in warnings(caplog)[1]
        assert len(warnings(caplog)) == 2


async def test_passwords_that_the_master_shows_are_copied(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "is_encrypted", property(lambda self: True))
    async with compared(SECURE.replace(return_passwords=True)) as found:
        for store in (found.there, found.here):
            await store.create(info("zoe"))
        await found.there.create(info("yan"))
        await found.there.update(UserInfo("zoe", "another-password-of-zoe"))
        await found.copy()
        assert found.here.by_name["zoe"].password == "another-password-of-zoe"
        assert found.here.by_name["yan"].password == credentials("yan").secret_key
        assert "another-password" not in caplog.text


async def test_a_user_that_is_created_during_the_comparison_stays() -> None:
    async with compared() as found:
        good = found.master._handlers[RequestCode.AUTH_LIST_ACL]

        async def slow(connection: Connection, request: RemotingCommand) -> Any:
            for store in (found.there, found.here):
                await store.create(info("yan"))
            return good(connection, request)

        found.master._handlers[RequestCode.AUTH_LIST_ACL] = slow
        await found.copy()
        assert found.here.find("yan") is not None


async def test_a_refusal_is_logged_once_and_not_repeated_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    async with compared(by="alice") as found:
        await found.there.create(info("alice"))
        for pause_s, requests in ((0.0, 1), (REFUSED_S - 60, 1), (60.0, 2)):
            found.clock.advance(int(pause_s * 1000))
            await found.copy()
            assert found.client.asked == requests
        (warning,) = warnings(caplog)
        assert "refuses to list them" in warning and "super user" in warning


async def test_a_master_without_access_control_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    async with compared(BrokerConfig()) as found:
        await found.copy()
        assert [user.name for user in found.here.users] == ["root"]
        assert "its access control is off" in warnings(caplog)[0]


async def test_a_slave_keeps_its_users_if_the_master_lists_no_super_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with compared() as found:
        found.master._handlers[RequestCode.AUTH_LIST_USER] = lambda _, request: request.answer()
        await found.copy()
        assert found.here.find("root") is not None
        assert "cannot be copied" in caplog.text
