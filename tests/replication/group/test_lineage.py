"""The past of a group: every version has an id that depends on all earlier ones."""

from dataclasses import replace

import pytest

from firetrail.replication.group.lineage import EPOCH_STEP, HISTORY_MAX, Lineage, next_epoch

SET = frozenset({1, 2})


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
    decided = own.decided_now(frozenset({"of another"}), 40, 3002).continued(SET, 7)
    assert (decided.version, decided.epoch, decided.decided) == (41, 3002, 41)
    assert {own.id, "of another"} <= {*decided.history}
    assert decided.is_genuine(SET, 7)


def test_two_members_never_begin_the_same_epoch() -> None:
    for known in (0, 1, 999, 1000, 1001, 123_456):
        numbers = [next_epoch(member, known) for member in range(1, EPOCH_STEP)]
        assert len({*numbers}) == len(numbers)
        assert min(numbers) > known and max(numbers) <= known + EPOCH_STEP
        assert all(number % EPOCH_STEP == m for m, number in enumerate(numbers, 1))
