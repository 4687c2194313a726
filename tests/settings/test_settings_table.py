"""Tables of settings: a mistake in a declaration is found when the table is made."""

from __future__ import annotations

import dataclasses

import pytest

from firetrail.settings.settings_table import Flag, Group, Whole, table


def test_a_table_with_a_wrong_line_is_refused() -> None:
    group = Group("Test", "")

    @dataclasses.dataclass
    class Unround:
        size: int = group(30, "a", Whole(1, step=20), "")

    @dataclasses.dataclass
    class Twice:
        one: bool = group(True, "key", Flag(), "")
        two: bool = group(True, "other key", Flag(), "")

    with pytest.raises(ValueError, match="default of size is not in its normal form"):
        table(Unround)
    with pytest.raises(ValueError, match="two settings have the name key"):
        table(Twice)
