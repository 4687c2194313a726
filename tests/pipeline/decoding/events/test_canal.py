"""Events of Canal: the types of MySQL, deletes, changed keys, statements, and many tables."""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrail.pipeline.decoding import Decoded, DecoderSpec, Operation, TableName, TableSchema

UPSERT, DELETE = Operation.UPSERT, Operation.DELETE
EVENT: dict[str, Any] = {
    **{"id": 9, "database": "shop", "table": "orders", "pkNames": ["id"], "isDdl": False},
    **{"es": 1589373560000, "ts": 1589373560798, "sql": "", "sqlType": {"id": -5}, "old": None},
    **{"type": "INSERT", "mysqlType": {"id": "bigint(20)", "price": "decimal(10,2)"}},
    "data": [{"id": "1", "price": "5.18"}],
}


def event(**members: Any) -> bytes:
    return json.dumps({**EVENT, **members}, ensure_ascii=False).encode()


def decode(
    *bodies: bytes,
    known: TableSchema | Mapping[TableName, TableSchema] | None = None,
    **options: str,
) -> Decoded:
    spec = DecoderSpec.from_options({"format": "canal", **options})
    return spec.decoder({} if known is None else known).decode(bodies)


def test_the_documented_event() -> None:
    update = event(type="UPDATE", old=[{"price": "5.15"}])
    part = decode(event(), update, event(type="DELETE")).parts[0]
    assert part.table == ("shop", "orders") and str(part.table) == "shop.orders"
    assert part.key == ("id",) and part.schema.ddl == "id bigint, price decimal(10,2)"
    assert part.operations.to_pylist() == [UPSERT, UPSERT, DELETE]
    assert part.rows.to_pylist() == [{"id": 1, "price": Decimal("5.18")}] * 3
    assert str(part.times[0]) == "2020-05-13 12:39:20+00:00"


TYPES = [
    ("tinyint(4)", "-128", "tinyint", -128),
    ("tinyint(1)", "true", "tinyint", 1),
    ("tinyint unsigned", "255", "smallint", 255),
    ("smallint(5) unsigned zerofill", "65535", "int", 65535),
    ("mediumint(8) unsigned", "16777215", "int", 16777215),
    ("INTEGER", "111", "int", 111),
    ("int(10) unsigned", "4294967295", "bigint", 4294967295),
    ("bigint(20) unsigned", "18446744073709551615", "decimal(20,0)", Decimal(2**64 - 1)),
    ("bigint", "-9223372036854775808", "bigint", -(2**63)),
    ("decimal(38,10)", "-0.0000000001", "decimal(38,10)", Decimal("-0.0000000001")),
    ("decimal(65,30)", "1.5", "string", "1.5"),
    ("numeric", "7", "decimal(10,0)", Decimal(7)),
    ("FLOAT", "5.5", "float", 5.5),
    ("double(10,2) unsigned", "1e300", "double", 1e300),
    ("bit(1)", "1", "boolean", True),
    ("bit(1)", "\x01", "boolean", True),
    ("bit(8)", "200", "bigint", 200),
    ("bit(64)", "18446744073709551615", "decimal(20,0)", Decimal(2**64 - 1)),
    ("char(3)", "", "string", ""),
    ("varchar(255) CHARACTER SET utf8mb4", "中文 😀", "string", "中文 😀"),
    ("longtext", "x", "string", "x"),
    ("json", '{"a": 1.10}', "string", '{"a": 1.10}'),
    ("enum('small','it''s (x)')", "2", "string", "it's (x)"),
    ("enum('2','1')", "2", "string", "2"),
    ("enum('a','b')", "b", "string", "b"),
    ("enum('a','b')", "0", "string", ""),
    ("set('a','b','c')", "5", "string", "a,c"),
    ("set('a','b','c')", "a,b", "string", "a,b"),
    ("date", "2024-02-29", "date", "2024-02-29"),
    ("date", "0000-00-00", "date", "None"),
    ("date", "2024-00-00", "date", "None"),
    ("datetime(6)", "1000-01-01 00:00:00.000001", "timestamp_ntz", "1000-01-01 00:00:00.000001"),
    ("datetime", "0000-00-00 00:00:00", "timestamp_ntz", "None"),
    ("timestamp", "2024-07-01 12:00:00", "timestamp", "2024-07-01 04:00:00+00:00"),
    ("timestamp(3)", "0000-00-00 00:00:00.000", "timestamp", "None"),
    ("time(3)", "-838:59:59.000", "string", "-838:59:59.000"),
    ("year(4)", "2155", "int", 2155),
    ("varbinary(16)", "\x00\xff\x80", "binary", b"\x00\xff\x80"),
    ("blob", "", "binary", b""),
    ("point", "\x01\xe9", "binary", b"\x01\xe9"),
    ("somethingnew(3)", "x", "string", "x"),
]


