"""The members that must confirm a message, and changes of the in-sync set."""

from collections.abc import Iterable

import pytest

from firetrail.replication.group.group_view import InSyncSet, SetChange
from firetrail.replication.group.in_sync_members import ABSENT_S, SILENT_S, InSyncMembers

LAG_S = 10.0
Looked = tuple[float, int, dict[int, int]]
"""A time, the end of the log, and the ends that connected members have."""


def holding(members: Iterable[int], *, offset: int = 0) -> InSyncMembers:
    """The set as member 1 sees it, which has just won epoch 5 at time 0."""
    return InSyncMembers(1, 5, InSyncSet(frozenset(members), offset, 7), LAG_S, now=0.0)


def asked(change: SetChange) -> tuple[int, int, list[int], int]:
    """The epoch of the holder, the revision that is replaced, and the new set."""
    return change.epoch, change.before.revision, sorted(change.members), change.after.offset


def test_all_other_members_of_the_set_must_confirm() -> None:
    assert holding({1, 2, 3}).required == {2, 3}
    assert holding({1}).required == set()


def test_a_member_that_lags_is_removed_and_waited_for_until_the_engine_confirms() -> None:
    members = holding({1, 2, 3})
    assert members.step(9.0, 100, {2: 100, 3: 50}, least=2) is None
    change = members.step(11.0, 100, {2: 100, 3: 50}, least=2)
    assert change is not None and asked(change) == (5, 7, [1, 2], 100)
    assert members.required == {2, 3}
    members.observe(InSyncSet(frozenset({1, 2}), 100, 9))
    assert members.required == {2}


def test_a_member_that_is_always_a_little_behind_stays() -> None:
    members = holding({1, 2})
    for second in range(60):
        assert members.step(float(second), 100 * second + 100, {2: 100 * second}, least=1) is None


def test_a_member_that_falls_further_and_further_behind_is_removed() -> None:
    members = holding({1, 2})
    changes = [members.step(s, 100 * s, {2: 50 * s}, least=1) for s in range(1, 60)]
    assert changes[-1] is not None and changes[-1].members == {1}


def test_the_set_keeps_as_many_members_as_must_confirm() -> None:
    members = holding({1, 2})
    assert members.step(100.0, 10, {}, least=2) is None
    change = members.step(100.0, 10, {}, least=1)
    assert change is not None and change.members == {1}


def test_a_member_that_is_not_connected_leaves_soon() -> None:
    members = holding({1, 2, 3})
    assert members.step(ABSENT_S, 100, {2: 100, 3: 100}, least=2) is None
    assert members.step(2 * ABSENT_S, 100, {2: 100}, least=2) is None
    change = members.step(2 * ABSENT_S + 0.1, 100, {2: 100}, least=2)
    assert change is not None and change.members == {1, 2}


@pytest.mark.parametrize(
    ("before", "then"),
    [
        pytest.param((1.0, 100, {2: 100}), (30.0, 100, {}), id="the one that lags longest"),
        pytest.param((5.0, 100, {2: 10, 3: 100}), (30.0, 200, {2: 10}), id="not connected"),
        pytest.param(
            (ABSENT_S, 100, {2: 100}), (ABSENT_S + 0.1, 100, {2: 100}), id="never connected"
        ),
    ],
)
def test_the_member_that_leaves_first(before: Looked, then: Looked) -> None:
    members = holding({1, 2, 3})
    assert members.step(*before, least=2) is None
    change = members.step(*then, least=2)
    assert change is not None and change.members == {1, 2}


def stepped(members: InSyncMembers, until: float, acks: dict[int, int]) -> SetChange | None:
    """Step ten times per second, with a log that ends at 200; return the last change."""
    change = None
    for tenth in range(int(until * 10) + 1):
        change = members.step(tenth / 10, 200, acks, least=2)
    return change


def test_a_connected_member_that_confirms_nothing_leaves_soon() -> None:
    """Its machine has lost power, or a firewall drops its packets: the connection stays open."""
    members = holding({1, 2, 3})
    assert stepped(members, SILENT_S - 0.5, {2: 200, 3: 100}) is None
    change = stepped(members, SILENT_S + 0.5, {2: 200, 3: 100})
    assert change is not None and change.members == {1, 2}


def test_a_member_that_confirms_slowly_does_not_leave_soon() -> None:
    members = holding({1, 2, 3})
    for second in range(2 * int(SILENT_S)):
        acks = {2: 200 + second, 3: 100 + second}
        assert members.step(second, 200 + second, acks, least=2) is None


def test_nobody_is_silent_while_the_holder_itself_was_paused() -> None:
    members = holding({1, 2, 3})
    assert stepped(members, 1, {2: 200, 3: 200}) is None
    assert members.step(SILENT_S + 2, 300, {2: 300, 3: 200}, least=2) is None


def test_silent_members_stay_if_nobody_confirms() -> None:
    """The holder may be the one that is cut off."""
    assert stepped(holding({1, 2, 3}), 2 * SILENT_S, {2: 100, 3: 100}) is None


@pytest.mark.parametrize(("connected", "least"), [({}, 1), ({}, 2), ({2: 100}, 3)])
def test_nobody_leaves_soon_if_that_would_not_help(connected: dict[int, int], least: int) -> None:
    """A master without any member may be the one that is cut off."""
    members = holding({1, 2, 3, 4})
    assert members.step(LAG_S, 100, connected, least=least) is None


