"""Predicates as bounds: no matching row is left out, and rows out of bounds are not read."""

from collections.abc import Callable
from datetime import timedelta
from operator import eq, ge, gt, le, lt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers import Machine, small_config
from tests.pipeline.source.shelf import EPOCH, by_place, fill, rows_of, some_messages

from firetrail import Message, Store
from firetrail.pipeline.batch_plan import explain
from firetrail.pipeline.source.plan.filters import (
    NOTHING,
    Comparison,
    Conjunction,
    Disjunction,
    Membership,
    Predicate,
    bounds_of,
    bounds_text,
    is_empty,
    parse_bounds,
    union,
    with_slack,
)
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS

COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "store_time", "msg_id")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
MOST = 2**63 - 1


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filters")
    fill(path, some_messages(150))
    return path


@pytest.fixture(scope="module", params=["queue", "log"])
def view(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def everything(store: Path, view: str) -> list[dict[str, Any]]:
    return rows_of(store, COLUMNS, view=view)


def constant(row: dict[str, Any], column: str) -> Any:
    """Return a value of a row in the form that predicates use."""
    value = row[column]
    return (value - EPOCH) // timedelta(microseconds=1) if column == "store_time" else value


def holds(predicate: Predicate, row: dict[str, Any]) -> bool:
    """Evaluate the predicate on a row; unsupported predicates may be true."""
    if isinstance(predicate, Conjunction):
        return holds(predicate.left, row) and holds(predicate.right, row)
    if isinstance(predicate, Disjunction):
        return holds(predicate.left, row) or holds(predicate.right, row)
    if isinstance(predicate, Membership):
        return constant(row, predicate.column) in predicate.values
    if isinstance(predicate, Comparison):
        return OPERATORS[predicate.operator](constant(row, predicate.column), predicate.value)
    return True


def predicates(rows: list[dict[str, Any]]) -> st.SearchStrategy[Predicate]:
    """Return nested predicates over values of rows and other values."""

    def value_of(column: str) -> st.SearchStrategy[Any]:
        values = st.sampled_from(rows).map(lambda row: constant(row, column))
        if column in ("topic", "msg_id"):
            return values | st.just("none")
        near = st.integers(-1500, 1500) if column == "store_time" else st.integers(-2, 2)
        return st.builds(int.__add__, values, near) | st.sampled_from([-MOST - 1, -1, 0, MOST])

    def comparisons(column: str) -> st.SearchStrategy[Predicate]:
        value, text = value_of(column), column in ("topic", "msg_id")
        operators = st.just("=") if text else st.sampled_from(list(OPERATORS))
        some = st.lists(value, max_size=3).map(tuple)
        return st.one_of(
            st.builds(Comparison, st.just(column), operators, value),
            st.builds(Membership, st.just(column), some),
        )

    single = st.none() | st.sampled_from(COLUMNS).flatmap(comparisons)
    return st.recursive(
        single,
        lambda part: st.builds(Conjunction, part, part) | st.builds(Disjunction, part, part),
        max_leaves=6,
    )


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_nothing_that_fits_is_left_out(
    store: Path, view: str, everything: list[dict[str, Any]], data: st.DataObject
) -> None:
    chosen = [data.draw(predicates(everything)) for _ in range(data.draw(st.integers(1, 2)))]
    bounds = NOTHING
    for predicate in chosen:  # a table that is used several times
        bounds = union(bounds, bounds_of(predicate))
    bounds = parse_bounds(bounds_text(bounds))
    wanted = [row for row in everything if any(holds(each, row) for each in chosen)]
    found = rows_of(store, COLUMNS, bounds, view=view)
    assert [row for row in by_place(found) if row in wanted] == by_place(wanted)
    if is_empty(bounds):
        assert wanted == []


@pytest.mark.parametrize(
    "predicate",
    [
        Comparison("topic", "=", "rare"),
        Comparison("queue_id", "=", 1),
        Conjunction(Comparison("queue_offset", ">", 60), Comparison("topic", "=", "usual")),
        Comparison("physical_offset", "<", 3000),
        Conjunction(
            Comparison("physical_offset", ">=", 12_000), Membership("topic", ("usual", "x"))
        ),
        Disjunction(
            Conjunction(Comparison("queue_offset", ">=", 60), Comparison("queue_offset", "<", 65)),
            Comparison("queue_offset", "=", 65),
        ),
    ],
)
def test_what_cannot_fit_is_not_read(store: Path, predicate: Predicate) -> None:
    everything = rows_of(store, COLUMNS)
    wanted = [row for row in everything if holds(predicate, row)]
    assert 0 < len(wanted) < len(everything)
    found = rows_of(store, COLUMNS, bounds_of(predicate))
    assert by_place(found) == by_place(wanted)


def test_times_prune_both_views(store: Path, view: str) -> None:
    everything = rows_of(store, COLUMNS, view=view)
    early, late = (constant(everything[number], "store_time") for number in (40, 60))
    predicate = Conjunction(
        Comparison("store_time", ">=", early), Comparison("store_time", "<", late)
    )
    found = rows_of(store, COLUMNS, bounds_of(predicate), view=view)
    assert by_place(found) == by_place(everything[40:60])


def test_a_clock_that_was_set_back(tmp_path: Path, view: str) -> None:
    """The clock is set back by nine minutes several times; every message is found by its time."""
    machine = Machine()
    with Store.open(tmp_path, small_config(log=8192, units=40), system=machine.system) as opened:
        for number in range(60):
            machine.clock.advance(200_000 if number % 7 else -540_000)
            opened.put(Message("T", b"%d" % number))
    everything = rows_of(tmp_path, COLUMNS, view=view)
    times = [constant(row, "store_time") for row in everything]
    assert times != sorted(times)
    for row, time in zip(everything, times, strict=True):
        bounds = bounds_of(Comparison("store_time", "=", time))
        assert row in rows_of(tmp_path, COLUMNS, with_slack(bounds), view=view)
    assert with_slack(NO_BOUNDS) == NO_BOUNDS
    assert is_empty(with_slack(NOTHING))


def test_a_message_that_is_not_in_the_index_is_found_by_its_id(tmp_path: Path) -> None:
    """The index has a gap if it was off for a while, and nothing in the files shows that."""
    for number, enabled in enumerate((True, False, True)):
        with Store.open(tmp_path, small_config().replace(index_enabled=enabled)) as store:
            store.put(Message("T", b"%d" % number, properties={"UNIQ_KEY": f"id-{number}"}))
    (row,) = (row for row in rows_of(tmp_path, COLUMNS) if row["msg_id"] == "id-1")
    by_id, by_topic = Comparison("msg_id", "=", "id-1"), Comparison("topic", "=", "T")
    assert row in rows_of(tmp_path, COLUMNS, bounds_of(Conjunction(by_id, by_topic)))


@pytest.mark.parametrize(
    "predicate",
    [
        None,
        Comparison("size", "=", 7),
        Comparison("msg_id", "=", "x"),
        Comparison("topic", "<", "T"),
        Disjunction(Comparison("topic", "=", "T"), None),
        Disjunction(Comparison("topic", "=", "T"), Comparison("size", "=", 7)),
    ],
)
def test_unsupported_predicates_have_no_bounds(predicate: Predicate) -> None:
    assert bounds_of(predicate) == NO_BOUNDS


def test_no_values_are_no_rows(store: Path) -> None:
    assert is_empty(bounds_of(Membership("topic", ())))
    assert rows_of(store, COLUMNS, bounds_of(Membership("queue_offset", ()))) == []


def test_explain_shows_what_is_pruned(store: Path) -> None:
    text = explain(path=str(store), subscribe="rare")
    assert "4 messages of 2 queues" in text
    assert "looked up through their units" in text
    assert text.endswith("\n1 partition")
    assert "scanned in the order of the log" in explain(path=str(store))
