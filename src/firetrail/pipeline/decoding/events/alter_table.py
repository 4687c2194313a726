"""The columns that a statement ``ALTER TABLE … ADD COLUMN`` or ``CREATE TABLE`` of MySQL adds.

Rows declare their types, so other parts of a statement are ignored. All other statements (columns
that are dropped or renamed, tables that are emptied, or created from others) are refused, because
the rows of the table would no longer be those of the database.
"""

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from firetrail.pipeline.decoding.events.mysql_types import mysql_type
from firetrail.pipeline.decoding.values.text_values import BodyError, quoted_value

_TOKEN = re.compile(
    r"\s+|/\*.*?\*/|(?:--\s|#)[^\n]*|(`(?:[^`]|``)*`|'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\""
    r"|[\w$.+-]+|.)",
    re.DOTALL,
)
_KEYS = {"INDEX", "KEY", "UNIQUE", "PRIMARY", "CONSTRAINT", "FULLTEXT", "SPATIAL", "FOREIGN"}
_KEYS |= {"CHECK"}
"""Words after ``ADD``, or in the list of a new table, that add no column."""


def added_columns(sql: str) -> dict[str, pa.DataType]:
    """Return names and types of the columns that a statement adds; raise BodyError for others."""
    tokens = [token for token in _TOKEN.findall(sql) if token and token != ";"]
    words = [token.upper() for token in tokens]
    if words[:1] == ["CREATE"]:
        return _created_columns(tokens, words, sql)
    start = 2 if words[1:2] == ["TABLE"] else 3
    if words[:1] != ["ALTER"] or words[start - 1 : start] != ["TABLE"]:
        raise BodyError(f"a statement that adds no columns: {quoted_value(sql)}")
    while tokens[start + 1 : start + 2] == ["."]:  # `database`.`table`
        start += 2
    columns: dict[str, pa.DataType] = {}
    for part in _parts(tokens[start + 1 :]):
        upper = [token.upper() for token in part[:6]]
        if upper[:1] != ["ADD"] or upper[1:2] == ["PARTITION"]:
            raise BodyError(f"a change other than new columns: {quoted_value(sql)}")
        if upper[1:2] and upper[1] in _KEYS:
            continue
        at = 2 if upper[1:2] == ["COLUMN"] else 1
        at += 3 if upper[at : at + 3] == ["IF", "NOT", "EXISTS"] else 0
        inner = part[at:]
        several = inner[:1] == ["("]
        for definition in _parts(inner[1:-1]) if several else [inner]:
            columns.update([_column(definition, sql)])
    if not columns:
        raise BodyError(f"a statement that adds no columns: {quoted_value(sql)}")
    return columns


def _created_columns(
    tokens: Sequence[str], words: Sequence[str], sql: str
) -> dict[str, pa.DataType]:
    """Return the columns of a new table that is not made from another one."""
    start = words.index("(") if "(" in words else len(words)
    if "TABLE" not in words[1:3] or {"LIKE", "SELECT", "AS"} & {*words[:start]}:
        raise BodyError(f"a statement that adds no columns: {quoted_value(sql)}")
    definitions = list(_parts(tokens[start + 1 : _closing(tokens, start)]))
    if not definitions[0] or definitions[0][0].upper() in ("LIKE", "SELECT"):
        raise BodyError(f"a statement that adds no columns: {quoted_value(sql)}")
    rest = {word for word in words[_closing(tokens, start) :] if word in ("SELECT", "AS")}
    if rest:
        raise BodyError(f"a table that is made from another one: {quoted_value(sql)}")
    named = [each for each in definitions if each and each[0].upper() not in _KEYS]
    return dict(_column(each, sql) for each in named)


def _closing(tokens: Sequence[str], start: int) -> int:
    """Return the place of the parenthesis that closes the one at ``start``."""
    depth = 0
    for at in range(start, len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if not depth:
            return at
    return len(tokens)


def _parts(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Yield the parts between top-level commas."""
    depth, part = 0, list[str]()
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "," and not depth:
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _column(definition: Sequence[str], sql: str) -> tuple[str, pa.DataType]:
    if len(definition) < 2:
        raise BodyError(f"not understood: {quoted_value(sql)}")
    name = definition[0]
    if name[0] in '`"':
        name = name[1:-1].replace(name[0] * 2, name[0])
    end = definition.index(")") + 1 if definition[2:3] == ["("] and ")" in definition else 2
    attributes = [token for token in definition[end:] if token[0] not in "`'\""]
    text = " ".join([*definition[1:end], *attributes[:2]])
    return name, mysql_type(text).kind
