"""``firetrail reset``, at a cluster that ``firetrail up`` has started."""

from typing import Any

import pytest
from tests.cli.conftest import Firetrail
from tests.cli.live_clusters import settle

from firetrail.cli.clusters import reset


def test_reset_sets_the_offsets_of_a_group(ask: Any, namesrv: str) -> None:
    for number in range(4):
        ask("send", "Reset", str(number), "--order-key", "one")
    settle(namesrv, "Reset", 4)
    ask("group", "create", "GR")
    assert sum(row["offset"] for row in ask("reset", "GR", "Reset", "last", "--json").lines) == 4
    assert ask("lag", "GR", "Reset").out.split()[-1] == "0"
    assert "OFFSET" in ask("reset", "GR", "Reset", "first").out
    assert ask("lag", "GR", "Reset").out.split()[-1] == "4"


@pytest.mark.parametrize(
    ("text", "expected"), [("first", 0), ("last", -1), ("1763199000000", 1763199000000)]
)
def test_words_and_numbers_are_read_as_positions(text: str, expected: int) -> None:
    assert reset.where(text) == expected


def test_times_are_read_as_positions() -> None:
    assert reset.where("2026-11-15T09:30:00+00:00") == 1794735000000


def test_other_positions_are_refused(firetrail: Firetrail) -> None:
    result = firetrail("reset", "G", "T", "yesterday")
    assert result.code == 2
    assert "'yesterday' is not a time such as 2026-11-15T09:30:00, or ms since" in result.err
    assert "nor first or last" in result.err
