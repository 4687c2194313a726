"""A member with damaged records lets the others of the in-sync set campaign first."""

import pytest

from firetrail.replication.group.group_view import GroupView, InSyncSet
from firetrail.replication.group.precedence import YIELD_S, Precedence


def view(*members: int, successor: int = 0) -> GroupView:
    in_sync = InSyncSet(frozenset(members), 0, 1) if members else None
    return GroupView(1, None, in_sync, successor=successor)


@pytest.mark.parametrize(
    ("damaged", "seen"),
    [(0, view(1, 2)), (3, view(1)), (3, view()), (3, view(1, 2, successor=1))],
    ids=["good log", "alone", "no group yet", "chosen"],
)
def test_a_member_without_damage_or_alternative_campaigns_at_once(
    damaged: int, seen: GroupView
) -> None:
    assert not Precedence(1).is_left_to_others(5.0, damaged, seen)


def test_a_damaged_one_waits_and_then_campaigns(caplog: pytest.LogCaptureFixture) -> None:
    precedence = Precedence(1)
    for _ in range(2):
        assert precedence.is_left_to_others(5.0, 3, view(1, 2))
        assert precedence.is_left_to_others(5.0 + YIELD_S - 0.1, 3, view(1, 2))
        assert not precedence.is_left_to_others(5.0 + YIELD_S, 3, view(1, 2))
        precedence.forget()  # somebody holds the lease
    assert caplog.text.count("damaged places in the log: 3") == 2
