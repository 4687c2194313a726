"""Delay levels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import ConfigError
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels

DEFAULT = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def test_the_default_table_has_18_levels() -> None:
    assert DEFAULT.max_level == 18
    assert DEFAULT.wait_ms(1) == 1_000
    assert DEFAULT.wait_ms(5) == 60_000
    assert DEFAULT.wait_ms(18) == 7_200_000


def test_days_and_hours_are_parsed() -> None:
    assert DelayLevels.parse("1d  2h").waits_ms == (86_400_000, 7_200_000)


@given(st.integers(19, 2**31))
def test_above_the_table_counts_as_its_end(level: int) -> None:
    assert DEFAULT.clamp(level) == 18
    assert DEFAULT.wait_ms(level) == DEFAULT.wait_ms(18)


@pytest.mark.parametrize("level", [0, -1])
def test_no_level_waits_a_second(level: int) -> None:
    assert DEFAULT.wait_ms(level) == 1_000


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from("smhd")), min_size=1))
def test_each_level_waits_for_its_number_of_units(levels: list[tuple[int, str]]) -> None:
    table = DelayLevels.parse(" ".join(f"{n}{unit}" for n, unit in levels))
    ms = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    assert [table.wait_ms(i) for i in range(1, table.max_level + 1)] == [
        n * ms[unit] for n, unit in levels
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "messageDelayLevel = '': needs at least one level, such as '1s'"),
        ("1s 5x", "messageDelayLevel = '1s 5x': '5x' is not a number with a unit s, m, h or d"),
        ("-1s", "'-1s' is not a number with a unit"),
        ("s", "'s' is not a number with a unit"),
        ("\u0661s", "is not a number with a unit"),
    ],
)
def test_malformed_levels_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DelayLevels.parse(text)
    assert message in str(caught.value)
