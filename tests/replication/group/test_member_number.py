"""The number of a member: when it is claimed, and when its address is announced."""

from typing import cast

import pytest

from firetrail.replication.group.election import Coordinator
from firetrail.replication.group.group_view import UNKNOWN, GroupView
from firetrail.replication.group.member_number import MemberNumber

ADDRESS = "127.0.0.1:10911"
EMPTY = GroupView(5, None, None)


class Engine:
    """Binds a number to the first identity."""

    def __init__(self) -> None:
        self.identities: dict[int, str] = {}
        self.addresses: dict[int, str] = {}

    def claim(self, member: int, identity: str) -> str:
        return self.identities.setdefault(member, identity)

    def announce(self, member: int, address: str) -> None:
        self.addresses[member] = address

    @property
    def view(self) -> GroupView:
        return GroupView(
            5, None, None, identities=dict(self.identities), addresses=dict(self.addresses)
        )


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def number(engine: Engine) -> MemberNumber:
    number = MemberNumber(cast(Coordinator, engine), 1, ADDRESS)
    number.identity = "mine"
    return number


def test_a_number_is_claimed_once(number: MemberNumber) -> None:
    assert number.may_claim(EMPTY)
    number.claim(EMPTY)
    assert number.is_own and not number.is_foreign
    assert not number.may_claim(EMPTY)


def test_nothing_is_claimed_before_store_and_group_are_known(
    number: MemberNumber, engine: Engine
) -> None:
    assert not number.may_claim(UNKNOWN)
    assert not MemberNumber(cast(Coordinator, engine), 1, ADDRESS).may_claim(EMPTY)


def test_a_number_that_the_engine_has_lost_is_claimed_again(
    number: MemberNumber, engine: Engine
) -> None:
    number.claim(EMPTY)
    engine.identities.clear()
    number.forget()
    assert not number.is_own and not number.is_foreign
    assert number.may_claim(engine.view)


def test_the_number_of_another_store_stays_foreign(
    number: MemberNumber, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.identities[1] = "another"
    assert number.may_claim(engine.view)  # the engine has the last word
    number.claim(engine.view)
    assert number.is_foreign and not number.is_own
    assert number.store_obstacle(EMPTY).startswith("another store is member 1 of the group")
    assert "this broker cannot be a member of the group: another store" in caplog.text
    assert number.pending_announcement(engine.view) is None


def test_a_copy_of_the_store_of_another_member_claims_nothing(
    number: MemberNumber, engine: Engine
) -> None:
    engine.identities[2] = "mine"
    assert not number.may_claim(engine.view)
    assert "is a copy of that of member 2" in number.store_obstacle(engine.view)


def test_an_address_is_announced_until_the_others_know_it(
    number: MemberNumber, engine: Engine
) -> None:
    assert number.pending_announcement(engine.view) is None  # the number is not its own yet
    number.claim(EMPTY)
    engine.addresses[1] = "127.0.0.1:9"
    announcement = number.pending_announcement(engine.view)
    assert announcement is not None
    announcement()
    assert engine.addresses == {1: ADDRESS}
    assert number.pending_announcement(engine.view) is None
