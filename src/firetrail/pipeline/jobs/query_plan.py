"""The rows and columns that a query needs of its tables, read from Spark's own plan of the query.

The query is planned over empty placeholders for the tables and is not run. Spark's optimizer pushes
filters and projections down to the tables. A row or column that the optimized plan drops directly
above a table cannot change the result, whatever the table holds. For a table that the query uses
several times, the needs of all uses are combined.

Columns are recognized by the ids that Spark gives them, and tables by the ids of their
placeholders. Names would not do: an attribute has the name as the query spells it, and whether
``TOPIC`` is ``topic`` is for Spark to decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from firetrail.pipeline.source.plan.filters import (
    Comparison,
    Conjunction,
    Disjunction,
    Membership,
    Predicate,
    bounds_of,
    union,
)
from firetrail.pipeline.source.plan.ranges import NO_BOUNDS, Bounds

_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_COMPARISONS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NUMBERS = ("int", "bigint", "timestamp")
"""Types whose constants are integers; those of timestamps are µs since 1970."""
_TEXT = "string"
_Ids = Mapping[int, str]
"""The columns of a table by the ids of one of its uses."""
_MOMENTS = re.compile(r"\b(now(?!\s*\()|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Words that Spark interprets as times, as in ``timestamp'today'``."""


@dataclass(frozen=True, slots=True)
class RequiredColumns:
    """The columns of a table that a query needs, and bounds for the rows."""

    columns: tuple[str, ...]
    bounds: Bounds = NO_BOUNDS

    def __or__(self, other: RequiredColumns) -> RequiredColumns:
        more = (name for name in other.columns if name not in self.columns)
        return RequiredColumns((*self.columns, *more), union(self.bounds, other.bounds))


def needs(
    spark: SparkSession, query: str, tables: Mapping[str, StructType]
) -> dict[str, RequiredColumns]:
    """Return the needs of a query for each of ``tables`` that it uses.

    Temporary views with the names of the tables are replaced, and dropped afterwards: if a query
    uses a table in a way that is not recognized here, it must fail instead of reading an empty
    table.
    """
    try:
        return _needs(spark, query, tables)
    finally:
        for name in tables:
            spark.catalog.dropTempView(name)


def _needs(
    spark: SparkSession, query: str, tables: Mapping[str, StructType]
) -> dict[str, RequiredColumns]:
    placeholders = {}
    for name, schema in tables.items():
        nothing = spark.sparkContext.emptyRDD()  # a local relation would be optimized away
        frame = spark.createDataFrame(nothing, schema)
        frame.createOrReplaceTempView(name)
        placeholders[frame._jdf.queryExecution().analyzed().rdd().id()] = name
    everything = {name: RequiredColumns(tuple(schema.names)) for name, schema in tables.items()}
    state, jvm = spark._jsparkSession.sessionState(), _jvm(spark)
    parsed = state.sqlParser().parsePlan(query)
    if _kind(parsed) == "CompoundBody":  # a script: only Spark knows which statements run
        return everything
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    execution = state.executePlan(parsed, skip)
    analyzed = execution.analyzed()
    if is_instance_of(spark.sparkContext._gateway, analyzed, _COMMAND):
        return everything
    used = {table for leaf, _ in _leaves(analyzed) if (table := _table(leaf, placeholders))}
    clock = _TimeDependence(jvm, analyzed, query + analyzed.toString())
    found: dict[str, RequiredColumns] = {}
    for leaf, above in _leaves(execution.optimizedPlan()):
        if table := _table(leaf, placeholders):
            need = _need(leaf, above, tables[table], clock)
            found[table] = found[table] | need if table in found else need
    # A table that is only in the analyzed plan must exist, but Spark will not read it.
    return {
        name: RequiredColumns(
            tuple(column for column in schema.names if column in found[name].columns),
            found[name].bounds,
        )
        if name in found
        else everything[name]
        for name, schema in tables.items()
        if name in used
    }


