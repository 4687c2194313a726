"""The log of a replica: an expected problem becomes a warning only if it lasts."""

import logging

import pytest
from tests.helpers import ManualClock

from firetrail.replication.replica.follower_journal import FollowerJournal
from firetrail.replication.replica.follower_status import FollowerState

MASTER = "10.0.0.1:10911"
HOUR_MS = 3_600_000


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def journal(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> FollowerJournal:
    caplog.set_level(logging.INFO)
    return FollowerJournal(clock, FollowerState.FOLLOWING, "")


def fail(journal: FollowerJournal, error: str, *, may_be_expected: bool) -> None:
    journal.enter(FollowerState.FAILED, error, MASTER, 0, may_be_expected=may_be_expected)


def test_an_expected_problem_is_no_warning(
    journal: FollowerJournal, caplog: pytest.LogCaptureFixture
) -> None:
    fail(journal, "it is a slave itself", may_be_expected=True)
    assert levels(caplog) == [logging.INFO]


def test_an_expected_problem_after_another_one_is_no_warning(
    journal: FollowerJournal, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that hands over closes its connections first."""
    fail(journal, "it has closed the connection", may_be_expected=False)
    fail(journal, "it is a slave itself", may_be_expected=True)
    assert levels(caplog) == [logging.WARNING, logging.INFO]


def test_an_expected_problem_that_lasts_is_a_warning(
    journal: FollowerJournal, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(journal, "it is a slave itself", may_be_expected=True)
    clock.advance(HOUR_MS)
    fail(journal, "it is a slave itself", may_be_expected=True)
    assert levels(caplog) == [logging.INFO, logging.WARNING]
