"""Log lines that peers can cause."""

import logging

import pytest
from tests.remoting.clocks import Clock

from firetrail.pace.limited_log import BURST, KINDS_MAX, LENGTH_MAX, PER_S, LimitedLog


def test_a_kind_is_logged_a_few_times_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = LimitedLog(logging.getLogger("firetrail"), clock)
    for number in range(BURST + 7):
        log.log(logging.WARNING, "bad frame", f"frame {number}")
    assert caplog.messages == [f"frame {number}" for number in range(BURST)]
    log.log(logging.WARNING, "another kind", "something else")
    assert caplog.messages[-1] == "something else"
    clock.now += 1 / PER_S
    log.log(logging.WARNING, "bad frame", "the next")
    assert caplog.messages[-1] == "the next (7 more lines like this one were not logged)"


def test_the_number_of_kinds_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("firetrail"), Clock())
    for number in range(KINDS_MAX + 2 * BURST):
        log.log(logging.WARNING, str(number), "x")
    assert len(caplog.messages) == KINDS_MAX + BURST
    assert len(log._kinds) == KINDS_MAX + 1


def test_control_characters_are_escaped_and_lines_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("firetrail"), Clock())
    log.log(logging.WARNING, "kind", "a\n2026-01-01 ERROR \x1b[2Jforged\u2028")
    log.log(logging.WARNING, "kind", "y" * 2 * LENGTH_MAX)
    assert caplog.messages[0] == r"a\n2026-01-01 ERROR \x1b[2Jforged\u2028"
    assert len(caplog.messages[1]) == LENGTH_MAX + 1
