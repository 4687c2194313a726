"""Random queries over the tables ``messages`` and ``log``, with names in random spelling.

Each query is valid, and its rows do not depend on the order in which a table is read: only
``msg_id`` is unique in every table.
"""

import random
import re
from itertools import permutations

from hypothesis import strategies as st
from tests.pipeline.plainlog import Row
from tests.pipeline.predicates import predicates

from firetrail.pipeline.source.schema import NAMES

_SWAPPED = (
    ("topic", "tags"),
    ("queue_id", "size"),
    ("queue_offset", "physical_offset"),
    ("store_time", "born_time"),
)
_SOURCES = {name: source for a, b in _SWAPPED for name, source in ((a, b), (b, a))}
VIEWS = {
    # The columns are in the order of the tables, because a form names the columns by position.
    "renamed": f"select {', '.join(f'{_SOURCES.get(n, n)} as {n}' for n in NAMES)} from log",
    "paid": "select * from messages where TAGS = 'paid' and Queue_Id < 3",
}
"""Views of the session over the tables."""
TABLES = ("messages", "log", *VIEWS)
PLAIN = tuple(name for name in NAMES if name != "properties")
"""Columns that can be compared and grouped: all but the map."""
ALIASES = ("x", "y", "e", "k", "v", "r", "one", "more", "c", "d", "s", "most")
FORMS = (
    "select {a}, {b} from {t} where {p}",
    "select * from {t} where {p} and {q}",
    "select x.* except ({a}, {b}) from {t} x where {p}",
    "select count(*), max({a}), count(distinct {b}) from {t} where {p}",
    "select {a}, count(*) as more from {t} where {p} group by {a} having count({b}) >= 1",
    "select topic, queue_id, sum(size) from {t} where {p} group by cube (topic, queue_id)",
    "select count_if({p}), sum(if({q}, size, 0)), count(*) filter (where {p}) from {t}",
    "select max_by({a}, msg_id), min_by({b}, msg_id) from {t} where {p}",
    "select distinct {a}, {b} from {t} where {p}",
    "select x.{a} as one, {b} from (select * from {t} where {p}) x where {q}",
    "select {a}, {b} from (select * from {t} where {p}) x (" + ", ".join(NAMES) + ") where {q}",
    "select {a} from (select tags as topic, topic as tags, size as queue_id, queue_id as size, "
    "* except (tags, topic, size, queue_id) from {t} where {p}) where {q}",
    "with c as (select * from {t} where {p}), d as (select * from {u} where {q}) "
    "select c.{a}, d.{b} from c join d on c.physical_offset = d.physical_offset",
    "with c as (select * from {t} where {p}) select x.{a}, y.{b}, (select count(*) from c) "
    "from c x left join c y on x.physical_offset = y.physical_offset and y.queue_id = 1",
    "with messages as (select * from log where {p}) select {a} from messages where {q}",
    "select {a} from {t} where {p} union all select {a} from {u} where {q}",
    "select {a}, {b} from {t} where {p} except select {a}, {b} from {u} where {q}",
    "select {a}, {b} from {t} where {p} intersect all select {a}, {b} from {u} where {q}",
    "select x.{a}, (select count(*) from {u} y where y.topic = x.topic and y.queue_id > 0) "
    "from (select * from {t} where {p}) x",
    "select {a} from (select * from {t} where {p}) x where exists "
    "(select {b} from (select * from {u} where {q}) y where y.queue_id = x.queue_id)",
    "select {a} from (select * from {t} where {p}) x where not exists "
    "(select {b} from (select * from {u} where {q}) y where y.physical_offset = x.size)",
    "select {a} from {t} where {p} and topic in (select topic from {u} where {q})",
    "select {a} from {t} where {p} or tags not in (select tags from {u} where {q})",
    "select {a} from {t} where (topic, queue_id) in (select tags, queue_id from {u} where {q})",
    "select {a} from {t} where {p} and size > (select avg(size) from {u} where {q})",
    "select k, {a} from {t} lateral view explode(keys) e as k where {p}",
    "select k, v from {t} lateral view outer explode(properties) e as k, v where {p} and k <> 'n'",
    "select x.{a}, y.most from {t} x, "
    "lateral (select max(size) as most from {u} where topic = x.topic) y where x.queue_id = 1",
    "select properties['n'], properties.color, get(keys, 0), size(keys) from {t} where {p}",
    "select {a} from {t} where properties['color'] = 'red' and {p}",
    "select s.{a}, s.{b} from (select struct(*) as s from {t} where {p}) where s.queue_id < 2",
    "select to_json(struct({a}, {b})) from {t} where {p}",
    "select filter(keys, topic -> topic <> 'k1'), {a} from {t} where {p}",
    "select * except (properties) from (select *, row_number() over "
    "(partition by topic order by msg_id) as r from {t} where {p}) where r < 4 and {q}",
    "select {a}, {b} from {t} where {p} order by msg_id desc limit 7",
    "select {a} from (select * from {t} order by msg_id limit 30) where {p}",
    "from {t} |> where {p} |> extend size + 1 as more |> select {a}, more |> where more > 2",
    "select * from (select topic, tags, size from {t} where {p}) "
    "pivot (sum(size) for tags in ('paid', 'new'))",
    "select * from (select physical_offset, queue_id, sys_flag from {t} where {p}) "
    "unpivot (v for k in (queue_id, sys_flag))",
    "select x.{a}, y.{b}, physical_offset from (select * from {t} where {p}) x "
    "full join (select * from {u} where {q}) y using (physical_offset)",
    "select x.{a} from {t} x left semi join {u} y "
    "on x.physical_offset = y.physical_offset and y.topic = 'orders' where x.size > 0",
    "select x.{a} from (select * from {t} where {p}) x left anti join (select * from {u} "
    "where {q}) y on x.physical_offset = y.physical_offset",
    "select if({p}, topic, tags), case when {q} then size else queue_id end from {t}",
    "select {a} from {t} where coalesce({p}, {q}, false)",
    "select {a} from {t} where case when {p} then {q} else queue_id = 0 end",
    "select {a} from {t} where store_time > now() - interval 40000 days and {p}",
    "select {a} from {t} where topic = tags or upper(topic) = 'ORDERS' and {p}",
    "select {a} from {t} where topic in ('Orders', 'topic', '100%', 'size') and {p}",
    "select {a} from {t} where topic like '%RETRY%%' or topic rlike '^O' and {p}",
    "select {a}, date_trunc('hour', store_time) from {t} where hour(store_time) < 12 and {p}",
    "select {a} from identifier('{t}') where {p}",
)
_WORDS = re.compile(r"'[^']*'|\w+(?:\(|'[^']*')?")  # texts, literals with a type, calls and names
_KNOWN = {*NAMES, *TABLES, *ALIASES}


def respelled(query: str, chance: random.Random, *, case: bool) -> str:
    """Return a query with its names in random case, unless case counts, and in random quotes."""

    def spelled(found: re.Match[str]) -> str:
        word = found[0]
        if word not in _KNOWN:
            return word
        if case:
            word = chance.choice((str.lower, str.upper, str.title, str.swapcase))(word)
        return f"`{word}`" if chance.random() < 0.2 else word

    return _WORDS.sub(spelled, query)


def queries(rows: list[Row], zone: str) -> st.SearchStrategy[str]:
    """Return queries for a session with a time zone; names are in lower case."""
    # In "log where (false)", Spark takes "where" for an alias of the table, and "false" for one of
    # its columns.
    condition = predicates(rows, zone).map(lambda predicate: f"(({predicate.sql}))")
    table = st.sampled_from(TABLES)
    # Spark cannot run INTERSECT ALL of rows that have a column twice.
    columns = st.sampled_from(list(permutations(PLAIN, 2)))
    return st.builds(
        lambda form, t, u, p, q, ab: str(form).format(t=t, u=u, p=p, q=q, a=ab[0], b=ab[1]),
        st.sampled_from(FORMS),
        table,
        table,
        condition,
        condition,
        columns,
    )
