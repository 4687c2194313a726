"""Errors of failover: which of them last, and what the log says about them."""

import errno
import logging

import pytest
from tests.helpers import ManualClock

from firetrail.errors import ElectionError, NotReachedError
from firetrail.pace.reminders import FIRST_S
from firetrail.replication.group.failover_errors import LASTING_S, FailoverErrors, GroupWork
from firetrail.replication.group.group_status import GroupProblem
from firetrail.system import System

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def errors(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> FailoverErrors:
    caplog.set_level(logging.INFO)
    return FailoverErrors(System(clock=clock))


def test_failover_works_again_when_all_work_does(
    errors: FailoverErrors, caplog: pytest.LogCaptureFixture
) -> None:
    errors.note(GroupWork.CHANGES, ElectionError("etcd has no space"))
    errors.note(GroupWork.WATCH, NotReachedError("etcd does not answer"))
    errors.done(GroupWork.WATCH)
    errors.done(GroupWork.LEASE)
    assert errors.current == ("etcd has no space", GroupProblem.NO_COORDINATOR)
    assert caplog.messages == [
        "failover does not work at the moment: etcd has no space; will retry",
        "failover does not work at the moment: etcd does not answer; will retry",
    ]
    errors.done(GroupWork.CHANGES)
    assert errors.current == ("", GroupProblem.NONE)
    errors.done(GroupWork.CHANGES)
    assert caplog.messages[2:] == ["failover works again; it did not because of: etcd has no space"]


def test_work_that_is_not_due_any_longer_fails_no_longer_after_a_while(
    errors: FailoverErrors, clock: ManualClock
) -> None:
    errors.note(GroupWork.CHANGES, ElectionError("etcd has no space"))
    errors.idle(GroupWork.CHANGES)
    assert errors.current[0]
    clock.advance(round(LASTING_S * 1000))
    errors.idle(GroupWork.WATCH)
    assert errors.current[0]
    errors.idle(GroupWork.CHANGES)
    assert not errors.current[0]


def test_an_error_that_lasts_is_logged_at_growing_intervals(
    errors: FailoverErrors, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        errors.note(GroupWork.LEASE, NotReachedError("etcd does not answer"))
    assert len(caplog.messages) == 1
    clock.advance(round(FIRST_S * 1000))
    errors.note(GroupWork.LEASE, NotReachedError("etcd does not answer"))
    errors.note(GroupWork.LEASE, NotReachedError("etcd does not answer"))
    assert len(caplog.messages) == 2


def test_the_next_failure_is_logged_at_once(
    errors: FailoverErrors, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        errors.note(GroupWork.WATCH, NotReachedError("etcd does not answer"))
        errors.done(GroupWork.WATCH)
    assert [text.partition(";")[0] for text in caplog.messages] == 2 * [
        "failover does not work at the moment: etcd does not answer",
        "failover works again",
    ]


def test_an_unexpected_error_is_logged_with_its_place(
    errors: FailoverErrors, caplog: pytest.LogCaptureFixture
) -> None:
    errors.note(GroupWork.WATCH, ElectionError("etcd refuses"))
    errors.note(GroupWork.LEASE, ZeroDivisionError())
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]
    assert caplog.messages[1] == (
        "failover does not work at the moment: ZeroDivisionError; will retry"
    )


def test_a_full_disk_is_a_problem_of_its_own(errors: FailoverErrors) -> None:
    errors.note(GroupWork.WATCH, FULL)
    assert errors.current == ("[Errno 28] No space left on device", GroupProblem.FULL_DISK)
    errors.note(GroupWork.WATCH, NotReachedError("etcd does not answer"))
    assert errors.current == ("etcd does not answer", GroupProblem.NO_COORDINATOR)


def test_a_member_that_stops_says_nothing(
    errors: FailoverErrors, caplog: pytest.LogCaptureFixture
) -> None:
    errors.silence()
    errors.note(GroupWork.WATCH, NotReachedError("etcd does not answer"))
    errors.done(GroupWork.WATCH)
    assert not caplog.messages
