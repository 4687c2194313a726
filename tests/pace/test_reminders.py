"""Reminders: what lasts is logged once, and then at growing intervals."""

from itertools import pairwise

import pytest

from firetrail.pace import reminders
from firetrail.pace.reminders import FIRST_S, LONGEST_S, Reminders


def test_the_same_text_is_due_at_growing_intervals() -> None:
    now = 100.0
    both = Reminders(lambda: now)
    times: list[float] = []
    while len(times) < 10:
        if both.is_due(f"the log ends at {now}"):
            times.append(now)
        now += FIRST_S / 2
    pauses = [later - one for one, later in pairwise(times)]
    assert pauses == [min(FIRST_S * 2**n, LONGEST_S) for n in range(9)]


def test_another_text_is_due_at_once_and_both_are_remembered() -> None:
    both = Reminders(lambda: 0.0)
    assert [both.is_due(text) for text in ("one", "other", "one", "other")] == [
        *(True, True),
        *(False, False),
    ]
    both.forget()
    assert both.is_due("one")


def test_the_number_of_remembered_texts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reminders, "TEXTS_MAX", 2)
    many = Reminders(lambda: 0.0)
    assert all(many.is_due(text) for text in "abcde")
    assert len(many._due) <= 2
