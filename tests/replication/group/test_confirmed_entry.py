"""The holder of the lease writes down what was confirmed a moment ago."""

from collections.abc import Callable
from typing import cast

import pytest

from firetrail.replication.group.confirmed_entry import AGE_S, ConfirmedEntry
from firetrail.replication.group.election import Coordinator, Election, LeaseTiming
from firetrail.replication.group.group_view import ConfirmedNote, GroupView, InSyncSet
from firetrail.replication.group.lineage import Lineage

GROUP = "aa"


class Engine:
    def __init__(self) -> None:
        self.noted: list[tuple[int, ConfirmedNote]] = []

    def note_confirmed(self, epoch: int, note: ConfirmedNote) -> GroupView:
        self.noted.append((epoch, note))
        return view(note.offset)


def view(
    noted: int = -1, *, offset: int = 0, version: int = 7, decided: int = 0, group: str = GROUP
) -> GroupView:
    members = frozenset({1, 2})
    lineage = Lineage(GROUP, 7, 1001, decided=decided).continued(members, offset)
    note = ConfirmedNote(group, version, noted) if noted >= 0 else None
    return GroupView(5, None, InSyncSet(members, offset, 4, lineage), confirmed=note)


class Holder:
    def __init__(self) -> None:
        self.engine = Engine()
        self._entry = ConfirmedEntry(cast(Coordinator, self.engine))

    def step(self, now: float, end: int, *, epoch: int = 3, seen: GroupView | None = None) -> bool:
        request: Callable[[], GroupView] | None
        request = self._entry.request(now, epoch, seen or view(), end)
        if request is None:
            return False
        request()
        return True


def test_an_offset_is_written_when_it_is_old_enough() -> None:
    holder = Holder()
    assert not holder.step(100.0, 500)
    assert not holder.step(100.0 + AGE_S - 0.1, 900)
    assert holder.step(100.0 + AGE_S, 1000)
    assert holder.engine.noted == [(3, ConfirmedNote(GROUP, 8, 500))]
    assert not holder.step(100.0 + AGE_S + 0.1, 1100, seen=view(500))
    assert holder.step(100.0 + 2 * AGE_S, 1200, seen=view(500))
    assert holder.engine.noted[-1][1].offset == 1000


@pytest.mark.parametrize("seen", [view(500), view(offset=500)])
def test_nothing_is_written_while_nothing_is_confirmed(seen: GroupView) -> None:
    holder = Holder()
    for step in range(5):
        assert not holder.step(step * AGE_S, 500, seen=seen)


def test_only_the_holder_writes_and_only_what_it_has_seen_as_the_holder() -> None:
    holder = Holder()
    for step in range(3):
        assert not holder.step(step * AGE_S, 500, epoch=0)
    assert not holder.step(3 * AGE_S, 600)
    assert not holder.step(4 * AGE_S, 700, epoch=5)  # another lease
    assert holder.step(5 * AGE_S, 800, epoch=5)
    assert holder.engine.noted == [(5, ConfirmedNote(GROUP, 8, 700))]


@pytest.mark.parametrize(
    ("seen", "needed"),
    [
        (view(offset=400), 400),
        (view(500, offset=400), 500),
        (view(300, offset=400), 400),
        (view(500, offset=400, group="another"), 400),
        (view(500, offset=400, version=8, decided=8), 500),
        (view(500, offset=400, version=7, decided=8), 400),  # an operator has decided since
        (GroupView(5, None, None, confirmed=ConfirmedNote(GROUP, 7, 500)), 0),
    ],
)
def test_a_note_counts_within_its_group_until_an_operator_decides(
    seen: GroupView, needed: int
) -> None:
    assert seen.confirmed_offset == needed


def test_a_member_whose_log_is_older_does_not_campaign() -> None:
    election = Election(1, LeaseTiming(5.0), may_found=False)
    election.observe(view(500))
    assert election.campaign_obstacle(500) == election.older_log(500) == ""
    text = "its log ends at 499, but acknowledged messages reach at least to 500: its disk was "
    assert (
        election.campaign_obstacle(499) == election.older_log(499) == text + "replaced or restored"
    )
    stranger = Election(3, LeaseTiming(5.0), may_found=False)
    stranger.observe(view(500))
    assert stranger.older_log(0) == ""
