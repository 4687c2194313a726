"""A member with damaged records lets the others of the in-sync set campaign first."""

import pytest

from firetrail.replication.group.group_memory import NOTHING_SEEN
from firetrail.replication.group.group_view import GroupView, InSyncSet, MemberReport
from firetrail.replication.group.precedence import (
    SHORT_YIELD_S,
    YIELD_S,
    LogCondition,
    Precedence,
)

GOOD, DAMAGED = LogCondition(50), LogCondition(50, 3)
SHORT = LogCondition(50, 3, "the log ends at 50, but replicas had confirmed it up to 70")


def view(*members: int, successor: int = 0, ends: dict[int, int] | None = None) -> GroupView:
    in_sync = InSyncSet(frozenset(members), 0, 1) if members else None
    reports = {number: MemberReport(NOTHING_SEEN, end) for number, end in (ends or {}).items()}
    return GroupView(1, None, in_sync, reports=reports, successor=successor)


@pytest.mark.parametrize(
    ("log", "seen"),
    [
        (GOOD, view(1, 2)),
        *((log, seen) for log in (DAMAGED, SHORT) for seen in (view(1), view())),
        *((log, view(1, 2, successor=1)) for log in (DAMAGED, SHORT)),
    ],
)
def test_a_member_with_a_good_log_or_without_alternative_campaigns_at_once(
    log: LogCondition, seen: GroupView
) -> None:
    assert not Precedence(1).is_left_to_others(5.0, log, seen)


def test_a_damaged_one_waits_and_then_campaigns(caplog: pytest.LogCaptureFixture) -> None:
    precedence = Precedence(1)
    for _ in range(2):
        assert precedence.is_left_to_others(5.0, DAMAGED, view(1, 2))
        assert precedence.is_left_to_others(5.0 + YIELD_S - 0.1, DAMAGED, view(1, 2))
        assert not precedence.is_left_to_others(5.0 + YIELD_S, DAMAGED, view(1, 2))
        precedence.forget()  # somebody holds the lease
    assert caplog.text.count("damaged places in the log: 3") == 2


def test_one_that_lacks_confirmed_messages_waits_longer(caplog: pytest.LogCaptureFixture) -> None:
    precedence = Precedence(1)
    assert precedence.is_left_to_others(5.0, SHORT, view(1, 2))
    assert precedence.is_left_to_others(5.0 + SHORT_YIELD_S - 0.1, SHORT, view(1, 2))
    assert not precedence.is_left_to_others(5.0 + SHORT_YIELD_S, SHORT, view(1, 2))
    assert f"{SHORT.shortfall}. Other in-sync members may be elected first" in caplog.text


@pytest.mark.parametrize(
    ("ends", "waits"),
    [
        ({}, True),
        ({2: 40}, True),  # member 3 may have everything
        ({2: 40, 3: 51}, True),
        ({2: 40, 3: 49}, False),
        ({2: 50, 3: 50}, False),  # of equal logs, that of the smallest number
    ],
)
def test_if_all_lack_messages_the_longest_log_wins_at_once(
    ends: dict[int, int], waits: bool
) -> None:
    seen = view(1, 2, 3, ends=ends)
    assert Precedence(1).is_left_to_others(5.0, SHORT, seen) is waits
