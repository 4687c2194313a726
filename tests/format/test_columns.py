"""The columns of a scan and the reasons for which it stops."""

import pytest

from firetrail.format import columns as col
from firetrail.format.columns import COLUMN_NAMES, Columns, Stop


def test_every_column_has_its_number() -> None:
    for number, name in enumerate(COLUMN_NAMES):
        assert getattr(col, name.upper()) == number
    assert len(set(COLUMN_NAMES)) == len(COLUMN_NAMES)


def test_rows_and_columns_are_two_views_of_one_table() -> None:
    columns = Columns(3)
    assert len(columns.table) == 3 * len(COLUMN_NAMES)
    for column in range(len(COLUMN_NAMES)):
        for row in range(3):
            columns.column(column)[row] = 100 * column + row
    for row in range(3):
        assert columns.row(row) == {
            name: 100 * column + row for column, name in enumerate(COLUMN_NAMES)
        }


def test_cells_are_int64() -> None:
    columns = Columns(1)
    for value in (-(2**63), 2**63 - 1):
        columns.column(col.FLAG)[0] = value
        assert columns.row(0)["flag"] == value
    with pytest.raises(ValueError, match="format"):
        columns.column(col.FLAG)[0] = 2**63


@pytest.mark.parametrize(
    ("asked", "given"), [(0, 0), (1, 1), (63, 63), (64, 72), (100, 100), (4096, 4104)]
)
def test_round_capacities_get_more(asked: int, given: int) -> None:
    columns = Columns(asked)
    assert columns.capacity == given
    assert len(columns.table) == given * len(COLUMN_NAMES)


def test_a_table_without_room_is_empty() -> None:
    assert len(Columns(0).table) == 0


@pytest.mark.parametrize("stop", Stop)
def test_only_some_stops_are_damage(stop: Stop) -> None:
    unharmed = {Stop.LIMIT, Stop.FULL, Stop.BLANK, Stop.EMPTY}
    assert stop.is_damage == (stop not in unharmed)