@pytest.mark.parametrize(("declared", "text", "kind", "value"), TYPES)
def test_types_of_mysql(declared: str, text: str, kind: str, value: Any) -> None:
    body = event(mysqlType={"c": declared}, data=[{"c": text}, {"c": None}])
    decoded = decode(body, timeZone="Asia/Shanghai")
    assert not decoded.rejects
    part = decoded.parts[0]
    assert part.schema.ddl == f"c {kind}"
    found, null = part.rows["c"].to_pylist()
    assert null is None
    temporal = kind in ("date", "timestamp", "timestamp_ntz")
    assert (str(found) if temporal else found) == value


@pytest.mark.parametrize(
    ("declared", "text", "reason"),
    [
        ("int", "x", "column c: 'x' is not an int"),
        ("int", "2147483648", "out of range"),
        ("decimal(10,2)", "1.555", "more than 2 digits after the point"),
        ("bit(1)", "2", "'2' is not a boolean"),
        ("blob", "ā", "expected letters of ISO-8859-1"),
        ("date", "2024-02-30", "expected YYYY-MM-DD"),
        ("date", "0000-00-00", "set zeroDates=null to store null"),
    ],
)
def test_values_that_contradict_their_declaration(declared: str, text: str, reason: str) -> None:
    bodies = event(mysqlType={"c": declared}, data=[{"c": None}, {"c": text}]), event()
    decoded = decode(*bodies, zeroDates="reject")
    assert [reject.message for reject in decoded.rejects] == [0]
    assert reason in decoded.rejects[0].reason
    assert decoded.parts[0].messages.to_pylist() == [1]  # no row of the first event


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not JSON"),
        (b"{}", "its member table is None"),
        (event(type="QUERY"), "type is 'QUERY', not INSERT, UPDATE or DELETE"),
        (event(type=[]), "type is an array"),
        (event(data=None), "data is not a list of rows"),
        (event(type="UPDATE", old=[{}, {}]), "data has 1 rows, but old has 2"),
        (event(mysqlType={"id": []}), "mysqlType has a value that is not text"),
        (event(pkNames="id"), "pkNames is not a list of names"),
        (event(data=[{"id": "1", "ID": "2"}]), "differ only in case"),
        (
            event(isDdl=True, type="ERASE", sql="DROP TABLE `orders`"),
            "adds no columns: 'DROP TABLE",
        ),
    ],
)
def test_events_that_cannot_be_applied(body: bytes, reason: str) -> None:
    decoded = decode(event(), body)
    assert [reject.message for reject in decoded.rejects] == [1]
    assert reason in decoded.rejects[0].reason


def test_a_changed_key_deletes_the_old_row() -> None:
    changes = [{"id": "2", "price": "1"}, {"id": "1", "price": "2"}]
    body = event(type="UPDATE", data=changes, old=[{"ID": "3"}, {"price": "9"}])
    part = decode(body).parts[0]
    assert part.operations.to_pylist() == [DELETE, UPSERT, UPSERT]
    assert part.rows["id"].to_pylist() == [3, 2, 1]
    assert part.messages.to_pylist() == [0, 0, 0]
    by_price = decode(body, key="price").parts[0]
    assert by_price.operations.to_pylist() == [UPSERT, DELETE, UPSERT]


def test_statements_that_add_columns_widen_the_schema() -> None:
    sql = "ALTER TABLE `shop`.`orders` ADD COLUMN `note` varchar(20) COMMENT 'a, b' AFTER `id`"
    decoded = decode(event(), event(isDdl=True, type="ALTER", sql=sql, data=None, mysqlType=None))
    assert not decoded.rejects and decoded.skipped == 0
    part = decoded.parts[0]
    assert part.schema.ddl == "id bigint, price decimal(10,2), note string"
    assert part.rows.num_rows == 1


def test_declared_types_widen_the_table() -> None:
    known = TableSchema.from_ddl("ID int, price decimal(8,2), gone date")
    part = decode(event(), known=known).parts[0]
    assert part.schema.ddl == "ID bigint, price decimal(10,2), gone date"
    assert part.rows.to_pylist() == [{"ID": 1, "price": Decimal("5.18"), "gone": None}]
    wider = TableSchema.from_ddl("id decimal(20,0), price decimal(20,4), at timestamp")
    body = event(
        mysqlType={**EVENT["mysqlType"], "at": "date"},
        data=[{"id": "1", "price": "5.18", "at": "2024-07-01"}],
    )
    row = decode(body, known=wider, timeZone="Asia/Shanghai").parts[0].rows.to_pylist()[0]
    assert row["id"] == 1 and row["price"] == Decimal("5.1800")
    assert row["at"].isoformat() == "2024-06-30T16:00:00+00:00"


