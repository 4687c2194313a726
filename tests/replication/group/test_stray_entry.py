"""The entry of a leader that no member wrote: when it is deleted."""

from collections.abc import Callable
from typing import cast

import pytest

from firetrail.replication.group.election import Coordinator
from firetrail.replication.group.group_view import GroupView
from firetrail.replication.group.stray_entry import StrayEntry

TTL_S = 10.0
NO_ENTRY = GroupView(5, None, None)


def entry(created: int) -> GroupView:
    return GroupView(9, None, None, unleased=created)


class Engine:
    def __init__(self) -> None:
        self.removed: list[int] = []

    def remove_unleased(self, created: int) -> GroupView:
        self.removed.append(created)
        return NO_ENTRY


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def stray(engine: Engine) -> StrayEntry:
    return StrayEntry(cast(Coordinator, engine), TTL_S)


def run(removal: Callable[[], GroupView] | None) -> bool:
    if removal is not None:
        removal()
    return removal is not None


def test_an_entry_is_deleted_after_the_time_of_a_lease(
    stray: StrayEntry, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    assert not run(stray.removal(100.0, NO_ENTRY))
    assert not run(stray.removal(200.0, entry(7)))
    assert not run(stray.removal(200.0 + TTL_S - 0.1, entry(7)))
    assert run(stray.removal(200.0 + TTL_S, entry(7)))
    assert engine.removed == [7]
    assert [text.endswith("it is deleted in 10 s") for text in caplog.messages] == [True]


def test_a_deletion_that_had_no_effect_is_tried_again_later(
    stray: StrayEntry, engine: Engine
) -> None:
    stray.removal(200.0, entry(7))
    assert run(stray.removal(200.0 + TTL_S, entry(7)))
    assert not run(stray.removal(201.0 + TTL_S, entry(7)))
    assert run(stray.removal(200.0 + 2 * TTL_S, entry(7)))
    assert engine.removed == [7, 7]


def test_another_entry_has_a_time_of_its_own(stray: StrayEntry, engine: Engine) -> None:
    """Somebody may have written it again, and a master may have seen only the first one."""
    stray.removal(200.0, entry(7))
    assert not run(stray.removal(200.0 + TTL_S, entry(8)))
    assert run(stray.removal(200.0 + 2 * TTL_S, entry(8)))
    assert engine.removed == [8]


def test_an_entry_that_is_gone_is_not_deleted(stray: StrayEntry) -> None:
    stray.removal(200.0, entry(7))
    assert not run(stray.removal(200.0 + TTL_S, NO_ENTRY))
    assert not run(stray.removal(200.0 + TTL_S, entry(7)))
