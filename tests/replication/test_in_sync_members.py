"""Which members must confirm a message, and when the in-sync set changes."""

from collections.abc import Iterable

from firetrail.replication.election import InSyncSet, SetChange
from firetrail.replication.in_sync_members import InSyncMembers

LAG_S = 10.0


def holding(members: Iterable[int], *, offset: int = 0) -> InSyncMembers:
    """The set as member 1 sees it, which has just won epoch 5 at time 0."""
    return InSyncMembers(1, 5, InSyncSet(frozenset(members), offset, 7), LAG_S, now=0.0)


def test_all_other_members_of_the_set_must_confirm() -> None:
    assert holding({1, 2, 3}).required == {2, 3}
    assert holding({1}).required == set()


def test_a_member_that_lags_is_removed_and_waited_for_until_the_engine_confirms() -> None:
    members = holding({1, 2, 3})
    assert members.step(9.0, 100, {2: 100}, least=2) is None
    change = members.step(11.0, 100, {2: 100}, least=2)
    assert change == SetChange(5, 7, frozenset({1, 2}), 100)
    assert members.required == {2, 3}
    members.saw(InSyncSet(frozenset({1, 2}), 100, 9))
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


def test_the_member_that_lags_longest_is_removed_first() -> None:
    members = holding({1, 2, 3})
    members.step(5.0, 100, {2: 100}, least=2)
    change = members.step(30.0, 100, {}, least=2)
    assert change is not None and change.members == {1, 2}


def test_a_member_that_is_not_connected_is_removed_first() -> None:
    members = holding({1, 2, 3})
    members.step(5.0, 100, {2: 10, 3: 100}, least=2)
    change = members.step(30.0, 200, {2: 10}, least=2)
    assert change is not None and change.members == {1, 2}


def test_a_new_member_is_waited_for_before_the_engine_is_asked() -> None:
    members = holding({1})
    assert members.step(1.0, 100, {2: 100}, least=1) is None
    assert members.required == {2}
    change = members.step(1.2, 150, {2: 150}, least=1)
    assert change == SetChange(5, 7, frozenset({1, 2}), 150)


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
    members.saw(InSyncSet(frozenset({1, 2, 3}), 100, 9))
    later = members.step(61.0, 100, {}, least=1)
    assert later is not None and later.members == {1} and later.before == 9


def test_an_older_set_changes_nothing() -> None:
    members = holding({1, 2})
    members.saw(InSyncSet(frozenset({1}), 0, 6))
    assert members.required == {2}


def test_the_offset_of_a_set_is_one_that_every_member_has_and_never_falls() -> None:
    members = holding({1, 2, 3}, offset=50)
    change = members.step(30.0, 200, {2: 120}, least=2)
    assert change is not None and change.members == {1, 2} and change.offset == 120
    members = holding({1, 2, 3}, offset=50)
    change = members.step(30.0, 200, {2: 20}, least=2)
    assert change is not None and change.offset == 50
