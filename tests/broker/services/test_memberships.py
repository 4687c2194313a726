"""The limits of groups: for a connection, and in all, shared by users or addresses."""

from typing import cast

import pytest

from firetrail.auth.caller import Caller
from firetrail.auth.policies import User, UserType
from firetrail.broker.services import memberships
from firetrail.broker.services.memberships import GroupMembership, Memberships
from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.wire.codes import ResponseCode


class FakeConnection:
    def __init__(self, host: str = "10.0.0.1") -> None:
        self.host = host


def connected(host: str = "10.0.0.1") -> Connection:
    return cast(Connection, FakeConnection(host))


def caller(name: str, kind: UserType = UserType.NORMAL) -> Caller:
    return Caller(User(name, "secret", kind), "10.0.0.1", is_checked=True)


def some(count: int, prefix: str = "P") -> set[GroupMembership]:
    return {("producer", f"{prefix}{number}") for number in range(count)}


class Table:
    """The memberships, and heartbeats that join groups."""

    def __init__(self) -> None:
        self.kept = Memberships(lambda: 0.0)

    def beat(
        self, connection: Connection, groups: set[GroupMembership], by: Caller | None = None
    ) -> None:
        self.kept.check(connection, by, groups)
        for group in groups:
            self.kept.add(connection, group)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(memberships, "CONNECTION_MAX", 4)
    monkeypatch.setattr(memberships, "TOTAL_MAX", 12)
    return Table()


def test_a_user_has_a_share_on_all_its_connections_and_addresses(table: Table) -> None:
    table.beat(connected("10.0.0.1"), some(4), caller("alice"))
    table.beat(connected("10.0.0.2"), some(2), caller("alice"))
    text = "user alice has 6 groups of clients, and all callers have 6 of at most 12"
    with pytest.raises(RequestError, match=text) as refused:
        table.beat(connected("10.0.0.3"), some(1), caller("alice"))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    table.beat(connected("10.0.0.1"), some(3), caller("bob"))


def test_an_address_has_one_if_there_are_no_users(table: Table) -> None:
    table.beat(connected("2001:db8::1"), some(4))
    with pytest.raises(RequestError, match=r"address 2001:db8::/64 has 4 groups of clients"):
        table.beat(connected("2001:db8::2"), some(3))
    table.beat(connected("10.0.0.1"), some(3))


def test_however_many_take_all_they_get_the_next_one_finds_room(table: Table) -> None:
    for number in range(3):
        connection = connected(f"10.0.0.{number}")
        with pytest.raises(RequestError):
            for count in range(1, 5):
                table.beat(connection, some(count))
            table.beat(connected(f"10.0.0.{number}"), some(3))
    table.beat(connected("10.0.0.9"), some(1))


def test_super_users_have_only_those_of_a_connection_and_of_all(table: Table) -> None:
    for _ in range(2):
        table.beat(connected(), some(4), caller("proxy", UserType.SUPER))
    with pytest.raises(RequestError, match="one connection would be in 5 groups"):
        table.beat(connected(), some(5), caller("proxy", UserType.SUPER))


def test_known_groups_count_once(table: Table) -> None:
    connection = connected()
    for _ in range(5):
        table.beat(connection, some(4))
    assert table.kept.total == 4


def test_groups_that_are_left_make_room(table: Table) -> None:
    first, second = connected(), connected()
    table.beat(first, some(4))
    table.beat(second, some(2))
    table.kept.remove(first, ("producer", "P0"))
    table.beat(second, some(3))
    assert sorted(table.kept.leave(first)) == [("producer", f"P{n}") for n in (1, 2, 3)]
    assert table.kept.total == 3
    assert table.kept.leave(first) == []
    table.kept.leave(second)
    assert (table.kept.total, len(table.kept._shares), table.kept._holders) == (0, 0, {})