def _table(leaf: Any, placeholders: Mapping[int, str]) -> str | None:
    return placeholders.get(leaf.rdd().id()) if _kind(leaf) == "LogicalRDD" else None


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


# -- plans ------------------------------------------------------------------------------------


def _leaves(plan: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the leaves of a plan and of its subqueries, each with the nodes directly above it.

    These nodes are filters, preceded by at most one projection or aggregate over them.
    """
    waiting: list[tuple[Any, list[Any]]] = [
        (root, []) for root in (plan, *_items(plan.subqueriesAll()))
    ]
    while waiting:
        node, above = waiting.pop()
        children = _items(node.children())
        if not children:
            yield node, above
        kind = _kind(node)
        if kind == "Filter":
            above = [*above, node]
        else:
            above = [node] if kind in ("Project", "Aggregate") else []
        waiting += [(child, above) for child in children]


def _need(
    leaf: Any, above: list[Any], schema: StructType, clock: _TimeDependence
) -> RequiredColumns:
    output = [attribute.exprId().id() for attribute in _items(leaf.output())]
    ids = dict(zip(output, schema.names, strict=True))
    filters = [node for node in above if _kind(node) == "Filter"]
    if len(filters) < len(above):
        columns = {name for node in above for name in _columns(node.references().toSeq(), ids)}
    else:
        columns = set(schema.names)
    parts = (clock.lasting(_predicate(node.condition(), ids)) for node in filters)
    return RequiredColumns(tuple(columns), bounds_of(reduce(Conjunction, parts, None)))


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _columns(attributes: Any, ids: _Ids) -> Iterator[str]:
    """Yield the columns of a table among attributes; the others belong to an outer query."""
    for attribute in _items(attributes):
        name = ids.get(attribute.exprId().id())
        if name is not None:
            yield name


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


# -- predicates -------------------------------------------------------------------------------


def _predicate(expression: Any, ids: _Ids) -> Predicate:
    """Convert a condition, as far as its form is supported."""
    kind = _kind(expression)
    if kind in ("And", "Or"):
        left, right = _items(expression.children())
        pair = Conjunction if kind == "And" else Disjunction
        return pair(_predicate(left, ids), _predicate(right, ids))
    if kind in _COMPARISONS:
        return _comparison(expression, _COMPARISONS[kind], ids)
    if kind not in ("In", "InSet"):
        return None
    column, *options = _items(expression.children())
    name = _column(column, ids)
    if name is None:
        return None
    type_ = column.dataType().simpleString()
    values = _set_values(expression.hset(), type_) if kind == "InSet" else _values(options, type_)
    return None if values is None else Membership(name, tuple(values))


def _comparison(expression: Any, operator: str, ids: _Ids) -> Predicate:
    left, right = _items(expression.children())
    if _kind(left) == "Literal":
        left, right, operator = right, left, _TURNED[operator]
    name = _column(left, ids)
    values = None if name is None else _values([right], left.dataType().simpleString())
    return Comparison(name, operator, values[0]) if name is not None and values else None


def _column(expression: Any, ids: _Ids) -> str | None:
    """Return the name of a column that can have bounds; None for any other expression."""
    if _kind(expression) != "AttributeReference":
        return None
    bounded = expression.dataType().simpleString() in (*_NUMBERS, _TEXT)
    return ids.get(expression.exprId().id()) if bounded else None


def _values(literals: list[Any], kind: str) -> list[str | int] | None:
    """Return the constants without nulls, which equal nothing; None if a type differs."""
    values: list[str | int] = []
    for literal in literals:
        if _kind(literal) != "Literal" or literal.dataType().simpleString() != kind:
            return None
        value = literal.value()
        if value is not None:
            values.append(value if isinstance(value, int) else str(value.toString()))
    return values


def _set_values(values: Any, kind: str) -> list[str | int] | None:
    """Return the values of a Scala set, in one call however many there are.

    A null in the set appears as "null" here, so a topic of that name is read needlessly.
    """
    separator = "\x00"
    texts = values.mkString(separator).split(separator)
    if len(texts) != values.size():  # the separator is part of a value
        return None
    return [*texts] if kind == _TEXT else [int(text) for text in texts if text != "null"]


# -- time -------------------------------------------------------------------------------------


_FALLBACK_US = 2 * 86_400_000_000
"""More than a time computed from the clock can go back while the clock advances. A month before
March 30, 23:00 is February 28, 23:00; an hour later it is February 28, 0:00. The end of daylight
saving time sets the local time back by an hour."""


class _TimeDependence:
    """Tells whether the constants of a plan depend on the time of planning.

    A frame is planned again whenever it is used, and ``now()`` is later then. Of the constants that
    depend on the clock, only lower bounds of times that rise with it also hold for later plans.
    """

    _STEPS = ("TimestampAddInterval", "TimestampAddYMInterval", "DateAdd", "DateSub")
    _WRAPPERS = ("Cast", "DatetimeSub")
    _COLUMNS = ("AttributeReference", "CommonExpressionRef")  # the latter occurs in BETWEEN
    _NOW = ("Now", "CurrentTimestamp", "CurrentDate", "LocalTimestamp")
    _TIMES = ("timestamp", "timestamp_ntz", "date")

    def __init__(self, jvm: Any, analyzed: Any, text: str) -> None:
        self._pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        self._ticks = self._asks(analyzed)
        fixed = not self._ticks or self._rises_only(analyzed)
        self._known = fixed and not _MOMENTS.search(text)

    def lasting(self, predicate: Predicate) -> Predicate:
        """Return the part of a predicate that also holds in later plans of the query."""
        if not self._known:
            return None
        return _without_end(predicate) if self._ticks else predicate

    def _asks(self, node: Any) -> bool:
        return bool(node.containsPattern(self._pattern))

    def _rises_only(self, analyzed: Any) -> bool:
        """Whether the current time is only used in filters, in comparisons with columns."""
        waiting = [analyzed, *_items(analyzed.subqueriesAll())]
        while waiting:
            node = waiting.pop()
            waiting += _items(node.children())
            asking = [each for each in _items(node.expressions()) if self._asks(each)]
            if asking and (_kind(node) != "Filter" or not all(map(self._is_rising, asking))):
                return False
        return True

    def _is_rising(self, condition: Any) -> bool:
        """Whether a condition uses the current time only in comparisons with columns."""
        if not self._asks(condition):
            return True
        kind, children = _kind(condition), _items(condition.children())
        if kind in ("And", "Or", "Between", "With"):
            return all(map(self._is_rising, children))
        if kind not in _COMPARISONS:
            return False
        return any(
            _kind(column) in self._COLUMNS and self._is_moment(moment)
            for column, moment in (children, reversed(children))
        )

    def _is_moment(self, expression: Any, steps: int = 1) -> bool:
        """Whether an expression is the current time, plus or minus at most ``steps`` intervals."""
        kind = _kind(expression)
        if kind in self._NOW:
            return True
        children = _items(expression.children())
        if kind == "Cast" and expression.dataType().simpleString() not in self._TIMES:
            return False
        steps -= kind in self._STEPS
        return (
            kind in (*self._WRAPPERS, *self._STEPS)
            and steps >= 0
            and self._is_moment(children[0], steps)
            and not any(map(self._asks, children[1:]))
        )


def _without_end(predicate: Predicate) -> Predicate:
    """Return a predicate without upper bounds of times, and with slightly lower lower bounds.

    This happens before bounds are combined: an intersection that is empty now may not be later.
    """
    if isinstance(predicate, Conjunction | Disjunction):
        return type(predicate)(_without_end(predicate.left), _without_end(predicate.right))
    if predicate is None or predicate.column != "store_time":
        return predicate
    if isinstance(predicate, Membership) or predicate.operator in ("<", "<="):
        return None
    assert isinstance(predicate.value, int)
    return Comparison(predicate.column, ">=", predicate.value - _FALLBACK_US)
