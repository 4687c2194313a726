"""Predicates as bounds: nothing that fits is left out, and what cannot fit is not read."""

from collections.abc import Callable
from datetime import timedelta
from operator import eq, ge, gt, le, lt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)
from tests.pipeline.source.shelf import by_place, fill, rows_of, some_messages

from firetrail.pipeline.source.filters import bounds_of, is_exact
from firetrail.pipeline.source.options import parse_options
from firetrail.pipeline.source.plan import explain, plan_batch
from firetrail.pipeline.source.ranges import NO_BOUNDS

COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "store_time", "msg_id")
COMPARISONS: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: eq,
    EqualNullSafe: eq,
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filters")
    fill(path, some_messages(150))
    return path


@pytest.fixture(scope="module", params=["queue", "log"])
def view(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def holds(each: Filter, row: dict[str, Any]) -> bool:
    """The filter, evaluated on a row."""
    if isinstance(each, IsNotNull):
        return True
    if isinstance(each, Not):
        return not holds(each.child, row)
    value = row[each.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(each, In):
        return value in each.value
    return COMPARISONS[type(each)](value, each.value)  # type: ignore[attr-defined]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_nothing_that_fits_is_left_out(store: Path, view: str, data: st.DataObject) -> None:
    everything = rows_of(store, COLUMNS, view=view)
    rows = st.sampled_from(everything)
    micros = st.integers(-1500, 1500).map(lambda us: timedelta(microseconds=us))

    def value_of(column: str) -> st.SearchStrategy[Any]:
        values = rows.map(lambda row: row[column])
        if column == "store_time":
            return st.builds(lambda time, more: time + more, values, micros)
        if column in ("topic", "msg_id"):
            return st.one_of(values, st.just("none"))
        return st.one_of(values, st.integers(-3, 20_000))

    filters: list[Filter] = []
    for _ in range(data.draw(st.integers(1, 3))):
        column = data.draw(st.sampled_from(COLUMNS))
        kind = data.draw(st.sampled_from([*COMPARISONS, In, Not, IsNotNull]))
        if kind is In:
            values = tuple(data.draw(st.lists(value_of(column), min_size=1, max_size=3)))
            filters.append(In((column,), values))
        elif kind is IsNotNull:
            filters.append(IsNotNull((column,)))
        elif kind is Not:
            filters.append(Not(EqualTo((column,), data.draw(value_of(column)))))
        else:
            filters.append(kind((column,), data.draw(value_of(column))))
    wanted = [row for row in everything if all(holds(each, row) for each in filters)]
    found = rows_of(store, COLUMNS, bounds_of(filters), view=view)
    assert [row for row in by_place(found) if row in wanted] == by_place(wanted)
    if view == "queue" and all(map(is_exact, filters)):
        assert len(found) == len(wanted)


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(("topic",), "rare")],
        [EqualTo(("queue_id",), 1)],
        [GreaterThan(("queue_offset",), 60), EqualTo(("topic",), "usual")],
        [LessThan(("physical_offset",), 3000)],
        [GreaterThanOrEqual(("physical_offset",), 12_000), In(("topic",), ("usual", "x"))],
    ],
)
def test_what_cannot_fit_is_not_read(store: Path, filters: list[Filter]) -> None:
    everything = rows_of(store, COLUMNS)
    wanted = [row for row in everything if all(holds(each, row) for each in filters)]
    assert 0 < len(wanted) < len(everything)
    found = rows_of(store, COLUMNS, bounds_of(filters))
    assert by_place(found) == by_place(wanted)


def test_times_prune_both_views(store: Path, view: str) -> None:
    everything = rows_of(store, COLUMNS, view=view)
    early, late = everything[40]["store_time"], everything[60]["store_time"]
    filters = [GreaterThanOrEqual(("store_time",), early), LessThan(("store_time",), late)]
    found = rows_of(store, COLUMNS, bounds_of(filters), view=view)
    assert by_place(found) == by_place(everything[40:60])


def test_an_id_leads_to_its_message(store: Path) -> None:
    """Through the place in an offset id, if the topic is known."""
    everything = rows_of(store, COLUMNS)
    row = everything[70]
    filters = [EqualTo(("msg_id",), row["msg_id"]), EqualTo(("topic",), row["topic"])]
    plan = plan_batch(parse_options({"path": str(store)}), bounds_of(filters))
    assert "1 messages found through" in str(plan)
    assert row in rows_of(store, COLUMNS, bounds_of(filters))
    assert rows_of(store, COLUMNS, bounds_of(filters[:1])) == everything
    for other in (
        EqualTo(("queue_id",), 1 - row["queue_id"]),
        EqualTo(("queue_offset",), row["queue_offset"] + 1),
        LessThan(("physical_offset",), row["physical_offset"]),
        EqualTo(("topic",), "rare"),
    ):
        assert rows_of(store, COLUMNS, bounds_of([*filters, other])) == []


@pytest.mark.parametrize(
    "each",
    [
        IsNotNull(("topic",)),
        StringContains(("topic",), "T"),
        Not(EqualTo(("topic",), "T")),
        EqualTo(("topic",), None),
        EqualTo(("size",), 7),
        LessThan(("queue_offset",), None),
    ],
)
def test_other_filters_say_nothing(each: Filter) -> None:
    assert bounds_of([each]) == NO_BOUNDS
    assert is_exact(each) == isinstance(each, IsNotNull)


def test_explain(store: Path) -> None:
    text = explain(path=str(store), subscribe="rare")
    assert "4 messages of 2 queues" in text
    assert "looked up through their units" in text
    assert "partitions" in text
    assert "scanned in the order of the log" in explain(path=str(store))