def test_a_column_of_another_type_takes_the_values_that_fit() -> None:
    known = TableSchema.from_ddl("id string, price double")
    assert decode(event(), known=known).parts[0].rows.to_pylist() == [{"id": "1", "price": 5.18}]
    decoded = decode(event(mysqlType={"price": "varchar(9)"}, data=[{"price": "x"}]), known=known)
    assert decoded.rejects[0].reason == "column price: 'x' is not a double"


def test_events_without_types_are_text_or_what_the_table_says() -> None:
    body = event(mysqlType=None, pkNames=None)
    part = decode(body).parts[0]
    assert part.schema.ddl == "id string, price string" and part.key == ()
    known = TableSchema.from_ddl("id bigint, price decimal(10,2)")
    assert decode(body, known=known).parts[0].rows["price"].to_pylist() == [Decimal("5.18")]


def test_new_columns_are_ignored_or_rejected() -> None:
    known = TableSchema.from_ddl("id bigint")
    assert decode(event(), known=known, newColumns="ignore").parts[0].schema == known
    decoded = decode(event(), known=known, newColumns="reject")
    assert decoded.rejects[0].reason == "column price: '5.18' has no column in the table"


def test_one_topic_has_many_tables() -> None:
    bodies = event(), event(table="users", mysqlType={"id": "int"}, data=[{"id": "7"}]), event()
    known = {TableName("shop", "users"): TableSchema.from_ddl("id int, name string")}
    orders, users = decode(*bodies, known=known).parts
    assert orders.table == ("shop", "orders") and orders.messages.to_pylist() == [0, 2]
    assert users.schema.ddl == "id int, name string" and users.messages.to_pylist() == [1]
    assert decode(*bodies, tables="shop.u*, x.y").skipped == 2
    drop = event(table="others", isDdl=True, type="ERASE", sql="DROP TABLE others", data=None)
    assert decode(drop, tables="shop.u*").skipped == len(decode(drop).rejects) == 1
    spec = DecoderSpec.from_options({"format": "canal"})
    schemas = spec.infer(bodies)
    assert [str(table) for table in schemas] == ["None", "shop.orders", "shop.users"]
    assert schemas[None].ddl == "id bigint, price decimal(10,2)"


def test_an_empty_body_is_skipped() -> None:
    assert decode(b"", event()).skipped == 1


class Database:
    """A table with a key as a MySQL server would have it, and the events that Canal would send."""

    def __init__(self) -> None:
        self.rows: dict[int, str | None] = {}
        self.events: list[bytes] = []

    def run(self, steps: list[tuple[str, int, int, str | None]]) -> None:
        for kind, key, other, value in steps:
            if kind == "put":
                known = key in self.rows
                old = [{"v": self.rows[key]}] if known else None
                self._send("UPDATE" if known else "INSERT", [(key, value)], old)
                self.rows[key] = value
            elif kind == "delete" and key in self.rows:
                self._send("DELETE", [(key, self.rows.pop(key))], None)
            elif kind == "move" and key in self.rows and other not in self.rows:
                old = [{"k": str(key), "v": self.rows.pop(key)}]
                self._send("UPDATE", [(other, value)], old)
                self.rows[other] = value

    def _send(self, kind: str, rows: list[tuple[int, str | None]], old: Any) -> None:
        data = [{"k": str(key), "v": value} for key, value in rows]
        types = {"k": "int", "v": "varchar(9)"}
        self.events.append(event(type=kind, data=data, old=old, mysqlType=types, pkNames=["k"]))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "move"]),
        *(st.integers(0, 4), st.integers(0, 4)),
        st.none() | st.text(max_size=3),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(STEPS, st.integers(1, 7))
def test_applied_rows_are_the_table_of_the_database(steps: Any, size: int) -> None:
    database = Database()
    database.run(steps)
    table: dict[int, str | None] = {}
    for start in range(0, len(database.events), size):
        decoded = decode(*database.events[start : start + size])
        assert not decoded.rejects
        (part,) = decoded.parts
        for operation, row in zip(part.operations.to_pylist(), part.rows.to_pylist(), strict=True):
            if operation == DELETE:
                del table[row["k"]]
            else:
                table[row["k"]] = row["v"]
    assert table == database.rows
