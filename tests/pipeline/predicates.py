"""Random predicates, each as SQL and as a Python function with three-valued logic."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st
from tests.pipeline.plainlog import Row

Truth = bool | None
Test = Callable[[Row], Truth]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = ("queue_id", "queue_offset", "physical_offset", "size", "sys_flag", "prepared_offset")
TEXTS = ("topic", "msg_id", "tags")
TIMES = ("store_time", "born_time")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")


@dataclass(frozen=True)
class Predicate:
    """A predicate for Spark and for Python."""

    sql: str
    test: Test

    def __repr__(self) -> str:
        return self.sql


def compared(name: str, one: Any, other: Any) -> Truth:
    """Return a comparison, which is unknown if a value is null."""
    if name == "<=>":
        return bool(one == other)
    return None if one is None or other is None else OPERATORS[name](one, other)


def both(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def negated(one: Truth) -> Truth:
    return None if one is None else not one


def either(one: Truth, other: Truth) -> Truth:
    return negated(both(negated(one), negated(other)))


# -- single ones --------------------------------------------------------------------------------


def _quoted(value: str | None) -> str:
    return "null" if value is None else f"'{value}'"


def _time(micros: int, zone: str) -> str:
    moment = EPOCH + timedelta(microseconds=micros)
    return moment.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S.%f")


@dataclass(frozen=True)
class Values:
    """Strategies for constants close to the values of the rows."""

    rows: list[Row]
    zone: str  # the session's

    def of(self, column: str) -> st.SearchStrategy[Any]:
        return st.sampled_from(self.rows).map(lambda row: row[column])

    def number(self, column: str) -> st.SearchStrategy[tuple[str, Any]]:
        whole = st.builds(int.__add__, self.of(column), st.integers(-1, 1))
        return st.one_of(
            whole.map(lambda value: (str(value), value)),
            whole.map(lambda value: (f"{value}L", value)),
            whole.map(lambda value: (f"{value}.5", Decimal(f"{value}.5")))
            .filter(lambda pair: not pair[0].startswith("-")),
            whole.map(lambda value: (f"'{value}'", value)),
            st.sampled_from([("null", None), ("9223372036854775807", 2**63 - 1), ("-1", -1)]),
        )  # fmt: skip

    def text(self, column: str) -> st.SearchStrategy[tuple[str, Any]]:
        values = self.of(column) | st.sampled_from(["nobody", "", None])
        return values.map(lambda value: (_quoted(value), value))

    def time(self, column: str) -> st.SearchStrategy[tuple[str, Any]]:
        near = st.sampled_from([-1_000_000, -1000, -1, 0, 1, 500, 1000, 3_600_000_000])
        micros = st.builds(int.__add__, self.of(column), near)
        zoned = st.builds(
            lambda value, zone: (f"timestamp'{_time(value, zone)} {zone}'", value),
            micros,
            st.sampled_from(ZONES),
        )
        return st.one_of(
            zoned,
            micros.map(lambda value: (f"timestamp'{_time(value, self.zone)}'", value)),
            micros.map(lambda value: (f"'{_time(value, self.zone)}'", value)),
            micros.map(lambda value: (f"timestamp_micros({value})", value)),
            st.sampled_from(
                [("cast(null as timestamp)", None), ("timestamp'-0044-03-15 00:00:00'", -(10**17))]
            ),
        )


def _constant(values: Values, column: str) -> st.SearchStrategy[tuple[str, Any]]:
    kinds = {**dict.fromkeys(NUMBERS, values.number), **dict.fromkeys(TIMES, values.time)}
    return kinds.get(column, values.text)(column)


def _comparison(column: str, name: str, constant: tuple[str, Any], turned: bool) -> Predicate:
    text, value = constant
    sql = f"{text} {TURNED.get(name, name)} {column}" if turned else f"{column} {name} {text}"
    return Predicate(sql, lambda row: compared(name, row[column], value))


def _one_of(column: str, constants: list[tuple[str, Any]]) -> Predicate:
    def test(row: Row) -> Truth:
        found: Truth = False
        for _, value in constants:
            found = either(found, compared("=", row[column], value))
        return found

    return Predicate(f"{column} in ({', '.join(text for text, _ in constants)})", test)


def _between(column: str, low: tuple[str, Any], high: tuple[str, Any]) -> Predicate:
    return Predicate(
        f"{column} between {low[0]} and {high[0]}",
        lambda row: both(compared(">=", row[column], low[1]), compared("<=", row[column], high[1])),
    )


def _like(column: str, value: str | None, form: str) -> Predicate:
    pattern = form.format(value or "paid")
    core = pattern.strip("%")

    def test(row: Row) -> Truth:
        text = row[column]
        if text is None:
            return None
        if form == "{}%":
            return bool(text.startswith(core))
        return core in text if form == "%{}%" else text == core

    return Predicate(f"{column} like '{pattern}'", test)


def _as_text(column: str, constant: tuple[str, Any]) -> Predicate:
    value = str(constant[1])
    return Predicate(f"cast({column} as string) = '{value}'", lambda row: str(row[column]) == value)


def _day(column: str, name: str, micros: int, zone: str) -> Predicate:
    def day(value: int) -> Any:
        return (EPOCH + timedelta(microseconds=value)).astimezone(ZoneInfo(zone)).date()

    return Predicate(
        f"cast({column} as date) {name} date'{day(micros)}'",
        lambda row: compared(name, day(row[column]), day(micros)),
    )


def _beside(name: str, one: str, other: str) -> Predicate:
    return Predicate(f"{one} {name} {other}", lambda row: compared(name, row[one], row[other]))


def _is_null(column: str) -> Predicate:
    return Predicate(f"{column} is null", lambda row: row[column] is None)


def _singles(values: Values) -> st.SearchStrategy[Predicate]:
    names = st.sampled_from([*OPERATORS, "<=>"])
    columns = st.sampled_from(["topic", "store_time", *NUMBERS, *TEXTS, *TIMES])

    def for_column(column: str) -> st.SearchStrategy[Predicate]:
        constants = _constant(values, column)
        kinds = [
            st.builds(_comparison, st.just(column), names, constants, st.booleans()),
            st.builds(_one_of, st.just(column), st.lists(constants, min_size=1, max_size=14)),
            st.builds(_between, st.just(column), constants, constants),
            st.just(_is_null(column)),
        ]
        if column in TEXTS:
            forms = st.sampled_from(["{}%", "%{}%", "{}"])
            kinds.append(st.builds(_like, st.just(column), values.of(column), forms))
        if column in NUMBERS:
            whole = values.of(column).map(lambda value: (str(value), value))
            kinds.append(st.builds(_as_text, st.just(column), whole))
        if column in TIMES:
            zone = st.just(values.zone)
            kinds.append(st.builds(_day, st.just(column), names, values.of(column), zone))
        return st.one_of(kinds)

    pairs = st.sampled_from([("queue_id", "queue_offset"), ("topic", "tags"), TIMES])
    beside = st.builds(lambda name, pair: _beside(name, *pair), names, pairs)
    fixed = st.sampled_from(
        [
            Predicate("true", lambda row: True),
            Predicate("false", lambda row: False),
            Predicate("cast(null as boolean)", lambda row: None),
        ]
    )
    return st.one_of(columns.flatmap(for_column), columns.flatmap(for_column), beside, fixed)


# -- nested ones --------------------------------------------------------------------------------


def _and(one: Predicate, other: Predicate) -> Predicate:
    return Predicate(
        f"({one.sql} and {other.sql})", lambda row: both(one.test(row), other.test(row))
    )


def _or(one: Predicate, other: Predicate) -> Predicate:
    return Predicate(
        f"({one.sql} or {other.sql})", lambda row: either(one.test(row), other.test(row))
    )


def _not(one: Predicate) -> Predicate:
    return Predicate(f"not ({one.sql})", lambda row: negated(one.test(row)))


def predicates(rows: list[Row], zone: str) -> st.SearchStrategy[Predicate]:
    """Predicates over the rows, for a session with a time zone."""
    return st.recursive(
        _singles(Values(rows, zone)),
        lambda part: st.one_of(
            st.builds(_and, part, part), st.builds(_or, part, part), st.builds(_not, part)
        ),
        max_leaves=5,
    )
