"""The past of a group: every version has an id that depends on all earlier ones."""

from dataclasses import replace

import pytest

from firetrail.replication.group.lineage import (
    EPOCH_STEP,
    HISTORY_MAX,
    OVERRULED_MAX,
    Lineage,
    LogDecision,
    next_epoch,
)

SET = frozenset({1, 2})


def decision(overruled: str, *asked: int) -> LogDecision:
    return LogDecision(frozenset({overruled}), frozenset(asked), 40, 3002)


def test_a_version_continues_the_one_before() -> None:
    first = Lineage().continued(SET, 0, 1001)
    second = first.continued(SET, 7)
    assert first.group == second.group != ""
    assert (first.version, second.version) == (1, 2)
    assert (first.epoch, second.epoch) == (1001, 1001)
    assert second.history == (first.id, second.id)
    assert first.is_genuine(SET, 0) and second.is_genuine(SET, 7)


def test_two_versions_with_the_same_content_differ() -> None:
    first = Lineage().continued(SET, 0)
    assert first.continued(SET, 7).id != first.continued(SET, 7).id


@pytest.mark.parametrize(
    ("edited", "members", "offset"),
    [
        ({}, frozenset({1, 2, 3}), 7),
        ({}, SET, 8),
        ({"version": 9}, SET, 7),
        ({"epoch": 9}, SET, 7),
        ({"group": "other"}, SET, 7),
        ({"decided": 2}, SET, 7),
        ({"overruled": ("id",)}, SET, 7),
        ({"asked": (1,)}, SET, 7),
        ({"history": ()}, SET, 7),
    ],
)
def test_an_entry_that_was_edited_is_not_genuine(
    edited: dict[str, object], members: frozenset[int], offset: int
) -> None:
    second = Lineage().continued(SET, 0).continued(SET, 7)
    assert not replace(second, **edited).is_genuine(members, offset)  # type: ignore[arg-type]


def test_old_versions_are_forgotten() -> None:
    lineage = Lineage()
    for _ in range(HISTORY_MAX + 3):
        lineage = lineage.continued(SET, 0)
        assert lineage.is_genuine(SET, 0)
    assert (lineage.version, len(lineage.history)) == (HISTORY_MAX + 3, HISTORY_MAX)


def test_a_decision_continues_what_every_member_has_seen() -> None:
    own = Lineage().continued(SET, 0, 1001)
    decided = own.with_decision(decision("of another")).continued(SET, 7)
    assert (decided.version, decided.epoch, decided.decided) == (41, 3002, 41)
    assert decided.continues(own.id) and decided.continues("of another")
    assert decided.is_genuine(SET, 7)


@pytest.mark.parametrize("before", [0, 250, 300])
def test_a_decision_does_not_age(before: int) -> None:
    lineage = Lineage()
    for _ in range(before):
        lineage = lineage.continued(SET, 0)
    lineage = lineage.with_decision(decision("of another")).continued(SET, 0)
    for _ in range(300):
        assert lineage.continues("of another") and lineage.is_genuine(SET, 0)
        lineage = lineage.continued(SET, 0)


def test_the_newest_decisions_are_kept() -> None:
    lineage = Lineage().continued(SET, 0)
    for number in range(OVERRULED_MAX + 3):
        lineage = lineage.with_decision(decision(f"id {number}")).continued(SET, 0)
    assert lineage.overruled == tuple(f"id {n}" for n in range(3, OVERRULED_MAX + 3))


def test_a_decision_leaves_out_who_was_not_asked_and_has_not_seen_it() -> None:
    lineage = Lineage().continued(SET, 0).with_decision(decision("id", 1, 2)).continued(SET, 0)
    assert [lineage.excludes(member, 0) for member in (1, 2, 3)] == [False, False, True]
    assert not lineage.excludes(3, lineage.decided)  # it has followed since
    assert not Lineage().continued(SET, 0).excludes(3, 0)
    again = lineage.with_decision(decision("of 3", 1, 3)).continued(SET, 0)
    assert not again.excludes(3, 0) and again.excludes(2, lineage.decided)


def test_two_members_never_begin_the_same_epoch() -> None:
    for known in (0, 1, 999, 1000, 1001, 123_456):
        numbers = [next_epoch(member, known) for member in range(1, EPOCH_STEP)]
        assert len({*numbers}) == len(numbers)
        assert min(numbers) > known and max(numbers) <= known + EPOCH_STEP
        assert all(number % EPOCH_STEP == m for m, number in enumerate(numbers, 1))