def test_a_member_that_is_about_to_stop_leaves_at_once() -> None:
    members, least = holding({1, 2, 3}), 2
    change = members.step(0.1, 100, {2: 100, 3: 50}, least, leaving={3})
    assert change is not None and asked(change) == (5, 7, [1, 2], 100)
    assert members.required == {2, 3}  # until the engine has confirmed it
    members.observe(InSyncSet(change.members, 100, 9))
    for tenth in range(2, 20):  # and it does not join again
        assert members.step(tenth / 10, 100, {2: 100, 3: 100}, least, leaving={3}) is None
    assert 3 not in members.required


def test_a_member_that_is_about_to_stop_does_not_join() -> None:
    members = holding({1, 2})
    members.step(0.1, 100, {2: 100, 3: 100}, least=2)
    assert members.required == {2, 3}
    assert members.step(0.2, 100, {2: 100, 3: 100}, least=2, leaving={3}) is None
    assert members.required == {2}


@pytest.mark.parametrize(
    ("acks", "least", "remain"),
    [
        pytest.param({2: 9, 3: 9}, 3, None, id="too few would remain"),
        pytest.param({3: 9}, 1, None, id="nobody else is connected"),
        pytest.param({2: 9, 3: 9}, 1, {1, 2}, id="another one is connected"),
        pytest.param({2: 9}, 2, None, id="it has disconnected"),
    ],
)
def test_when_a_member_that_is_about_to_stop_leaves(
    acks: dict[int, int], least: int, remain: set[int] | None
) -> None:
    change = holding({1, 2, 3}).step(0.1, 9, acks, least, leaving={3})
    assert (set(change.members) if change is not None else None) == remain


def test_one_of_two_members_that_are_about_to_stop_stays() -> None:
    assert holding({1, 2, 3}).step(0.1, 9, {2: 9, 3: 9}, 2, leaving={2, 3}) is None
    change = holding({1, 2, 3, 4}).step(0.1, 9, {2: 9, 3: 9, 4: 9}, 2, leaving={2, 3})
    assert change is not None and change.members == {1, 4}


def test_a_holder_that_hands_over_leaves_the_set() -> None:
    change = holding({1, 2, 3}, offset=40).leave({2: 100, 3: 100}, least=2)
    assert change is not None
    assert asked(change) == (5, 7, [2, 3], 40)


def test_a_holder_that_continues_after_a_hand_over_joins_again() -> None:
    members = holding({1, 2, 3})
    members.leave({2: 100, 3: 100}, least=2)
    members.observe(InSyncSet(frozenset({2, 3}), 0, 9))
    change = members.step(1.0, 100, {2: 100, 3: 100}, least=2)
    assert change is not None and asked(change) == (5, 9, [1, 2, 3], 100)


@pytest.mark.parametrize(
    ("members", "connected"), [({1, 2}, {2}), ({1, 2, 3}, {2}), ({1}, {2, 3}), ({2, 3}, {2, 3})]
)
def test_a_holder_stays_in_the_set_if_too_few_would_remain(
    members: set[int], connected: set[int]
) -> None:
    assert holding(members).leave(dict.fromkeys(connected, 100), least=2) is None


def test_a_new_member_is_waited_for_before_the_engine_is_asked() -> None:
    members = holding({1})
    assert members.step(1.0, 100, {2: 100}, least=1) is None
    assert members.required == {2}
    change = members.step(1.2, 150, {2: 150}, least=1)
    assert change is not None and asked(change) == (5, 7, [1, 2], 150)


def test_a_new_member_must_reach_the_end_of_the_log_as_it_was_when_it_became_required() -> None:
    members = holding({1})
    members.step(1.0, 100, {2: 100}, least=1)
    assert members.step(1.2, 150, {2: 100}, least=1) is None  # 150 may be acknowledged already
    assert members.step(1.4, 200, {2: 149}, least=1) is None
    assert members.step(1.6, 250, {2: 150}, least=1) is not None


def test_a_member_far_behind_does_not_join() -> None:
    members = holding({1})
    for tenth in range(1, 20):
        assert members.step(tenth / 10, 1000, {2: tenth}, least=1) is None
        assert members.required == set()


def test_a_joining_member_that_disconnects_is_not_waited_for_any_more() -> None:
    members = holding({1})
    members.step(1.0, 100, {2: 100}, least=1)
    assert members.required == {2}
    members.step(1.2, 100, {}, least=1)
    assert members.required == set()


def test_a_change_without_an_answer_is_repeated_and_both_sets_count() -> None:
    members = holding({1, 3})
    members.step(1.0, 100, {2: 100, 3: 100}, least=1)
    change = members.step(1.2, 100, {2: 100, 3: 100}, least=1)
    assert change is not None and change.members == {1, 2, 3}
    assert members.step(60.0, 100, {}, least=1) is change  # the engine may execute it any time
    assert members.required == {2, 3}
    members.observe(InSyncSet(frozenset({1, 2, 3}), 100, 9))
    later = members.step(61.0, 100, {}, least=1)
    assert later is not None and later.members == {1} and later.before.revision == 9


def test_an_older_set_changes_nothing() -> None:
    members = holding({1, 2})
    members.observe(InSyncSet(frozenset({1}), 0, 6))
    assert members.required == {2}


def test_the_offset_of_a_set_is_one_that_every_member_has_and_never_falls() -> None:
    members = holding({1, 2, 3}, offset=50)
    change = members.step(30.0, 200, {2: 120}, least=2)
    assert change is not None and change.members == {1, 2} and change.after.offset == 120
    members = holding({1, 2, 3}, offset=50)
    change = members.step(30.0, 200, {2: 20}, least=2)
    assert change is not None and change.after.offset == 50
