"""Shares of a limit: a greedy caller leaves room for the others, however many there are."""

import logging
from itertools import count

import pytest

from firetrail.auth.caller import Caller
from firetrail.auth.policies import User, UserType
from firetrail.remoting.servers.fair_shares import (
    FairShares,
    ShareHolder,
    holder_of,
    unknown_holder,
)
from firetrail.system import SYSTEM

ALICE, BOB = ShareHolder("user alice"), ShareHolder("user bob")
ROOT = ShareHolder("user root", is_super=True)


def shares(most: int) -> FairShares:
    return FairShares("things", "Give some back.", lambda: most, SYSTEM.clock.monotonic)


def take_all(table: FairShares, holder: ShareHolder) -> int:
    """Take as many as possible, and return how many that are."""
    for taken in count():
        if table.excess(holder) is not None:
            return taken
        table.take(holder)
    raise AssertionError


def test_a_greedy_caller_gets_half_and_the_next_a_half_of_the_rest() -> None:
    table = shares(40)
    assert take_all(table, ALICE) == 20
    assert take_all(table, BOB) == 10
    assert take_all(table, ShareHolder("user carol")) == 5


def test_greedy_callers_that_take_turns_get_equal_shares_and_leave_one() -> None:
    table = shares(49)
    callers = [ShareHolder(f"user {number}") for number in range(6)]
    for _ in range(49):
        for caller in callers:
            if table.excess(caller) is None:
                table.take(caller)
    assert [table.held(caller) for caller in callers] == [7] * 6
    assert table.excess(ShareHolder("user new")) is None


def test_the_groups_of_a_caller_share_its_room_in_the_same_way() -> None:
    table = shares(48)
    first, second = ALICE._replace(group="G1"), ALICE._replace(group="G2")
    assert take_all(table, first) == 16
    assert take_all(table, second) == 6
    assert table.held(ALICE) == 22
    assert take_all(table, BOB._replace(group="G1")) == 9


def test_a_super_user_has_what_is_left_and_a_reserve() -> None:
    table = shares(100)
    crowd = [ShareHolder(f"user {number}") for number in range(200)]
    assert sum(take_all(table, each) for each in crowd) == 98
    assert take_all(table, ROOT) == 2


def test_a_group_of_a_super_user_leaves_room_for_its_others() -> None:
    table = shares(40)
    assert take_all(table, ROOT._replace(group="G1")) == 20
    assert table.excess(ROOT._replace(group="G2")) is None


@pytest.mark.parametrize("holder", [ALICE, ROOT, ALICE._replace(group="G")])
def test_many_at_once_are_like_one_after_the_other(holder: ShareHolder) -> None:
    for held in range(30):
        table = shares(60)
        table.take(BOB, 5)
        table.take(holder, held)
        left = take_all(table, holder)
        table.give_back(holder, left)
        assert table.excess(holder, left or 1) is None or not left
        assert table.excess(holder, left + 1) is not None


def test_what_is_given_back_can_be_taken_again() -> None:
    table = shares(40)
    taken = take_all(table, ALICE._replace(group="G"))
    table.give_back(ALICE._replace(group="G"), taken)
    assert (table.total, len(table)) == (0, 0)
    assert take_all(table, ALICE._replace(group="G")) == taken


def test_what_nobody_is_known_to_have_leaves_room() -> None:
    table = shares(40)
    table.take(unknown_holder("G"), 20)
    assert take_all(table, ALICE) == 10


def test_a_refusal_names_the_caller_and_the_remedy_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = shares(4)
    caplog.set_level(logging.WARNING)
    take_all(table, ALICE)
    expected = (
        "user alice has 2 things, and all callers have 2 of at most 4; a caller gets more only "
        "while it has fewer than are free. Give some back."
    )
    assert table.excess(ALICE) == expected
    assert expected in caplog.text
    group = table.excess(ALICE._replace(group="G"))
    assert group is not None
    assert group.startswith("group G of user alice has 0 things")


def test_a_flood_of_refusals_is_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    table = shares(0)
    for _ in range(1000):
        table.excess(ALICE)
    assert 1 <= len(caplog.records) <= 11


@pytest.mark.parametrize(
    ("user", "host", "expected"),
    [
        (User("alice", "secret"), "10.0.0.1", ALICE),
        (User("root", "secret", UserType.SUPER), "10.0.0.1", ROOT),
        (None, "10.0.0.1", ShareHolder("address 10.0.0.1")),
        (None, "2001:db8::7", ShareHolder("address 2001:db8::/64")),
    ],
)
def test_a_caller_is_counted_as_its_user_or_its_address(
    user: User | None, host: str, expected: ShareHolder
) -> None:
    assert holder_of(host, Caller(user, host, is_checked=True)) == expected
    if user is None:
        assert holder_of(host, None, "G") == expected._replace(group="G")
